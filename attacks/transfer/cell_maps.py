"""attack/aligner=cells: a map for each cell of a store whose cells were rotated by keys of their own (defense=cells).

    python train.py attack=algen attack/aligner=cells attack.source_run=minilm defense=cells defense.adaptive=true ...

The cells are found in the locked vectors alone, by k-means: each cell's mean is rotated, too, which sets the cells
farther apart than they were. Where a public prefix chooses the cell, k-means of the prefix finds about the same cells,
since that is how the store's owner found them.

What one ridge regression of all pairs leaves (it reads the public prefix, and what the cells have in common) is
regressed again in each cell. Penalties have the smallest leave-one-out error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.transfer.aligners import PENALTIES, Aligner, Alignment, CellMap, Known, RidgePath
from unembed.defenses.product_quantization import k_means, nearest

ITERATIONS = 30
FEWEST = 4  # pairs of a cell for a regression of its own


@dataclass
class PerCell(Aligner):
    """A regression of all pairs, then one of each cell.

    Attributes:
        cells: Cells that are looked for.
        prefix: Leading coordinates that choose the cell; 0: all of them.
        restarts: Of k-means; the cells whose vectors lie closest together are taken.
        seed: Of k-means.
    """

    cells: PositiveInt = 16
    prefix: NonNegativeInt = 0
    restarts: PositiveInt = 8
    seed: NonNegativeInt = 0

    def fit(self, known: Known) -> Alignment:
        width = self.prefix or known.victim.shape[1]
        centroids, spread = self._centroids(torch.cat([known.store, known.victim])[:, :width].contiguous())
        pair_mean, own_mean = known.victim.mean(0), known.own.mean(0)
        weight, left = _ridge(known.victim - pair_mean, known.own - own_mean)
        weights, offsets = (
            weight.repeat(len(centroids), 1, 1),
            (own_mean - pair_mean @ weight).repeat(len(centroids), 1),
        )
        owner = nearest(known.victim[:, :width].contiguous(), centroids)
        for cell in range(len(centroids)):
            rows = owner == cell
            if rows.sum() < FEWEST:
                continue
            x, y = known.victim[rows], left[rows]
            more, _ = _ridge(x - x.mean(0), y - y.mean(0))
            weights[cell] += more
            offsets[cell] += y.mean(0) - x.mean(0) @ more
        plain = CellMap(centroids, weights, offsets)
        there = plain(known.store)
        factor = float((_variance(known.public) / _variance(there).clamp(min=1e-12)).sqrt())
        middle = there.mean(0)
        scaled = CellMap(centroids, factor * weights, middle + factor * (offsets - middle))
        return Alignment(scaled, plain, {"pairs": len(known.victim), "spread": spread, "scale": factor})

    def _centroids(self, vectors: Tensor) -> tuple[Tensor, float]:
        """Of the best restart, (cells, r), and the share of the variance that is within the cells."""
        found = []
        for restart in range(self.restarts):
            generator = torch.Generator().manual_seed(self.seed + restart)
            centroids = k_means(vectors, self.cells, ITERATIONS, generator)
            within = (vectors - centroids[nearest(vectors, centroids)]).square().sum(1).mean()
            found.append((float(within / _variance(vectors)), restart, centroids))
        spread, _, best = min(found)
        return best, spread


def _ridge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (d, k) and leave-one-out residuals (n, k) of y (n, k) on x (n, d), both of mean 0."""
    path = RidgePath(x, y)
    penalty = min(PENALTIES, key=lambda one: float(path.residuals(one).square().sum()))
    return path.weight(penalty), path.residuals(penalty)


def _variance(vectors: Tensor) -> Tensor:
    return (vectors - vectors.mean(0)).square().sum(1).mean()
