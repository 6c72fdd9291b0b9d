"""Memory of a training without activations: weights, gradients, optimiser state.

parameters: 361,902,080, trained 7,078,912 (1.96 %); memory without activations: 1.53 GB (weights 1.45 GB, gradients
28.3 MB, optimiser 56.6 MB)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.attacks.parts.muon import Muon
from unembed.attacks.parts.optimizers import JointOptimizer


@dataclass(frozen=True, slots=True)
class Footprint:
    """Numbers of parameters, and bytes on one device."""

    parameters: int
    trained: int
    weights: int
    gradients: int
    optimizer: int

    def __str__(self) -> str:
        total = self.weights + self.gradients + self.optimizer
        share = 100 * self.trained / self.parameters if self.parameters else 0.0
        return (
            f"parameters: {self.parameters:,}, trained {self.trained:,} ({share:.3g} %); "
            f"memory without activations: {_size(total)} "
            f"(weights {_size(self.weights)}, gradients {_size(self.gradients)}, optimiser {_size(self.optimizer)})"
        )


def footprint(module: nn.Module, optimizers: Sequence[Optimizer]) -> Footprint:
    """Count what ``module`` and its optimisers need; tied weights count once.

    The optimiser's state is an estimate, since it is made in its first step: one number a trained weight for Muon, two
    for Adam and its kin. Copies that mixed precision makes come with the activations.
    """
    parameters = list(module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return Footprint(
        parameters=sum(map(_count, parameters)),
        trained=sum(map(_count, trained)),
        weights=sum(map(_bytes, parameters)) + sum(map(_bytes, module.buffers())),
        gradients=sum(map(_bytes, trained)),
        optimizer=sum(map(_state, optimizers)),
    )


def _count(parameter: Tensor) -> int:
    # bitsandbytes packs two 4-bit weights into a byte; nothing else is a parameter of bytes.
    return parameter.numel() * (2 if parameter.dtype == torch.uint8 else 1)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _state(optimizer: Optimizer) -> int:
    if isinstance(optimizer, JointOptimizer):
        return sum(map(_state, optimizer.parts))
    moments = 1 if isinstance(optimizer, Muon) else 2
    return moments * sum(_bytes(parameter) for group in optimizer.param_groups for parameter in group["params"])


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 999.5:  # else three digits would show it as 1e+03
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
