"""A map between two vector spaces from two sets of vectors of which none are known to belong together.

    found = Translator().fit(victim, own)     # (m, d), (p, k): vectors of different texts of like kinds
    found.map(targets)                        # (m, d) -> (m, k)
    found.about                               # {"score": 0.46, "worst_guess": 0.41, "agreement": 0.62, ...}

1. First guesses of the rotation in the first principal components (Guesses). Those by a
   single matching of axes are many and mostly wrong: a few small steps show which to keep.
2. Each is refined for some steps: vectors of a sample take the mean of their nearest own vectors as partners, and the
   rotation is fitted to these partners (Procrustes). An own vector that is near to many counts as less near (CSLS,
   Conneau et al. 2018).
3. The best ones by ``score``, the mean cosine of a translated vector with the nearest own one, are refined in all
   dimensions, and the best of these on larger samples.

After vec2vec (Jha et al. 2025, arXiv 2505.12540) and its linear successor mini-vec2vec (Dar 2025, arXiv 2510.02348).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.transfer.aligners import AffineMap

PARTNERS = 10  # own vectors whose mean is the partner of a translated one
KEPT, BEST = 6, 3  # single guesses kept; guesses that are refined in all dimensions
GLANCE, SHORT = 5, 10  # steps in the first components: of single guesses, of those kept
LONG, FINAL = 20, 12  # steps in all dimensions: of the best guesses, of the best one
FEWER, OWN_FEWER = 1000, 3000  # sample sizes of these steps, in the same order
FEW, OWN_FEW = 2000, 4000
MORE, OWN_MORE = 3000, 12_000
MANY, OWN_MANY = 6000, 24_000


@dataclass(frozen=True, slots=True)
class Translation:
    """A fitted map, and how good it is as far as unpaired vectors tell."""

    map: AffineMap
    about: dict[str, float]


@dataclass
class Translator:
    """Finds the map; all random numbers come from ``seed``."""

    components: PositiveInt = 64
    axes: Annotated[int, Field(ge=3)] = 48
    matchings: NonNegativeInt = 60
    power: Annotated[float, Field(ge=0, le=1)] = 0.5
    seed: NonNegativeInt = 0

    def fit(self, victim: Tensor, own: Tensor) -> Translation:
        """The map from the space of ``victim`` (m, d) to that of ``own`` (p, k)."""
        if (least := min(len(victim), len(own))) < self.axes:
            raise ValueError(f"{least} vectors do not have {self.axes} axes")
        random = torch.Generator().manual_seed(self.seed)
        theirs, ours = Prepared.of(victim, self.power), Prepared.of(own, self.power)
        x, y = theirs(victim), ours(own)
        low = min(self.components, x.shape[1], y.shape[1])
        few_x, few_y = rows_of_length_one(x[:, :low]), rows_of_length_one(y[:, :low])
        search = _Search(few_x, few_y, random)
        found = by_axes(few_x, few_y, self.axes, self.matchings, random)
        seen = search.ranked(found.single, GLANCE, FEWER, OWN_FEWER)[:KEPT]
        guesses = [*by_moments(few_x, few_y), *found.joint, *(guess for _, guess in seen)]
        tried = search.ranked(guesses, SHORT, FEW, OWN_FEW)
        whole = _Search(x, y, random)
        best = whole.ranked([_padded(guess, x, y) for _, guess in tried[:BEST]], LONG, MORE, OWN_MORE)
        rotation = best[0][1]
        for _ in range(FINAL):
            rotation = whole.step(rotation, MANY, OWN_MANY)
        about = {
            "victim": len(victim), "own": len(own), "score": search.score(nearest_rotation(rotation[:low, :low])),
            "worst_guess": tried[-1][0], "agreement": whole.agreement(rotation),
        }  # fmt: skip
        return Translation(self._affine(theirs, ours, rotation, victim, own), about)

    def _affine(self, theirs: Prepared, ours: Prepared, rotation: Tensor, victim: Tensor, own: Tensor) -> AffineMap:
        """The map between the spaces themselves, scaled to the spread of the own vectors."""
        weight = theirs.weight.double() @ rotation.double() @ ours.inverse.double()
        center, offset = theirs.center.double(), ours.center.double()
        moved = (victim.double() - center) @ weight
        weight *= ((own.double() - offset).square().sum(1).mean() / moved.square().sum(1).mean()).sqrt()
        return AffineMap(weight, offset - center @ weight)


class _Search:
    """Steps of refinement between two sets of prepared vectors, of length 1."""

    def __init__(self, x: Tensor, y: Tensor, random: torch.Generator) -> None:
        self.x, self.y, self.random = x, y, random
        self.judged_x, self.judged_y = x[self._rows(len(x), FEW)], y[self._rows(len(y), OWN_FEW)]

    def ranked(self, guesses: list[Tensor], steps: int, count: int, own_count: int) -> list[tuple[float, Tensor]]:
        """The rotations after some steps with their scores, the best one first."""
        refined = []
        for rotation in guesses:
            for _ in range(steps):
                rotation = self.step(rotation, count, own_count)
            refined.append((self.score(rotation), rotation))
        return sorted(refined, key=lambda found: -found[0])

    def step(self, rotation: Tensor, count: int, own_count: int) -> Tensor:
        """Partners for a sample, and the rotation that is fitted to them."""
        x, y = self.x[self._rows(len(self.x), count)], self.y[self._rows(len(self.y), own_count)]
        moved = x @ rotation
        crowding = (moved[:FEW] @ y.T).topk(min(PARTNERS, len(moved), FEW), dim=0).values.mean(0) / 2
        total = torch.zeros(self.x.shape[1], self.y.shape[1], dtype=torch.float64)
        for begin in range(0, len(x), FEW):
            cosines = moved[begin : begin + FEW] @ y.T - crowding
            near = cosines.topk(min(PARTNERS, len(y)), dim=1).indices
            partners = y[near].mean(1)  # shorter where they disagree: these count less
            total += (x[begin : begin + FEW].T @ partners).double()
        return nearest_rotation(total)

    def score(self, rotation: Tensor) -> float:
        """Mean cosine of translated vectors with the nearest own one."""
        return float((self.judged_x @ rotation @ self.judged_y.T).max(1).values.mean())

    def agreement(self, rotation: Tensor) -> float:
        """Share of translated vectors whose nearest own vector has them as its nearest, of samples of equal size."""
        size = min(len(self.judged_x), len(self.judged_y))
        cosines = self.judged_x[:size] @ rotation @ self.judged_y[:size].T
        back = cosines.argmax(0)
        return float((back[cosines.argmax(1)] == torch.arange(size)).float().mean())

    def _rows(self, size: int, count: int) -> Tensor:
        return torch.randperm(size, generator=self.random)[:count]


def _padded(rotation: Tensor, x: Tensor, y: Tensor) -> Tensor:
    padded = torch.zeros(x.shape[1], y.shape[1])
    padded[: rotation.shape[0], : rotation.shape[1]] = rotation
    return padded


def nearest_rotation(matrix: Tensor) -> Tensor:
    """The matrix with orthonormal rows or columns nearest to ``matrix`` (d, k), in single precision."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    rotation: Tensor = left @ right
    return rotation.float()


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


