"""trainer=fsdp: weights, gradients and optimiser states sharded over processes (ZeRO 3), for models beyond one GPU.

Each transformer block is a unit: while one computes, only its weights are whole. The checkpoint is one file, as that of
every other run, so evaluate.py and unembed invert need no sharding.
"""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch.strategies import FSDPStrategy
from torch import nn

from unembed.attacks.parts.optimizers import MuonAdamW
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
