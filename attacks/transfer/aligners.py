"""Maps from the victim's space to the attacker's own, in double precision, fitted to few pairs of vectors.

alignment = LeaveOneOut().fit(Known(victim, own, store, public))
alignment.map(targets)        # (m, d) -> (m, k)
alignment.about               # {"pairs": 100, "whitening": 0.5, "width": 0.4, "penalty": 0.5, "error": 0.79, ...}
write_maps(path, {"start": alignment.map})
read_maps(path, {"start"})["start"]
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from unembed.core.atomic_files import write_file
from unembed.defenses.product_quantization import nearest


@dataclass(frozen=True, slots=True)
class AffineMap:
    """x -> x weight + offset.

    Attributes:
        weight: (d, k).
        offset: (k,).
    """

    weight: Tensor
    offset: Tensor

    @property
    def dimensions(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors.cpu().double() @ self.weight + self.offset


@dataclass(frozen=True, slots=True)
class KernelMap:
    """x -> kernel((x - center) whitener, anchors) weight + offset, with a Gaussian kernel of width 1.

    Attributes:
        center: (d,).
        whitener: (d, r).
        anchors: (a, r).
        weight: (a, k).
        offset: (k,).
    """

    center: Tensor
    whitener: Tensor
    anchors: Tensor
    weight: Tensor
    offset: Tensor

    @property
    def dimensions(self) -> tuple[int, int]:
        return self.center.shape[0], self.offset.shape[0]

    def __call__(self, vectors: Tensor) -> Tensor:
        whitened = (vectors.cpu().double() - self.center) @ self.whitener
        return gaussian(whitened, self.anchors) @ self.weight + self.offset


@dataclass(frozen=True, slots=True)
class CellMap:
    """x -> x weights[c] + offsets[c], c the cell whose centroid is nearest to the first coordinates of x.

    Attributes:
        centroids: (cells, r), r at most d.
        weights: (cells, d, k).
        offsets: (cells, k).
    """

    centroids: Tensor
    weights: Tensor
    offsets: Tensor

    @property
    def dimensions(self) -> tuple[int, int]:
        return self.weights.shape[1], self.weights.shape[2]

    def __call__(self, vectors: Tensor) -> Tensor:
        vectors = vectors.cpu().double()
        cells = nearest(vectors[:, : self.centroids.shape[1]], self.centroids)
        mapped = vectors.new_empty(len(vectors), self.weights.shape[2])
        for cell in set(cells.tolist()):
            rows = cells == cell
            mapped[rows] = vectors[rows] @ self.weights[cell] + self.offsets[cell]
        return mapped


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x_i - y_j|^2): (m, r), (a, r) -> (m, a)."""
    squares = x.square().sum(1)[:, None] - 2 * x @ y.T + y.square().sum(1)
    return torch.exp(-squares.clamp(min=0))


def interpolated(here: Tensor, points: Tensor, values: Tensor, noise: float) -> Tensor:
    """Values (n, k) at ``points`` (n, r), interpolated at ``here`` (m, r): (m, k).

    The mean of a Gaussian process with a Gaussian kernel of width 1; ``noise`` is the variance of a value alone.
    """
    among = gaussian(points, points) + noise * torch.eye(len(points), dtype=points.dtype)
    found: Tensor = gaussian(here, points) @ torch.linalg.solve(among, values)
    return found


def pseudo_inverse(x: Tensor, y: Tensor) -> AffineMap:
    """The map of Chen, Xu and Bjerva (2025): least squares through the origin, (X'X)^+ X'Y.

    Their code inverts X'X in single precision, where torch sets eigenvalues below d * 2^-23 of the largest to zero. The
    same limit is applied here in double precision, so that the result does not depend on rounding.
    """
    gram = x.T @ x
    limit = torch.finfo(torch.float32).eps * len(gram)
    return AffineMap(torch.linalg.pinv(gram, rtol=limit, hermitian=True) @ (x.T @ y), y.new_zeros(y.shape[1]))


Map = AffineMap | KernelMap | CellMap


def write_maps(path: Path, maps: Mapping[str, Map]) -> None:
    """Write named maps as safetensors: ``start.weight`` and so on."""
    from safetensors.torch import save

    tensors = {f"{name}.{part}": tensor for name, one in maps.items() for part, tensor in asdict(one).items()}
    write_file(path, lambda file: file.write(save(tensors)))


