"""Orthogonalisation against the singular values of the polynomials, and Muon against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unembed.attacks.parts import precision
from unembed.attacks.parts.muon import MINIMAX, STANDARD, Iterations, Muon, orthogonalized
from unembed.attacks.parts.precision import Rates


def matrices(rows: int, columns: int, count: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """U (k, m, m), s (m,) from 1 to 1e-3, V^T (k, m, n) of random matrices, in float64."""
    generator = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(count, rows, rows, generator=generator, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(count, columns, rows, generator=generator, dtype=torch.float64))[0]
    return left, torch.logspace(0, -3, rows, dtype=torch.float64), right.mT


def applied(values: Tensor, iterations: Iterations) -> Tensor:
    """The polynomials on singular values, which is what the matrix products come to."""
    order = {"frobenius": 2, "schatten4": 4}[iterations.norm]
    values = values / values.pow(order).sum() ** (1 / order)
    for a, b, c in iterations.coefficients:
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("iterations", [STANDARD, MINIMAX], ids=["standard", "minimax"])
@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (24, 40), (24, 96)])  # the last one by its Gram matrix
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
def test_the_polynomials_are_applied_to_the_singular_values(
    iterations: Iterations, rows: int, columns: int, dtype: torch.dtype, tolerance: float, size: float
) -> None:
    left, values, right = matrices(rows, columns)
    expected = left * applied(values, iterations) @ right
    found = orthogonalized((size * (left * values @ right)).to(dtype), iterations)
    assert found.dtype is dtype
    error = (found.double() - expected).norm() / expected.norm()
    assert error < tolerance


def test_singular_values_end_near_one() -> None:
    values = torch.linspace(MINIMAX_FROM, 1, 5000, dtype=torch.float64)
    for a, b, c in MINIMAX.coefficients:
        values = a * values + b * values**3 + c * values**5
    assert values.min() > 0.5
    assert values.max() < 1.5


MINIMAX_FROM = 0.005


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert torch.equal(orthogonalized(torch.zeros(2, 4, 8)), torch.zeros(2, 4, 8))


@pytest.mark.parametrize(
    ("rates", "tolerance"), [(Rates(100.0, 1.0), 0.03), (Rates(100.0, 400.0), 0.03)], ids=["float32", "bfloat16"]
)
def test_steps_are_those_of_torchs_muon_within_its_rounding(
    monkeypatch: pytest.MonkeyPatch, rates: Rates, tolerance: float
) -> None:
    monkeypatch.setattr(precision, "measured", lambda device: rates)
    shapes = [(16, 16), (16, 48), (48, 16), (16, 48), (10, 16)]
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    mine = Muon(ours, lr=0.02, momentum=0.9, weight_decay=0.1, iterations=STANDARD)
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=0.1)
    for _ in range(4):
        for left, right in zip(ours, theirs, strict=True):
            left.grad = torch.randn(left.shape, generator=generator)
            right.grad = left.grad.clone()
        mine.step()
        reference.step()
    for before, left, right in zip(start, ours, theirs, strict=True):
        moved = (right.detach() - before).norm()
        assert (left.detach() - right.detach()).norm() < tolerance * moved
        assert torch.equal(mine.state[left]["momentum_buffer"], reference.state[right]["momentum_buffer"])


def test_matrices_without_a_gradient_stay() -> None:
    still, moving = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    moving.grad = torch.eye(4)
    Muon([still, moving], lr=0.1).step()
    assert torch.equal(still, torch.ones(4, 4))
    assert not torch.equal(moving, torch.ones(4, 4))
