"""denoiser=gaussian: the posterior mean under a Gaussian prior that is fitted to the noisy vectors of a store.

    unembed invert run=minilm vectors=noisy.npy denoiser=gaussian
    python evaluate.py run=<dir> defense=noise defense.level=0.03 denoiser=gaussian

With y = x + level * e, x ~ N(m, C) and e ~ N(0, I), the noisy vectors have the mean m and the covariance
C + level^2 I, whose spectrum can be estimated without a clean vector (see ``noise_level``). The posterior mean is

    E[x | y] = m + sum_k (1 - level^2 / v_k) <u_k, y - m> u_k,    v_k the variance of the noisy vectors along u_k

(Wiener 1949). It is shorter than x; an attack was trained on vectors of the embedder's length. So the result gets the
length that is estimated for x, or that of y in a store whose vectors are all of one length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from unembed.core.errors import InputError
from unembed.defenses.denoisers import check_vectors

FOLDS = 4
_STEPS = 10  # the smallest eigenvalues of 2,000 to 10,000 vectors of dimension 384 hardly change after so many
_QUIETEST = 128  # one of so many directions, at least two, for the level
_DEVIATIONS = 2.0  # above the expected squared distance: 98 % of the pairs of one vector
_AT_ONCE = 2**24  # distances
_ENOUGH = 2  # rows for each dimension, from which the level is estimated
_EQUAL = 1e-4  # relative spread of lengths that count as equal


class GaussianDenoiser:
    """The posterior mean under a Gaussian prior.

    Args:
        level: Standard deviation of the noise in each dimension; None: estimated from the store.
        rows: At most so many vectors of the store are fitted to.
        releases: Average rows that seem to be one vector with noise of its own each time (see ``averages``).
    """

    def __init__(
        self,
        level: PositiveFloat | None = None,
        rows: Annotated[int, Field(ge=2 * FOLDS)] = 20_000,
        releases: bool = False,
    ) -> None:
        self.given, self.rows, self.releases = level, rows, releases
        self.level = 0.0
        self._spectrum: Spectrum | None = None
        self._store = torch.empty(0)
        self._signal = torch.empty(0)  # variance of the clean vectors in each direction
        self._square, self._steadiness, self._length = 0.0, 0.0, 0.0

    def fit(self, vectors: Tensor) -> None:
        if self.given is None:
            enough = max(_ENOUGH * vectors.shape[1], 2 * FOLDS)
            check_vectors(vectors, enough, "to estimate the noise; give denoiser.level, or a larger store")
        check_vectors(vectors, 2 * FOLDS, "for a covariance")
        spectrum = Spectrum.of(vectors)
        self._spectrum, self.level = spectrum, noise_level(vectors) if self.given is None else self.given
        noise = self.level**2
        self._signal = (spectrum.variances - noise).clamp(min=0.0)
        self._store = vectors.double() if self.releases else self._store
        squares = vectors.double().square().sum(dim=1)
        lengths = squares.sqrt()
        equal = (lengths.max() - lengths.min()).item() <= _EQUAL * lengths.mean().item()
        self._length = lengths.mean().item() if equal else 0.0
        # Squared lengths of the clean vectors: a scalar posterior mean in the same way.
        dimension = vectors.shape[1]
        mean = squares.mean().item() - dimension * noise
        if mean <= 0:
            raise InputError(
                f"denoiser.level={self.level:.3g}: noise of this level alone would be longer than the store's vectors, "
                f"whose root mean square length is {math.sqrt(squares.mean().item()):.3g}"
            )
        spread = squares.var().item()
        of_noise = 2 * dimension * noise**2 + 4 * noise * mean
        self._square = mean
        self._steadiness = max(1 - of_noise / spread, 0.0) if spread > 0 else 0.0

    def __call__(self, vectors: Tensor) -> Tensor:
        if self._spectrum is None:
            raise RuntimeError("call GaussianDenoiser.fit before using it")
        spectrum, noisy = self._spectrum, vectors.cpu().double()
        noise = torch.full((len(noisy), 1), self.level**2, dtype=torch.float64)
        if self.releases:
            noisy, counts = averages(noisy, self._store, self.level)
            noise /= counts[:, None]
        gains = self._signal / (self._signal + noise)
        along = (noisy - spectrum.mean) @ spectrum.directions
        posterior = spectrum.mean + (along * gains.nan_to_num(0.0)) @ spectrum.directions.T
        if self._length:
            wanted = torch.full((len(noisy), 1), self._length, dtype=torch.float64)
        else:
            seen = noisy.square().sum(dim=1, keepdim=True) - noisy.shape[1] * noise
            square = self._square + self._steadiness * (seen - self._square)
            wanted = square.clamp(min=0.0).sqrt()
        lengths = posterior.norm(dim=1, keepdim=True)
        found: Tensor = posterior * (wanted / lengths.where(lengths > 0, 1.0))
        return found.to(vectors)

    def report(self) -> str:
        relative = self.level / (math.sqrt(self._square) or 1.0)
        found = "as given" if self.given is not None else "estimated from the store"
        return (
            f"denoiser=gaussian: noise of {self.level:.3g} in each dimension ({found}), {relative:.3g} relative to the "
            f"length of the vectors without it; {int((self._signal > self.level**2).sum())} of {len(self._signal)} "
            "directions hold more signal than noise"
        )


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Mean, principal directions and variances of vectors, in double precision.

    The variances are cross-validated (Bartz 2016, "Cross-validation based nonlinear shrinkage"): directions are
    computed from one part of the rows, variances in them from the others.

    Attributes:
        mean: (d,).
        directions: Principal directions, the quietest first, (d, d), one a column.
        variances: Variance in each, (d,).
    """

    mean: Tensor
    directions: Tensor
    variances: Tensor

    @classmethod
    def of(cls, vectors: Tensor, folds: int = FOLDS) -> Spectrum:
        """The spectrum of (n, d) vectors, n at least twice ``folds``."""
        rows = vectors.double()
        mean = rows.mean(dim=0)
        rows = rows - mean
        products = [part.T @ part for part in (rows[fold::folds] for fold in range(folds))]
        total = sum(products, torch.zeros_like(products[0]))
        variances = torch.zeros_like(mean)
        for fold, product in enumerate(products):
            directions = torch.linalg.eigh(total - product).eigenvectors
            variances += (directions * (product @ directions)).sum(dim=0) / len(rows[fold::folds]) / folds
        # The mean is that of all rows, so each fold's variance is too small by 1/n.
        return cls(mean, torch.linalg.eigh(total).eigenvectors, variances * len(rows) / (len(rows) - 1))


