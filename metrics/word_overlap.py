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
from unembed.metrics.scored import Scored
from unembed.metrics.statistics import Floats
from unembed.metrics.tokens import overlap, treebank_tokens, words

Part = Literal["precision", "recall", "f1"]
PARTS: tuple[Part, ...] = ("f1", "precision", "recall")  # in the order of tables


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

    Args:
        part: Which of the three.
        items: Words of both texts, subword tokens of the data's tokenizer, or tokens of the attack's tokenizer.
    """

    def __init__(self, part: Part, items: Literal["words", "subwords", "tokens"]) -> None:
        super().__init__()
        family, called, explanation = {
            "words": ("micro", "words", "F1 over the sets of words, summed over all texts (as in GEIA)."),
            "subwords": ("micro_piece", "subwords", "The same over subword tokens, by the data's own tokenizer."),
            "tokens": ("micro_token", "tokens", "The same over the tokens that the attack itself works on."),
        }[items]
        self.description = Description(
            f"{family}_{part}",
            f"Micro {'F1' if part == 'f1' else part}, {called}",
            explanation if part == "f1" else f"The {part} of that F1.",
            secondary=part != "f1",
            reference="GEIA, section 4.2",
        )
        self.part, self.items = part, items
        self.needs = "texts" if items == "words" else "models"

    @property
    def shares(self) -> object:
        return type(self), self.items

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        return np.array([self._sizes(row) for row in rows], np.float64)

    def _sizes(self, row: Scored) -> tuple[int, int, int]:
        if self.items == "words":
            wanted, offered = set(words(row.reference)), set(words(row.prediction))
            return len(wanted & offered), len(offered), len(wanted)
        sets = row.subwords if self.items == "subwords" else row.tokens
        return (
            (0, 0, 0)
            if sets is None
            else (len(sets.reference & sets.prediction), len(sets.prediction), len(sets.reference))
        )

    def combine(self, sums: Floats) -> Floats:
        shared, offered, wanted = (sums[..., place] for place in range(3))
        above, below = {
            "precision": (100 * shared, offered),
            "recall": (100 * shared, wanted),
            "f1": (200 * shared, offered + wanted),
        }[self.part]
        found: Floats = np.where(wanted > 0, np.nan_to_num(quotient(above, below)), np.nan)
        return found
