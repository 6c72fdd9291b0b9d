"""Repeated releases: rows of a store that are the same vector, each with noise of its own.

    means, counts = averages(noisy, store, level=0.03)     # (n, d), (n,): the noise of a mean is level / sqrt(count)

Two rows of one vector are apart by noise alone: their squared distance is 2 level^2 times a chi-squared number of d
degrees of freedom. Rows of different vectors are farther apart by the distance of these, which shows where that is well
above 2 level^2 sqrt(2d).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_DEVIATIONS = 2.0  # above the expected squared distance: 98 % of the pairs of one vector
_AT_ONCE = 2**24  # distances


def averages(vectors: Tensor, store: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The mean of the rows of ``store``, (m, d), that seem to be releases of the same vector, for each of (n, d).

    Returns:
        The means, (n, d), and the number of rows in each, (n,); a vector that is not in the store counts alone.
    """
    dimension = store.shape[1]
    farthest = 2 * level**2 * (dimension + _DEVIATIONS * math.sqrt(2 * dimension))
    squares = store.square().sum(dim=1)
    means, counts = vectors.clone(), torch.ones(len(vectors), dtype=vectors.dtype)
    step = max(1, _AT_ONCE // len(store))
    for begin in range(0, len(vectors), step):
        rows = slice(begin, begin + step)
        some = vectors[rows]
        near = some.square().sum(dim=1)[:, None] + squares - 2 * some @ store.T <= farthest
        found = near.sum(dim=1)
        mean = near.to(store) @ store / found.clamp(min=1)[:, None]
        means[rows] = torch.where(found[:, None] > 0, mean, some)
        counts[rows] = found.clamp(min=1).to(counts)
    return means, counts
