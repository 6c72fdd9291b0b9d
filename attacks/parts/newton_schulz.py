"""Orthogonalisation of matrices by Newton-Schulz iterations, many matrices of one shape in one batched product.

    orthogonalized(momenta, MINIMAX)       # (k, m, n), m <= n -> (k, m, n), singular values near 1

Muon (Jordan et al. 2024) moves a weight matrix along its momentum with all singular values set to about 1. An iteration
X <- a X + b (X X^T) X + c (X X^T)^2 X applies the odd polynomial a s + b s^3 + c s^5 to each singular value s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

_TINY = 1e-7


@dataclass(frozen=True, slots=True)
class Iterations:
    """Which polynomials are applied, and how a matrix is scaled before, so that no singular value is above 1.

    Attributes:
        coefficients: (a, b, c) of each iteration.
        norm: What a matrix is divided by. ``frobenius`` is the root of the sum of s^2; ``schatten4`` is the fourth root
            of the sum of s^4, which is closer to the largest singular value and leaves the iterations less to do.
    """

    coefficients: tuple[tuple[float, float, float], ...]
    norm: Literal["frobenius", "schatten4"]


STANDARD = Iterations(((3.4445, -4.775, 2.0315),) * 5, "frobenius")
"""Those of torch.optim.Muon: one polynomial five times."""

MINIMAX = Iterations(((8.2987, -24.4305, 18.0903), (3.9152, -2.9211, 0.5592), (3.1746, -2.3804, 0.4978)), "schatten4")
"""Three iterations that leave every singular value of 0.005 or more between 0.5 and 1.5, where Muon needs them.

Each polynomial is the one of degree 5 whose largest distance to 1 is smallest on the interval that the singular values
are in by then, from [0.005, 1] on (the construction of Amsel et al. 2025, "The Polar Express").
"""


def orthogonalized(matrices: Tensor, iterations: Iterations = MINIMAX) -> Tensor:
    """Matrices (k, m, n) with m <= n, in float32 or bfloat16, with all singular values moved towards 1.

    In float32 the polynomials of wide matrices are evaluated on the (m, m) Gram matrices, and the (m, n) matrices are
    multiplied twice instead of twice an iteration. In bfloat16 that would lose too many digits.
    """
    _, m, n = matrices.shape
    gram = matrices @ matrices.mT
    if iterations.norm == "frobenius":
        squared = gram.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.float32)
    else:
        squared = torch.linalg.vector_norm(gram, dim=(-2, -1), dtype=torch.float32)
    scale = squared.sqrt_().clamp_min_(_TINY)[:, None, None]
    gram.div_(scale.square())
    if matrices.dtype is torch.float32 and n >= 2 * m:
        return _polynomial(gram, iterations).div_(scale) @ matrices
    matrices = matrices / scale.to(matrices.dtype)
    for number, (a, b, c) in enumerate(iterations.coefficients):
        if number:
            gram = matrices @ matrices.mT
        update = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        matrices = torch.baddbmm(matrices, update, matrices, beta=a)
    return matrices


def _polynomial(gram: Tensor, iterations: Iterations) -> Tensor:
    """The matrices Q (k, m, m) for which Q X is X after all iterations, from the Gram matrices X X^T (k, m, m)."""
    last = len(iterations.coefficients) - 1
    product: Tensor | None = None
    for number, (a, b, c) in enumerate(iterations.coefficients):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else factor @ product
        if number < last:
            gram = factor @ (factor @ gram)  # all of these are polynomials in one matrix, so they commute
    assert product is not None
    return product
