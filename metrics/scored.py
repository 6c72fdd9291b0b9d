"""What is scored: an example with its prediction, and what models say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from examples import Span


class Sets(NamedTuple):
    """Token ids of an example and of its prediction, by any tokenizer; an id counts once, however often it occurs."""

    reference: frozenset[int]
    prediction: frozenset[int]


class Likelihood(NamedTuple):
    """The log probability (natural) of a text, and how many of its tokens it is of; 0 tokens for an empty text."""

    log_probability: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Scored:
    """One example with its prediction.

    Attributes:
        reference: The text that the embedder saw.
        prediction: The attack's best candidate; may be empty.
        spans: Entities of the reference.
        kind: "set" where the prediction is words in no order, joined by spaces; metrics of order are None for it.
        cosine: Cosine of the embedder's vector of the prediction with the target, -1..1, where it was asked.
        cosine_clean: The same with the target's vector before a defense, where there was one.
        language: ISO 639-1 code, where it is known; stop words are counted in English texts and those without a code.
        subwords: Ids of both texts by the data's own tokenizer, where they were made.
        tokens: Ids of both by the attack's own tokenizer, where it has one.
        cosine_second: Cosine of a second embedder's vectors of prediction and reference, -1..1, where it was asked.
        likelihood: Of the prediction, under a language model, where one was asked.
        translation: The prediction in the reference's language, where a translation model was asked.
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
