"""Precision, recall and F1 of a prediction's words, or of sets of words or token ids.

``token_*``   over words with repetitions; means over texts (``unembed.metrics.tokens``)
``token_set_f1``  over sets of Treebank tokens; a mean over texts (``unembed.metrics.tokens``)
``micro_*``   over sets, summed over all texts before dividing: GEIA's classification view (section 4.2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from unembed.metrics.base import Description, ExampleMetric, Mean, quotient
from unembed.metrics.scored import Scored, Sets
from unembed.metrics.statistics import Floats
from unembed.metrics.tokens import overlap, treebank_tokens, words

Part = Literal["precision", "recall", "f1"]
PARTS: tuple[Part, ...] = ("f1", "precision", "recall")  # in the order of tables
_NO_SETS = Sets(frozenset(), frozenset())


class TokenOverlap(ExampleMetric[Scored]):
    """Mean over texts of the multiset precision, recall or F1 of words. Statistics, (n, 4): all three, and 1."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        title, explanation = {
            "f1": ("Word F1", "Harmonic mean of word precision and recall, word order ignored."),
            "precision": ("Word precision", "Share of the predicted words that stand in the reference."),
            "recall": ("Word recall", "Share of the reference's words that stand in the prediction."),
        }[part]
        self.description, self.part = Description(f"token_{part}", title, explanation), part

    @property
    def shares(self) -> object:
        return type(self)

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        found = [overlap(words(row.reference), words(row.prediction)) for row in rows]
        return np.array([(*(getattr(one, part) for part in PARTS), 1.0) for one in found], np.float64)

    def combine(self, sums: Floats) -> Floats:
        return quotient(sums[..., PARTS.index(self.part)], sums[..., 3])


class TokenSetF1(Mean[Scored]):
    """Mean over texts of the F1 of the sets of Treebank tokens: the token F1 of the Vec2Text papers."""

    description = Description(
        "token_set_f1",
        "Token-set F1",
        "F1 of the sets of words and punctuation marks, with case, of each text alone (as in Vec2Text).",
        secondary=True,
        reference="Morris et al. 2023, section 4",
    )

    def of_example(self, row: Scored) -> float:
        wanted, offered = set(treebank_tokens(row.reference)), set(treebank_tokens(row.prediction))
        return 200 * len(wanted & offered) / (len(wanted) + len(offered))


class TokenCount(Mean[Scored]):
    """Mean number of subword tokens, by the tokenizer that cut the texts, without special tokens.

    Args:
        of: Of the references, or of the predictions.
    """

    needs = "models"

    def __init__(self, of: Literal["reference", "prediction"]) -> None:
        super().__init__()
        self.description = Description(
            f"tokens_{of}",
            f"Tokens of a {of}",
            f"Subword tokens of the {of}s on average, by the data's own tokenizer.",
            None,
            "score",
            secondary=True,
            reference="Morris et al. 2023, table 1",
        )
        self.side = of

    def of_example(self, row: Scored) -> float | None:
        if row.subwords is None or row.subwords.lengths is None:
            return None
        return float(row.subwords.lengths[self.side == "prediction"])


class MicroOverlap(ExampleMetric[Scored]):
    """Precision, recall or F1 over sets. Statistics, (n, 3): numbers of shared, predicted and true items.

    An item counts once per example even if repeated, since a bag-of-words attack cannot predict repetitions. The value
    is 0 if nothing is shared, and undefined if no example has a true item.

    GEIA (Li et al. 2023, section 4.2) is scored over sets of tokens. Its authors' script appends the end token to every
    reference and every prediction, so each text has one hit more: a prediction with no right token scores above 0
    (``tokens_and_end``). The sets of the two baselines have no end token: their recall of 3.9 % in table 1 is below
    what one hit a text would be.

    Args:
        part: Which of the three.
        items: Words of both texts, subword tokens of the data's tokenizer, or tokens of the attack's tokenizer, without
            or with the end of a text.
    """

    def __init__(self, part: Part, items: Literal["words", "subwords", "tokens", "tokens_and_end"]) -> None:
        super().__init__()
        family, called, explanation = {
            "words": ("micro", "words", "F1 over the sets of words, summed over all texts (as in GEIA)."),
            "subwords": ("micro_piece", "subwords", "The same over subword tokens, by the data's own tokenizer."),
            "tokens": ("micro_token", "tokens", "The same over the tokens that the attack itself works on."),
            "tokens_and_end": (
                "micro_token_end",
                "tokens and end",
                "Over the attack's tokens, the end of the text counted as one of them (GEIA's way).",
            ),
        }[items]
        self.description = Description(
            f"{family}_{part}",
            f"Micro {'F1' if part == 'f1' else part}, {called}",
            explanation if part == "f1" or items == "tokens_and_end" else f"The {part} of that F1.",
            secondary=part != "f1",
            reference="GEIA, section 4.2",
        )
        self.part, self.items = part, items
        self.needs = "texts" if items == "words" else "models"

    @property
    def shares(self) -> object:
        return type(self), self.items

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        sizes = []
        wanted: frozenset[object]
        offered: frozenset[object]
        for row in rows:
            if self.items == "words":
                wanted, offered = frozenset(words(row.reference)), frozenset(words(row.prediction))
            else:
                wanted, offered, _ = (row.subwords if self.items == "subwords" else row.tokens) or _NO_SETS
            end = self.items == "tokens_and_end" and row.tokens is not None and row.kind == "sequence"
            sizes.append((len(wanted & offered) + end, len(offered) + end, len(wanted) + end))
        return np.array(sizes, np.float64)

    def combine(self, sums: Floats) -> Floats:
        shared, offered, wanted = (sums[..., place] for place in range(3))
        above, below = {
            "precision": (100 * shared, offered),
            "recall": (100 * shared, wanted),
            "f1": (200 * shared, offered + wanted),
        }[self.part]
        found: Floats = np.where(wanted > 0, np.nan_to_num(quotient(above, below)), np.nan)
        return found
