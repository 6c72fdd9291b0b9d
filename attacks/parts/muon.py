"""Muon with batched orthogonalisation in the type that the device multiplies fast.

Muon(matrices, lr=1.2e-2, momentum=0.95, weight_decay=0.3).step()
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.attacks.parts.precision import fast_dtype

_LARGEST = 2**25  # numbers that are stacked at once: more takes memory, and large products gain nothing from it


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


MINIMAX = Iterations(((8.2987, -24.4305, 18.0903), (3.9152, -2.9211, 0.5592), (3.1746, -2.3804, 0.4978)), "schatten4")


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) on matrices: Nesterov momentum, orthogonalised, with decoupled weight decay.

    The update, the scaling of the learning rate by sqrt(max(1, rows / columns)) and the state are those of
    torch.optim.Muon. That one multiplies in bfloat16 on every device, one matrix after the other.

    Attributes:
        dtype: In which matrices are multiplied; None: the one that their device multiplies fast. Processes that train
            one model together must agree on it.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        iterations: Iterations = MINIMAX,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.iterations = iterations
        self.dtype: torch.dtype | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[Any, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike[parameter.device, parameter.dtype, *sorted(parameter.shape)].append(parameter)
            for parameters in alike.values():
                size = max(1, _LARGEST // parameters[0].numel())
                for begin in range(0, len(parameters), size):
                    self._step(parameters[begin : begin + size], group)
        return loss

    def _step(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """One step of matrices that have the same shape, once the longer side lies across."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        momenta = [self._momentum(parameter) for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        first = _wide(ahead[0])
        stacked = first.new_empty(len(ahead), *first.shape, dtype=self.dtype or fast_dtype(str(first.device)))
        torch._foreach_copy_(list(stacked.unbind()), [_wide(update) for update in ahead])
        directions = orthogonalized(stacked, self.iterations)
        for parameter, direction in zip(parameters, directions, strict=True):
            rows, columns = parameter.shape
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            oriented = direction.mT if rows > columns else direction
            parameter.add_(oriented, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _wide(matrix: Tensor) -> Tensor:
    """The matrix, transposed where it has more rows than columns."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


"""Those of torch.optim.Muon: one polynomial five times."""

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
