"""Which of some texts are in a vector store: each text's nearest row, and what that says.

    found = nearest(candidates, store)                        # rows and scores, (m,)
    threshold = Threshold.at(nearest(references, store).scores, rate=0.01)

The score of a text says how much nearer its vector is to the nearest of the store's than to the next: with their
cosines a and b, (1 - b) / (1 - a + 0.001). The cosine alone is high for short and common texts, too, whether they are
members or not. Rows with the same vector count as one. An attacker who knows a defense may defend the text in the same
way first; where the defense is random, or leaves the directions, the plain vector is nearer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unembed.core import limits
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.sources.base import Fields, rows
from unembed.defenses.base import Defense, perturbs
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.membership import Threshold, fewest
from unembed.metrics.statistics import Floats
from unembed.metrics.vectors import cosine_rows

SAME = 0.999  # cosine from which two vectors are taken for those of one text
FINEST = 0.001  # difference of a cosine from 1 below which it says no more: rounding, another batch
BLOCK = 256  # texts compared at once: bounds memory
ROWS = 5000  # of the store that are compared with the others, at most
GRID = 1e-6  # difference up to which a coordinate lies on a grid
Answer = Literal["exact", "near", "no"]


class Nearest(NamedTuple):
    """The nearest row of each text.

    Attributes:
        rows: Their places in the store, (m,); the first of equals.
        cosines: With these rows, (m,).
        next: Cosines with the nearest row that has another vector, (m,); -1 where there is none.
    """

    rows: list[int]
    cosines: Floats
    next: Floats

    @property
    def scores(self) -> Floats:
        """How much nearer the nearest row is than the next, (m,); above 0, large for members."""
        return np.asarray((1 - self.next) / (1 - self.cosines + FINEST), np.float64)


def nearest(vectors: Tensor, store: Tensor, besides: bool = False) -> Nearest:
    """The nearest of the store's vectors, (n, d), to each of ``vectors``, (m, d).

    With ``besides``, rows with the same vector are left out, as if the text were not in the store.
    """
    units = torch.nn.functional.normalize(store, dim=1)
    rows, following = [], []
    texts = torch.nn.functional.normalize(vectors, dim=1)
    for begin in range(0, len(texts), BLOCK):
        cosines = texts[begin : begin + BLOCK] @ units.T
        if besides:
            cosines[cosines >= SAME] = -1.0
        first = cosines.argmax(dim=1)
        cosines[units[first] @ units.T >= SAME] = -1.0
        rows.append(first)
        following.append(cosines.amax(dim=1))
    places = torch.cat(rows)
    return Nearest(places.tolist(), cosine_rows(vectors, store[places]).numpy(), torch.cat(following).double().numpy())


class Comparison(NamedTuple):
    """Texts as they are compared with a store: vectors of the candidates, (m, d), of references that are no members,
    (n, d), and of the references as the store would hold them (``stored``).
    """

    candidates: Tensor
    references: Tensor
    stored: Tensor

    @property
    def same(self) -> float:
        """The cosine that 99 of 100 members reach, at most ``SAME``."""
        own = cosine_rows(self.references, self.stored).numpy()
        return float(min(SAME, np.quantile(own, 0.01)))


def comparisons(
    candidates: Sequence[str], references: Sequence[str], service: CachedEmbedder, defense: Defense
) -> list[Comparison]:
    """The texts defended like the store, and where its vectors keep their dimension, as they are."""
    plain = [service.embed(list(texts), "attack") for texts in (candidates, references)]
    first, stored = (
        defense(vectors, [Example(place, text) for place, text in enumerate(texts)], "hypothesis")
        for vectors, texts in zip(plain, (candidates, references), strict=True)
    )
    ways = [Comparison(first, stored, stored)]
    if stored.shape[1] == plain[1].shape[1]:
        ways.append(Comparison(plain[0], plain[1], stored))
    return ways


class Membership(NamedTuple):
    """What was found of each candidate: its nearest row, the threshold of the scores (``by_store``: of the store's own
    rows), and ``same``, the cosine from which a vector is taken for the text's own.
    """

    found: Nearest
    threshold: Threshold
    same: float
    by_store: bool = False

    @property
    def answers(self) -> list[Answer]:
        """``exact``: as near as the text itself would be; ``near``: nearer than texts that are no members are."""
        bound = self.threshold.value
        return [
            "no" if score <= bound else "exact" if cosine >= self.same else "near"
            for score, cosine in zip(self.found.scores.tolist(), self.found.cosines.tolist(), strict=True)
        ]

    def lines(self, numbers: Iterable[int], ids: Sequence[str]) -> list[dict[str, Any]]:
        """A JSON object for each candidate, in order, with the line numbers of the candidates and the store's ids."""
        found, p_values = self.found, self.threshold.p_values(self.found.scores)
        return [
            {
                "line": line,
                "id": ids[row],
                "cosine": round(float(cosine), 6),
                "score": float(f"{score:.4g}"),
                "p": float(f"{p:.4g}"),
                "member": answer,
            }
            for line, row, cosine, score, p, answer in zip(
                numbers, found.rows, found.cosines, found.scores, p_values, self.answers, strict=True
            )
        ]


def look_up(ways: Sequence[Comparison], store: Tensor, rate: float, by_store: bool = False) -> Membership:
    """Look for the candidates in the store, (n, d), in the way that comes nearest to its vectors on average.

    ``rate`` is that of false positives, 0 to 1. With ``by_store``, the store's rows are references, too: each is
    compared with the others, as if it were not there, and of the two thresholds the larger one is taken.
    """
    tried = [(nearest(way.candidates, store), nearest(way.references, store), way) for way in ways]
    found, known, way = max(tried, key=lambda one: np.concatenate([one[0].cosines, one[1].cosines]).mean())
    threshold = Threshold.at(known.scores, rate)
    some = store[:: -(-len(store) // ROWS)]
    if by_store and len(some) >= fewest(rate):
        own = Threshold.at(nearest(some, store, besides=True).scores, rate)
        if own.value > threshold.value:
            return Membership(found, own, way.same, by_store=True)
    return Membership(found, threshold, way.same)


def fit_to_store(defense: Defense, store: Tensor) -> bool:
    """Fit a quantisation to vectors that it made, (n, d), whose values are its grid, or its centroids; return if it
    did: quantised once more, such vectors stay as they are.
    """
    marked = [Example(place, "") for place in range(len(store))]
    if not perturbs(defense):
        return False
    try:
        defense.fit(store, marked)
        again = defense(store, marked, "document")
    except InputError:  # too few vectors, or of another dimension
        return False
    return again.shape == store.shape and torch.allclose(again, store, rtol=0, atol=GRID)


def read_texts(name: str, key: str) -> dict[int, str]:
    """The texts of a file by line number; blank ones are left out."""
    file, texts = limits.existing(name, key), {}
    for line, row in rows(file, "text"):
        example = Fields().example(row, f"{file}:{line}")
        if example is not None:
            texts[line] = example.text
    if not texts:
        raise InputError(f"{key}={name}: holds no text")
    return texts
