"""First guesses of the rotation between two spaces, from two sets of vectors that are not paired.

    by_moments(x, y)                          # rotations for 4, 8, 16, 32 principal components
    by_clusters(x, y, 40, 60, generator)      # from 60 matchings of 40 cluster centroids

Both compare what a rotation leaves as it is: variances and third moments along principal components; or the cosines of
cluster centroids with each other, and how the cosines of a centroid with all vectors are distributed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.alignment.prepared import rows_of_length_one

COMPONENTS = (4, 8, 16, 32)
RANKS = (8, 16)  # of a guess by clusters, besides the full one
SAMPLE, PROFILED = 4000, 1200  # vectors that are clustered, and that a centroid's profile is of
ROUNDS = 10  # of k-means
QUANTILES = 40  # of a profile
TRIES, STEPS = 4, 40  # of an assignment: starts, and steps of each

Matrix = NDArray[np.float64]


def by_moments(x: Tensor, y: Tensor) -> list[Tensor]:
    """Principal components matched in order of variance, their signs by skewness: rotations (r, r)."""
    signs = torch.sign((x**3).mean(0) * (y**3).mean(0))
    signs[signs == 0] = 1
    return [torch.diag(signs * (torch.arange(len(signs)) < count)) for count in COMPONENTS if count <= len(signs)]


def by_clusters(x: Tensor, y: Tensor, clusters: int, matchings: int, random: torch.Generator) -> list[Tensor]:
    """Rotations (r, r) that agree best with many matchings of centroids.

    A single matching is mostly wrong. Its right part is the same in all of them, and its errors are not: the sum of the
    outer products of matched centroids shows it. Rotations of lower rank are of its largest singular values.
    """
    total = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64)
    for _ in range(matchings):
        theirs, their_profiles = centroids(x, clusters, random)
        ours, our_profiles = centroids(y, clusters, random)
        order = matched(theirs, ours, -torch.cdist(their_profiles, our_profiles), random)
        total += (theirs.T @ ours[order]).double()
    left, _, right = torch.linalg.svd(total)
    ranks = [*(rank for rank in RANKS if rank < len(left)), len(left)] if matchings else []
    return [(left[:, :rank] @ right[:rank]).float() for rank in ranks]


def centroids(vectors: Tensor, clusters: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Centroids of length 1 by k-means for cosines on a sample, (c, r), and their profiles, (c, QUANTILES)."""
    sample = vectors[torch.randperm(len(vectors), generator=random)[:SAMPLE]]
    found = sample[:1]
    distance = (1 - sample @ found[0]).clamp_min(1e-9)
    for _ in range(clusters - 1):  # the next one is likelier the farther it is from all (Arthur and Vassilvitskii 2007)
        chosen = sample[torch.multinomial(distance, 1, generator=random)]
        found, distance = torch.cat([found, chosen]), distance.minimum((1 - sample @ chosen[0]).clamp_min(1e-9))
    for _ in range(ROUNDS):
        nearest = (sample @ found.T).argmax(1)
        found = rows_of_length_one(torch.zeros_like(found).index_add_(0, nearest, sample))
    places = torch.linspace(0.01, 0.99, QUANTILES)
    profiles = torch.quantile(found @ sample[:PROFILED].T, places, dim=1).T
    return found, (profiles - profiles.mean(0)) / profiles.std(0).clamp_min(1e-9)


def matched(theirs: Tensor, ours: Tensor, likeness: Tensor, random: torch.Generator) -> Tensor:
    """The row of ``ours`` for each row of ``theirs``: the best of some starts.

    Args:
        theirs: Centroids, (c, r).
        ours: Centroids, (c, k).
        likeness: Of the profiles, (c, c); counts about as much as the cosines.
        random: Of the starts.
    """
    a, b = (theirs @ theirs.T).double().numpy(), (ours @ ours.T).double().numpy()
    linear = (likeness * 2 * float(np.abs(a).mean()) / float(likeness.abs().mean().clamp_min(1e-9))).double().numpy()
    best, order = -np.inf, np.arange(len(a))
    for attempt in range(TRIES):
        start = np.full_like(a, 1 / len(a))
        if attempt:
            start = (start + _doubly_stochastic(torch.rand(a.shape, generator=random).double().numpy())) / 2
        found = assigned(a, b, linear, start)
        value = float((a * b[np.ix_(found, found)]).sum() + linear[np.arange(len(a)), found].sum())
        if value > best:
            best, order = value, found
    return torch.from_numpy(order)


def assigned(a: Matrix, b: Matrix, linear: Matrix, start: Matrix) -> NDArray[np.int64]:
    """The order of ``b`` that maximises tr(A P B P') + tr(L'P), by FAQ (Vogelstein et al. 2015): all (c, c)."""
    from scipy.optimize import linear_sum_assignment

    place = start
    for _ in range(STEPS):
        gradient = 2 * a @ place @ b + linear
        rows, columns = linear_sum_assignment(gradient, maximize=True)
        change = -place
        change[rows, columns] += 1
        slope, curve = float((gradient * change).sum()), float(((a @ change) * (change @ b)).sum())
        if slope < 1e-9:
            break
        place = place + (1.0 if curve >= 0 else min(1.0, -slope / (2 * curve))) * change
    order: NDArray[np.int64] = linear_sum_assignment(place, maximize=True)[1]
    return order


def _doubly_stochastic(matrix: Matrix) -> Matrix:
    for _ in range(10):
        matrix = matrix / matrix.sum(1, keepdims=True)
        matrix = matrix / matrix.sum(0, keepdims=True)
    return matrix
