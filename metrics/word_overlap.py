"""Precision, recall and F1 of a prediction's words, or of sets of words or token ids.

``token_*``   over words, each as often as it occurs; means over texts (``metrics.tokens``)
``micro_*``   over sets, summed over all texts before dividing: GEIA's classification view (section 4.2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from metrics.base import Description, ExampleMetric, Needs, quotient
from metrics.micro import Sets
from metrics.scored import Scored
from metrics.statistics import Floats
from metrics.tokens import overlap, words

Part = Literal["precision", "recall", "f1"]
PARTS: tuple[Part, ...] = ("f1", "precision", "recall")  # in the order of tables


class TokenOverlap(ExampleMetric[Scored]):
    """Mean over texts of the multiset precision, recall or F1 of words. Statistics, (n, 4): all three, and 1."""

    def __init__(self, part: Part, **settings: Any) -> None:
        title, explanation = {
            "f1": ("Token F1", "Harmonic mean of word precision and recall, word order ignored."),
            "precision": ("Token precision", "Share of the predicted words that stand in the reference."),
            "recall": ("Token recall", "Share of the reference's words that stand in the prediction."),
        }[part]
        super().__init__(Description(f"token_{part}", title, explanation), **settings)
        self.part = part

    @property
    def shares(self) -> object:
        """All three parts."""
        return type(self)

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        """(n, 4); see the class."""
        found = [overlap(words(row.reference), words(row.prediction)) for row in rows]
        return np.array([(*(getattr(one, part) for part in PARTS), 1.0) for one in found], np.float64)

    def combine(self, sums: Floats) -> Floats:
        """The mean."""
        return quotient(sums[..., PARTS.index(self.part)], sums[..., 3])


class MicroOverlap(ExampleMetric[Scored]):
    """Precision, recall or F1 over sets. Statistics, (n, 3): items that both sets have, predicted ones, true ones.

    0 where nothing is shared; undefined where no example has a true item.

    Args:
        part: Which of the three.
        description: Key, title, unit and direction.
        sets: The two sets of an example; None where it has none.
        needs: What of an example ``sets`` reads.
        settings: Of torchmetrics.Metric.
    """

    def __init__(
        self,
        part: Part,
        description: Description,
        sets: Callable[[Scored], Sets | None],
        needs: Needs,
        **settings: Any,
    ) -> None:
        super().__init__(description, needs=needs, **settings)
        self.part, self.sets = part, sets

    @property
    def shares(self) -> object:
        """All three parts of the same sets."""
        return self.sets

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        """(n, 3); see the class."""
        return np.array([self._sizes(self.sets(row)) for row in rows], np.float64)

    @staticmethod
    def _sizes(found: Sets | None) -> tuple[int, int, int]:
        if found is None:
            return 0, 0, 0
        return len(found.reference & found.prediction), len(found.prediction), len(found.reference)

    def combine(self, sums: Floats) -> Floats:
        """Of sums of shared, predicted and true items."""
        shared, offered, wanted = (sums[..., place] for place in range(3))
        above, below = {
            "precision": (100 * shared, offered),
            "recall": (100 * shared, wanted),
            "f1": (200 * shared, offered + wanted),
        }[self.part]
        found: Floats = np.where(wanted > 0, np.nan_to_num(quotient(above, below)), np.nan)
        return found


def micro_words(part: Part, **settings: Any) -> MicroOverlap:
    """Over the sets of words."""
    explanations = {"f1": "F1 over the sets of words, summed over all texts (as in GEIA)."}
    return MicroOverlap(part, _described("micro", "words", part, explanations), _word_sets, "texts", **settings)


def micro_subwords(part: Part, **settings: Any) -> MicroOverlap:
    """Over the sets of subword tokens of the data's own tokenizer."""
    explanations = {"f1": "The same over pieces of words, by the data's own tokenizer."}
    described = _described("micro_piece", "pieces", part, explanations)
    return MicroOverlap(part, described, _subword_sets, "models", **settings)


def micro_tokens(part: Part, **settings: Any) -> MicroOverlap:
    """Over the sets of tokens of the attack's own tokenizer."""
    explanations = {"f1": "The same over the tokens that the attack itself works on."}
    return MicroOverlap(
        part, _described("micro_token", "tokens", part, explanations), _token_sets, "models", **settings
    )


def _described(family: str, of: str, part: Part, explanations: dict[str, str]) -> Description:
    explanation = explanations.get(part, f"The {part} of that F1.")
    title = f"Micro {'F1' if part == 'f1' else part}, {of}"
    return Description(f"{family}_{part}", title, explanation, secondary=part != "f1", reference="GEIA, section 4.2")


def _word_sets(row: Scored) -> Sets:
    return Sets(frozenset(words(row.reference)), frozenset(words(row.prediction)))


def _subword_sets(row: Scored) -> Sets | None:
    return row.pieces


def _token_sets(row: Scored) -> Sets | None:
    return row.tokens
