"""The attribute attack: which of several known values is nearest to a text (Zhu et al. 2023, sections 2.3 and 4.3).

    similarities      "Paris"  "Rome"          cosines of one text's vector with the vectors of the values
    "Ada ... Paris"     .71      .43           -> the nearest value is the true one

Nothing is learned. Values are compared by their vectors, not by their wording, so that synonyms and spelling variants
count too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unembed.metrics.base import Description, OfAll, Ratio, quotient
from unembed.metrics.statistics import Floats

PREFIX = "attribute/"  # of the keys in metrics.json
SOURCES = {  # what a value is guessed from
    "reconstructed": "the recovered text",
    "target": "the attacked vector",
    "original": "the original text",
}


class Guessed(NamedTuple):
    """One text: its true value, the rank of that value (0: the nearest), and the number of values."""

    truth: int
    place: int
    candidates: int


class TopK(Ratio[Guessed]):
    """Share of texts whose true value is among the ``k`` nearest; for k > 1, undefined for at most k values."""

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.k = k
        self.description = Description(f"top{k}", f"Top {k}", f"Share of texts whose value is among the {k} nearest.")

    def of_example(self, row: Guessed) -> tuple[int, int]:
        """Successes (1 or 0) and trials: 1, or 0 if k > 1 and there are at most k values."""
        return (int(row.place < self.k), 1) if self.k == 1 or row.candidates > self.k else (0, 0)

    def combine(self, sums: Floats) -> Floats:
        return 100 * quotient(sums[..., 0], sums[..., 1]) if self.k == 1 else super().combine(sums)


class StandardError(TopK):
    """Standard error of the top-1 share over independent texts."""

    def __init__(self) -> None:
        super().__init__()
        self.description = Description(
            "standard_error", "Standard error", "Of that share, over independent texts.", None
        )

    def combine(self, sums: Floats) -> Floats:
        share = quotient(sums[..., 0], sums[..., 1])
        found: Floats = 100 * np.sqrt(share * (1 - share) / sums[..., 1])
        return found


class _OfValues(OfAll[Guessed]):
    """A metric that counts texts by their true value."""

    def statistics(self, rows: Sequence[Guessed]) -> Floats:
        return np.array([(row.truth, row.place == 0) for row in rows], np.float64).reshape(-1, 2)


class MacroAccuracy(_OfValues):
    """Accuracy per true value, averaged over the values: frequent and rare values have equal weight."""

    description = Description("macro", "Macro accuracy", "Share of texts guessed, averaged over the values.")

    def value(self, parts: Floats) -> float:
        count = Counter(parts[:, 0].tolist())
        hits = Counter(parts[parts[:, 1] > 0, 0].tolist())
        return 100 * math.fsum(hits[value] / of for value, of in count.items()) / len(count)


class Majority(_OfValues):
    """Share of the most frequent true value: the accuracy of always predicting it."""

    description = Description("majority", "Majority", "Share of the commonest value.", None)

    def value(self, parts: Floats) -> float:
        return 100 * max(Counter(parts[:, 0].tolist()).values()) / len(parts)


def similarities(texts: Tensor, values: Tensor) -> Tensor:
    """Cosines of texts (n, d) with values (c, d): (n, c) float64. The cosine of a zero vector is 0."""
    sides = [torch.nn.functional.normalize(side.to(torch.float64), dim=-1) for side in (texts, values)]
    return sides[0] @ sides[1].T


def ranks(truth: Sequence[int], cosines: Tensor) -> list[int]:
    """Rank of the true value of each text among all values, 0 for the nearest; among ties, the true one ranks last.

    Args:
        truth: Column of the true value, (n,).
        cosines: (n, c).
    """
    columns = torch.tensor(truth, dtype=torch.long)
    own = cosines.gather(1, columns[:, None])
    # Ties count against the attacker: a text that was not recovered must not score by the order of the values.
    places: list[int] = ((cosines >= own).sum(dim=1) - 1).tolist()
    return places
