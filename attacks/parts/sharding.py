"""trainer=fsdp: weights, gradients and optimiser states sharded over processes (ZeRO 3), for models beyond one GPU.

Each transformer block is a unit: while one computes, only its weights are whole. The checkpoint is one file, as that of
every other run, so evaluate.py and unembed invert need no sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.attacks.parts.optimizers import JointOptimizer, Muon, MuonAdamW
from unembed.core.errors import InputError

# What the blocks of language models are called: GPT2Block, T5Block, OPTDecoderLayer, LlamaDecoderLayer, ...
_BLOCKS = ("Block", "DecoderLayer", "EncoderLayer")


class Sharded(FSDPStrategy):
    """Lightning's FSDP with a unit a transformer block, and whole checkpoints."""

    def __init__(
        self,
        sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"] = "FULL_SHARD",
        cpu_offload: bool = False,
    ) -> None:
        super().__init__(
            auto_wrap_policy=is_block,
            sharding_strategy=sharding_strategy,
            cpu_offload=cpu_offload,
            state_dict_type="full",
            use_orig_params=True,
        )


def is_block(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """FSDP's auto-wrap policy: whether to recurse into a module (``recurse``), or whether to make it a unit."""
    return recurse or type(module).__name__.endswith(_BLOCKS)


def is_sharded(strategy: Any) -> bool:
    """Whether a forward pass takes all processes at once, so that each cannot decode texts of its own."""
    return isinstance(strategy, FSDPStrategy)


def check_sharding(strategy: Any, attack: nn.Module) -> None:
    if is_sharded(strategy) and any(isinstance(value, MuonAdamW) for value in vars(attack).values()):
        raise InputError(
            "attack.optimizer=muon: Muon needs whole matrices, and trainer=fsdp cuts them; take attack/optimizer=adamw"
        )


class Footprint(NamedTuple):
    """Numbers of parameters, and bytes on one device."""

    parameters: int
    trained: int
    weights: int
    gradients: int
    optimizer: int

    def __str__(self) -> str:
        share = 100 * self.trained / max(1, self.parameters)
        weights, gradients, optimizer = map(_size, self[2:])
        return (
            f"parameters: {self.parameters:,}, trained {self.trained:,} ({share:.3g} %); memory without activations: "
            f"{_size(sum(self[2:]))} (weights {weights}, gradients {gradients}, optimiser {optimizer})"
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