def read_maps(path: Path) -> dict[str, Map]:
    from safetensors.torch import load_file

    maps: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in load_file(path).items():
        name, _, part = key.partition(".")
        maps[name][part] = tensor
    kinds = {"anchors": KernelMap, "centroids": CellMap}  # by a part that no other kind has
    return {
        name: next((kind for part, kind in kinds.items() if part in parts), AffineMap)(**parts)
        for name, parts in maps.items()
    }


class RidgePath:
    """The ridge regressions of y (n, k) on x (n, p), float64, without intercept, for all penalties.

    With x = U S V', the fitted values are H y with the hat matrix H = U diag(s^2 / (s^2 + penalty)) U'. The residual of
    a row that was left out is its residual divided by 1 - H_ii.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.y = y
        wide = x.shape[0] < x.shape[1]
        squares, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
        large = squares > squares[-1] * len(squares) * torch.finfo(x.dtype).eps  # others are rounding
        self.squares, vectors = squares[large], vectors[:, large]
        others = (x.T if wide else x) @ (vectors / self.squares.sqrt())
        self.left, self.right = (vectors, others) if wide else (others, vectors)
        self.shares = self.left.T @ y

    def residuals(self, penalty: float, rows: int | None = None) -> Tensor:
        """Leave-one-out residuals of the first ``rows`` rows (None: all), (rows, k); ``penalty`` is above 0."""
        factors = self.squares / (self.squares + penalty)
        left = self.left[:rows]
        residuals = self.y[:rows] - left @ (factors[:, None] * self.shares)
        leverage: Tensor = left.square() @ factors
        left_out: Tensor = residuals / (1 - leverage)[:, None]
        return left_out

    def weight(self, penalty: float) -> Tensor:
        factors = self.squares.sqrt() / (self.squares + penalty)
        weight: Tensor = self.right @ (factors[:, None] * self.shares)
        return weight


Share = Annotated[float, Field(ge=0, le=1)]
PENALTIES = tuple(10 ** (step / 3) for step in range(6, -19, -1))  # the largest first
SHRINKAGE = 0.1  # of the covariance, towards a multiple of the identity: there may be fewer vectors than dimensions
CONSTANT = 0.3  # beside features whose norm is at most 1: how readily the mean of the known texts is followed
JUDGED = 1000  # pairs, the first ones, over which the leave-one-out error is taken; the map is fitted to all of them
SMALLEST = 1e-6  # share of the largest eigenvalue of the kernel between anchors


@dataclass(frozen=True, slots=True)
class Known:
    """What an attacker has, in float64.

    Attributes:
        victim: Vectors of the known texts in the victim's space, (n, d).
        own: Vectors of the same texts by the attacker's own encoder, (n, k).
        store: Vectors whose texts are wanted, (m, d).
        public: The own encoder's vectors of public texts, (p, k).
    """

    victim: Tensor
    own: Tensor
    store: Tensor
    public: Tensor

    def reversed(self) -> Known:
        """The same for a map from the own space to the victim's."""
        return Known(victim=self.own, own=self.victim, store=self.public, public=self.store)


@dataclass(frozen=True, slots=True)
class Alignment:
    """A fitted map, the same before scaling, and what was chosen.

    Attributes:
        held_out: What ``map`` gives for each known text when that text is left out of the fit, (n, k); None: unknown.
    """

    map: Map
    plain: Map
    about: dict[str, float]
    held_out: Tensor | None = None


class Aligner:
    """How a map is fitted."""

    @abstractmethod
    def fit(self, known: Known) -> Alignment:
        """The map from the victim's space to the attacker's."""


class PseudoInverse(Aligner):
    """That of the paper (see ``pseudo_inverse``): the pairs alone, not centred, without penalty."""

    def fit(self, known: Known) -> Alignment:
        found = pseudo_inverse(known.victim, known.own)
        return Alignment(found, found, {"pairs": len(known.victim)})


