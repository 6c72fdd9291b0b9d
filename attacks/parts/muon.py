"""Muon with batched orthogonalisation in the type that the device multiplies fast.

Muon(matrices, lr=1.2e-2, momentum=0.95, weight_decay=0.3).step()
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.attacks.parts.newton_schulz import MINIMAX, Iterations, orthogonalized
from unembed.attacks.parts.precision import fast_dtype

_LARGEST = 2**25  # numbers that are stacked at once: more takes memory, and large products gain nothing from it


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) on matrices: Nesterov momentum, orthogonalised, with decoupled weight decay.

    The update, the scaling of the learning rate by sqrt(max(1, rows / columns)) and the state are those of
    torch.optim.Muon. That one multiplies in bfloat16 on every device, one matrix after the other.

    Args:
        matrices: Two-dimensional parameters.
        lr: Learning rate.
        momentum: Share of the momentum that is kept at each step.
        weight_decay: Decoupled weight decay.
        iterations: Of Newton-Schulz.

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
        """One step of all matrices that have a gradient."""
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
