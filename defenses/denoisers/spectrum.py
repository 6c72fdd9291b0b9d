"""The spectrum of noisy vectors, and the noise level that it shows.

    found = Spectrum.of(store)           # (n, d)
    noise_level(store)                   # standard deviation of the noise in each dimension

Isotropic noise adds its variance to every direction, so the quietest directions of a store show the level: an embedder
leaves some of them nearly empty. But the eigenvalues of a sample covariance are spread farther apart than those of the
vectors' distribution (Marchenko and Pastur 1967), so the smallest one shows too little noise, and variances in the
quietest directions, measured on other rows, show too much, since those directions are mixed with louder ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FOLDS = 4
_STEPS = 10  # the smallest eigenvalues of 2,000 to 10,000 vectors of dimension 384 hardly change after so many
_QUIETEST = 128  # one of so many directions, at least two, for the level


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
