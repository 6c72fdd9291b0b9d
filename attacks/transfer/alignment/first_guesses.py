"""First guesses of the rotation between two spaces, from two sets of vectors that are not paired.

    by_moments(x, y)                          # rotations for 4, 8, 16, 32 principal components
    by_axes(x, y, 48, 60, generator)          # from 60 matchings of up to 48 skewed axes

Both compare what a rotation leaves as it is: variances and third moments along principal components; or how the
coordinates along skewed axes are distributed, each and two by two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unembed.attacks.transfer.alignment.axis_matching import Profile, matched
from unembed.attacks.transfer.alignment.skewed_axes import SkewedAxes

COMPONENTS = (4, 8, 16, 32)
FEWEST, BETWEEN = 16, 4  # axes of a matching, and the difference to the next
WEIGHTS = (0.3, 1.0)  # of how single coordinates are distributed: neither was better in all pairs of spaces
RANK = 8  # of a guess by a single matching: the axes that fit best
RANKS = (8, 16, 32)  # of guesses by all matchings
SAMPLE = 15_000  # vectors whose axes are matched


def by_moments(x: Tensor, y: Tensor) -> list[Tensor]:
    """Principal components matched in order of variance, their signs by skewness: rotations (r, r)."""
    signs = torch.sign((x**3).mean(0) * (y**3).mean(0))
    signs[signs == 0] = 1
    return [torch.diag(signs * (torch.arange(len(signs)) < count)) for count in COMPONENTS if count <= len(signs)]


@dataclass(frozen=True, slots=True)
class Guesses:
    """Rotations of low rank, (r, r): one of each matching, and those that agree best with all of them."""

    single: list[Tensor]
    joint: list[Tensor]


def by_axes(x: Tensor, y: Tensor, axes: int, matchings: int, random: torch.Generator) -> Guesses:
    """Rotations from matchings of skewed axes of samples, in varying numbers of the first components.

    A single matching is wrong in part, mostly. Its right part is the same in all of them, and its errors are not: the
    sum of the outer products of matched directions, each by how well it fits, shows it.
    """
    low = x.shape[1]
    counts = list(range(FEWEST, min(axes, low) + 1, BETWEEN)) or [min(axes, low)]
    total, single = torch.zeros(low, low), []
    for number in range(matchings):
        count = counts[number % len(counts)]
        theirs, ours = (SkewedAxes.of(_sample(vectors, random)[:, :count], random) for vectors in (x, y))
        order, support = matched(Profile.of(theirs), Profile.of(ours), WEIGHTS[number % 2], random)
        weights = support.clamp_min(0) / support.clamp_min(0).sum().clamp_min(1e-9)
        partners = ours.directions[order]
        total[:count, :count] += (theirs.directions * weights[:, None]).T @ partners
        best = support.argsort(descending=True)[:RANK]
        guess = torch.zeros(low, low)
        guess[:count, :count] = theirs.directions[best].T @ partners[best]
        single.append(_of_rank(guess, min(RANK, count)))
    ranks = sorted({min(rank, low) for rank in RANKS}) if matchings else []
    return Guesses(single, [_of_rank(total, rank) for rank in ranks])


def _of_rank(matrix: Tensor, rank: int) -> Tensor:
    left, _, right = torch.linalg.svd(matrix)
    found: Tensor = left[:, :rank] @ right[:rank]
    return found


def _sample(vectors: Tensor, random: torch.Generator) -> Tensor:
    return vectors[torch.randperm(len(vectors), generator=random)[:SAMPLE]]
