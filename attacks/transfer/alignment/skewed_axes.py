"""The directions along which vectors are most skewed: axes that two spaces of like texts share, up to their order.

    axes = SkewedAxes.of(vectors, generator)      # (n, r)
    axes.values                               # (n, r): coordinates, each of mean 0, variance 1 and positive skewness
    axes.directions                           # (r, r): unit vectors, vectors are sums of them by values

Few texts are of a subject and most are not, so a subject's direction is skewed: independent component analysis
(Hyvärinen 1999, FastICA, symmetric, with the square as its function) finds it in every space, where principal
components of like variance mix (Yamagiwa, Oyama, Shimodaira 2023, "Discovering universal geometry in embeddings with
ICA").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STEPS, CONVERGED = 60, 1e-3
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
        for _ in range(STEPS):
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