def noise_level(vectors: Tensor) -> float:
    """Standard deviation of isotropic noise in each dimension of (n, d) vectors, n greater than d.

    Population eigenvalues are searched whose sample eigenvalues would be those of the vectors: in each step, by the
    ratio of the observed to the simulated ones, of a Gaussian sample of n vectors (Bartlett 1933). The level is that of
    the smallest ones; it is too high where no direction is empty of signal.

    Isotropic noise adds its variance to every direction, so the quietest directions of a store show the level: an
    embedder leaves some of them nearly empty. But the eigenvalues of a sample covariance are spread farther apart than
    those of the vectors' distribution (Marchenko and Pastur 1967), so the smallest one shows too little noise, and
    variances in the quietest directions, measured on other rows, show too much, since those directions are mixed with
    louder ones.
    """
    rows = vectors.double()
    count, dimension = rows.shape
    rows = rows - rows.mean(dim=0)
    observed = torch.linalg.eigvalsh(rows.T @ rows / (count - 1)).clamp(min=0.0)
    generator = np.random.default_rng(0)
    factor = np.tril(generator.standard_normal((dimension, dimension)), -1)
    np.fill_diagonal(factor, np.sqrt(generator.chisquare(count - 1 - np.arange(dimension))))
    sample, found = torch.from_numpy(factor), observed.clone()
    for _ in range(_STEPS):
        scaled = found.sqrt()[:, None] * sample
        simulated = torch.linalg.eigvalsh(scaled @ scaled.T / (count - 1))
        found = (found * observed / simulated).where(simulated > 0, 0.0).sort().values
    return math.sqrt(found[: max(2, dimension // _QUIETEST)].mean().item())


def averages(vectors: Tensor, store: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The mean of the rows of ``store``, (m, d), that seem to be releases of the same vector, for each of (n, d).

    Two rows of one vector are apart by noise alone: their squared distance is 2 level^2 times a chi-squared number of d
    degrees of freedom. Rows of different vectors are farther apart by the distance of these, which shows where that is
    well above 2 level^2 sqrt(2d).

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