SMALLEST = 1e-5  # share of the largest variance: directions with less hold rounding


@dataclass(frozen=True, slots=True)
class Prepared:
    """A centre and a change of basis.

    Attributes:
        center: (d,).
        weight: To principal components, scaled by their variance to the power of -power/2, (d, r).
        inverse: Back, (r, d).
    """

    center: Tensor
    weight: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, vectors: Tensor, power: float) -> Prepared:
        center = vectors.double().mean(0)
        centred = rows_of_length_one(vectors.double() - center)
        values, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
        values, directions = values.flip(0), directions.flip(1)
        if not float(values[0]) > 0:
            raise ValueError("the vectors are all equal")
        kept = values > SMALLEST * values[0]
        values, directions = values[kept], directions[:, kept]
        scales = values ** (-power / 2)
        return cls(center.float(), (directions * scales).float(), (directions / scales).T.float())

    def __call__(self, vectors: Tensor) -> Tensor:
        return rows_of_length_one(rows_of_length_one(vectors.float() - self.center) @ self.weight)


def rows_of_length_one(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


# -- which axis of one space is which of the other, by how coordinates are distributed, each and two by two
#
# This is a quadratic assignment problem with several matrices, solved by FAQ (Vogelstein et al. 2015).
PROFILED = 8000  # vectors whose quantiles are compared
CLIPPED = 3.0  # standard deviations
TRIES, STEPS = 16, 40  # starts, and steps of each
ICA_STEPS, CONVERGED = 60, 1e-3
LARGEST = 6.0  # standard deviations: a value beyond counts as this, so that no single vector decides


@dataclass(frozen=True, slots=True)
class SkewedAxes:
    """Coordinates along the axes, and their directions."""

    values: Tensor
    directions: Tensor

    @classmethod
    def of(cls, vectors: Tensor, random: torch.Generator) -> SkewedAxes:
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
    """The axis of ``ours`` for each of ``theirs``, and how well it fits to the others under this order: (r,), (r,).

    All axes are matched, also those that have no partner.

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
