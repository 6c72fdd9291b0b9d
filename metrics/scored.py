"""What a metric reads (an example with its prediction, and the outputs of scoring models) and how it is described.

Imports nothing that takes long, so that the files of runs can be read quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from unembed.core.examples import Span

Unit = Literal["percent", "score", "cosine", "count", "seconds", "other"]


@dataclass(frozen=True, slots=True)
class Description:
    """Names and explanation of a value in metrics.json.

    Attributes:
        key: Its name in metrics.json.
        title: Its name in tables.
        explanation: One sentence.
        more: Which direction means a more successful attack; None if neither does.
        kind: Its unit; "percent" and "score" range from 0 to 100.
        secondary: Whether the report collapses it and the terminal's table omits it.
        reference: The paper, table or section that defines it; empty for our own definitions.
    """

    key: str
    title: str
    explanation: str
    more: Literal["higher", "lower"] | None = "higher"
    kind: Unit = "percent"
    secondary: bool = False
    reference: str = ""


class Sets(NamedTuple):
    """Distinct token ids of an example and of its prediction, and how many tokens both have with repetitions."""

    reference: frozenset[int]
    prediction: frozenset[int]
    lengths: tuple[int, int] | None = None


class Likelihood(NamedTuple):
    """The natural log probability of a text and its number of scored tokens, 0 for an empty text."""

    log_probability: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Scored:
    """One example with its prediction.

    Attributes:
        reference: The text that the embedder saw.
        prediction: The attack's best candidate; may be empty.
        spans: Entities of the reference.
        unseen: Of each span, whether no training text has an entity of its label and text; None if unknown.
        in_lexicon: Of each span, whether the attack's lexicon has it; None for an attack without a lexicon.
        kind: "set" if the prediction is an unordered set of words, joined by spaces; metrics that depend on word order
            are then None.
        cosine: Cosine of the prediction's vector with the target, -1..1, if computed.
        cosine_clean: Cosine of the prediction's vector with the target before a defense, if there was one.
        language: ISO 639-1 code, if known; stop words are counted in English texts and in texts without a code.
        subwords: Ids of both texts by the data's tokenizer, if computed.
        tokens: Ids of both texts by the attack's tokenizer, if it has one.
        cosine_second: Cosine of a second embedder's vectors of prediction and reference, -1..1, if there is one.
        likelihood: Log probability of the prediction under a language model, if there is one.
        entity_words: Words of the reference's entities that are recovered, and all, as GEIA counts them, if computed.
        translation: The prediction in the reference's language, if there is a translation model.
        translation_reference: What the translation is compared with, if it is not ``reference``: that in lower case.
    """

    reference: str
    prediction: str
    spans: tuple[Span, ...] = ()
    kind: Literal["sequence", "set"] = "sequence"
    cosine: float | None = None
    cosine_clean: float | None = None
    language: str | None = None
    subwords: Sets | None = None
    tokens: Sets | None = None
    cosine_second: float | None = None
    likelihood: Likelihood | None = None
    translation: str | None = None
    unseen: tuple[bool, ...] | None = None
    in_lexicon: tuple[bool, ...] | None = None
    translation_reference: str | None = None
    entity_words: tuple[int, int] | None = None