@dataclass
class LeaveOneOut(Aligner):
    """Kernel ridge regression whose whitening, width and penalty have the smallest leave-one-out error, then scaled.

    - **Centred** at the means of the store's and of the public vectors, which take no pair. How the texts of the two
      differ is a penalised constant.
    - **Whitened** by a power of the store's covariance: with fewer pairs than dimensions, the penalty decides what the
      map is along directions that the pairs do not have.
    - **A Gaussian kernel**: wide, it is a linear ridge regression; the narrower it is, the less linear is the map.
    - **Scaled**: a regression shrinks what it is unsure of, so its results lie too close to their mean and are decoded
      to the commonest texts. One factor gives them the variance of the public vectors.
    """

    whitening: Sequence[Share] = (0.0, 0.5)
    widths: Sequence[PositiveFloat] = (0.15, 0.4, 1.0)
    anchors: PositiveInt = 1200
    scale: Share = 1.0

    def __post_init__(self) -> None:
        if not self.whitening or not self.widths:
            raise ValueError(f"whitening={self.whitening}, widths={self.widths}: give at least one of each")

    def fit(self, known: Known) -> Alignment:
        store = torch.cat([known.store, known.victim])
        center, offset = store.mean(0), known.public.mean(0)
        wanted = known.own - offset
        whiteners = {power: whitening_of(store - center, power) for power in self.whitening}
        fits = (
            (*self._fit(known.victim - center, wanted, whitener * width**0.5), {"whitening": power, "width": width})
            for power, whitener in whiteners.items()
            for width in self.widths
        )
        error, penalty, path, fitted, chosen = min(fits, key=lambda fit: fit[0])
        plain = replace(fitted, center=center, offset=offset + fitted.offset)
        there = plain(known.store)  # texts that it was not fitted to
        factor = float((_spread(known.public) / _spread(there).clamp(min=1e-12)) ** (self.scale / 2))
        middle = there.mean(0)
        scaled = replace(plain, weight=factor * plain.weight, offset=middle + factor * (plain.offset - middle))
        relative = error / float(wanted[:JUDGED].square().sum(1).mean())
        about = {"pairs": len(known.victim), **chosen, "penalty": penalty, "error": relative, "scale": factor}
        held_out = known.own - path.residuals(penalty)
        return Alignment(scaled, plain, about, middle + factor * (held_out - middle))

    def _fit(self, victim: Tensor, wanted: Tensor, whitener: Tensor) -> tuple[float, float, RidgePath, KernelMap]:
        """The leave-one-out error, the best penalty, and the regression of vectors that have mean 0."""
        x = victim @ whitener
        anchors = x[: self.anchors]
        values, directions = torch.linalg.eigh(gaussian(anchors, anchors))
        large = values > SMALLEST * values[-1]
        features = directions[:, large] / values[large].sqrt()
        inputs = gaussian(x, anchors) @ features
        middle = inputs.mean(0)
        path = RidgePath(torch.cat([inputs - middle, inputs.new_full((len(inputs), 1), CONSTANT)], 1), wanted)
        errors = [float(path.residuals(penalty, JUDGED).square().sum(1).mean()) for penalty in PENALTIES]
        near = min(errors) * (1 + 1e-6)  # equal, but for rounding
        penalty = next(penalty for penalty, error in zip(PENALTIES, errors, strict=True) if error <= near)
        weight = path.weight(penalty)
        offset = CONSTANT * weight[-1] - middle @ weight[:-1]
        return (
            min(errors),
            penalty,
            path,
            KernelMap(victim.new_zeros(1), whitener, anchors, features @ weight[:-1], offset),
        )


def whitening_of(centred: Tensor, power: float) -> Tensor:
    """The covariance, shrunk, to the power of -power/2, times a factor that gives mean squared norm 1: (d, d)."""
    dimension = centred.shape[1]
    covariance = centred.T @ centred / len(centred)
    even = covariance.trace() / dimension * torch.eye(dimension, dtype=centred.dtype)
    values, directions = torch.linalg.eigh((1 - SHRINKAGE) * covariance + SHRINKAGE * even)
    weight: Tensor = (directions * values ** (-power / 2)) @ directions.T
    return weight / (centred @ weight).square().sum(1).mean().sqrt()


def _spread(vectors: Tensor) -> Tensor:
    return (vectors - vectors.mean(0)).square().sum(1).mean()
