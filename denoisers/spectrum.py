"""The spectrum of noisy vectors, and the noise level that it shows.

    found = Spectrum.of(store)           # (n, d)
    noise_level(found)                   # standard deviation of the noise in each dimension

Isotropic noise adds its variance to every direction, so the quietest directions of a store show the level: an embedder
leaves some of them nearly empty. The eigenvalues of a sample covariance are spread too far apart (Marchenko and Pastur
1967): the smallest ones would show too little noise. Cross-validated variances have no such error (Bartz 2016,
"Cross-validation based nonlinear shrinkage"): directions are computed from one part of the rows, variances in them from
the other rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FOLDS = 4
_QUIETEST = 128  # one of so many directions, at least two, for the level


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Mean, principal directions and variances of vectors, in double precision.

    Attributes:
        mean: (d,).
        directions: Principal directions, the quietest first, (d, d), one a column.
        variances: Cross-validated variance in each, (d,).
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
        sizes = [len(rows[fold::folds]) for fold in range(folds)]
        total = sum(products, torch.zeros_like(products[0]))
        variances = torch.zeros_like(mean)
        for product, size in zip(products, sizes, strict=True):
            directions = torch.linalg.eigh(total - product).eigenvectors
            variances += (directions * (product @ directions)).sum(dim=0) / size / folds
        # The mean is that of all rows, so each fold's variance is too small by 1/n.
        return cls(mean, torch.linalg.eigh(total).eigenvectors, variances * len(rows) / (len(rows) - 1))


def noise_level(spectrum: Spectrum) -> float:
    """Standard deviation of isotropic noise in each dimension; too high where no direction is empty of signal."""
    count = max(2, len(spectrum.variances) // _QUIETEST)
    return math.sqrt(max(spectrum.variances.sort().values[:count].mean().item(), 0.0))
