"""Which axis of one space is which of another: by how coordinates are distributed, each and two by two.

    order, support = matched(Profile.of(theirs), Profile.of(ours), 0.3, generator)   # (r,), (r,)

Axis i of the first space is axis ``order[i]`` of the second. This is a quadratic assignment problem with several
matrices, solved by FAQ (Vogelstein et al. 2015) from several starts. ``support`` says how well an axis fits to the
others under this order: all axes are matched, also those that have no partner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TRIES, STEPS = 16, 40  # starts, and steps of each
PROFILED = 8000  # vectors whose quantiles are compared
CLIPPED = 3.0  # standard deviations

ICA_STEPS, CONVERGED = 60, 1e-3


LARGEST = 6.0  # standard deviations: a value beyond counts as this, so that no single vector decides


@dataclass(frozen=True, slots=True)
class SkewedAxes:
    """Coordinates along the axes, and their directions."""

    values: Tensor
    directions: Tensor

    @classmethod
    def of(cls, vectors: Tensor, random: torch.Generator) -> SkewedAxes:
        """Axes of vectors, (n, r), n well above r and of full rank; as many as dimensions."""
        centred = vectors - vectors.mean(0)
        variances, basis = torch.linalg.eigh((centred.T @ centred / len(centred)).double())
        roots = variances.clamp_min(1e-9 * float(variances[-1])).sqrt()
        white = centred @ (basis / roots).float()
        unmixing = torch.linalg.qr(torch.randn(white.shape[1], white.shape[1], generator=random))[0]
        for _ in range(ICA_STEPS):
            left, _, right = torch.linalg.svd((white @ unmixing.T).clamp(-LARGEST, LARGEST).square().T @ white)
            before, unmixing = unmixing, left @ right
            if float((unmixing * before).sum(1).abs().min()) > 1 - CONVERGED:
                break
        values = white @ unmixing.T
        signs = torch.sign((values**3).mean(0))
        signs[signs == 0] = 1
        mixing = (unmixing.double() * roots) @ basis.T
        directions = torch.nn.functional.normalize(mixing.float() * signs[:, None], dim=1)
        return cls(values * signs, directions)


Matrix = NDArray[np.float64]
Order = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Profile:
    """What is compared of axes.

    Attributes:
        pairs: Statistics of two axes at a time, (kinds, r, r), each kind of mean 0 and variance 1.
        quantiles: Of the coordinates, (r, q), closer in the upper tail.
    """

    pairs: Matrix
    quantiles: Tensor

    @classmethod
    def of(cls, axes: SkewedAxes) -> Profile:
        """Statistics of some axes."""
        values = axes.values.clamp(-5, 5)
        square, over, under, far, plain = (
            (one - one.mean(0)) / one.std(0).clamp_min(1e-9)
            for one in (values**2, (values - 1).clamp_min(0), (-values).clamp_min(0), (values > 2).float(), values)
        )
        pairs = [(over, over), (square, plain), (far, far), (under, under), (square, square)]
        kinds = [first.T @ second / len(values) for first, second in pairs]
        kinds.append(axes.directions @ axes.directions.T)
        places = torch.cat([torch.linspace(0.01, 0.9, 20), torch.linspace(0.91, 0.999, 30)])
        return cls(
            np.stack([_standardized(kind.double().numpy()) for kind in kinds]),
            torch.quantile(axes.values[:PROFILED], places, dim=0).T,
        )


def matched(theirs: Profile, ours: Profile, weight: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The axis of ``ours`` for each of ``theirs``, and its support: (r,), (r,).

    Args:
        theirs: Of r axes.
        ours: Of as many.
        weight: Of the quantiles against the statistics of pairs.
        random: Of the starts.
    """
    size = np.sqrt(len(theirs.pairs) * len(theirs.quantiles))
    linear = weight * size * _likeness(theirs.quantiles, ours.quantiles)
    relative = 4 * linear / max(float(np.abs(linear).max()), 1e-9)
    best, order, support = -np.inf, np.arange(len(linear)), np.zeros(len(linear))
    for attempt in range(TRIES):
        start = np.full_like(linear, 1 / len(linear))
        if attempt == 1:
            start = _doubly_stochastic(np.exp(relative))
        elif attempt:
            some = torch.rand(linear.shape, generator=random).double().numpy() * np.exp(attempt % 4 * relative)
            start = (start + _doubly_stochastic(some)) / 2
        found = _assigned(theirs.pairs, ours.pairs, linear, start)
        place = np.eye(len(found))[found]
        fit = ((theirs.pairs @ place) * (place @ ours.pairs)).sum((0, 2))
        value = float(fit.sum() + linear[np.arange(len(found)), found].sum())
        if value > best:
            best, order, support = value, found, fit
    return torch.from_numpy(order), torch.from_numpy(support).float()


def _assigned(a: Matrix, b: Matrix, linear: Matrix, start: Matrix) -> Order:
    """The order of ``b`` that maximises the sum of tr(A' P B P') over the kinds, plus tr(L'P)."""
    from scipy.optimize import linear_sum_assignment

    place = start
    for _ in range(STEPS):
        gradient = (a @ place @ b.transpose(0, 2, 1) + a.transpose(0, 2, 1) @ place @ b).sum(0) + linear
        rows, columns = linear_sum_assignment(gradient, maximize=True)
        change = -place
        change[rows, columns] += 1
        slope, curve = float((gradient * change).sum()), float(((a @ change) * (change @ b)).sum())
        if slope < 1e-6:
            break
        place = place + (1.0 if curve >= 0 else min(1.0, -slope / (2 * curve))) * change
    order: Order = linear_sum_assignment(place, maximize=True)[1]
    return order


def _likeness(theirs: Tensor, ours: Tensor) -> Matrix:
    """How alike two axes' quantiles are, (r, r), of mean 0 and variance 1."""
    spread = torch.cat([theirs, ours]).std(0).clamp_min(1e-9)
    found = -torch.cdist(theirs / spread, ours / spread).square().double().numpy()
    return np.asarray((found - found.mean()) / max(float(found.std()), 1e-9))


def _standardized(matrix: Matrix) -> Matrix:
    """Entries of mean 0 and variance 1, without outliers; zeros on the diagonal."""
    apart = ~np.eye(len(matrix), dtype=bool)
    some = matrix[apart]
    found = np.clip((matrix - some.mean()) / max(float(some.std()), 1e-9), -CLIPPED, CLIPPED)
    found[~apart] = 0
    return np.asarray(found)


def _doubly_stochastic(matrix: Matrix) -> Matrix:
    for _ in range(10):
        matrix = matrix / matrix.sum(1, keepdims=True)
        matrix = matrix / matrix.sum(0, keepdims=True)
    return matrix
