"""Fine-tuning methods of a pretrained language model: full fine-tuning, LoRA, QLoRA.

adapter = LoRA(rank=16, modules=["c_attn"])
adapter.check(backbone)                                          # has the model such modules?
model = adapter.model(backbone, artifacts, weights=True, device=device)
adapter.frozen                                                   # True: checkpoints hold what was added, nothing else
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import torch
from lightning.pytorch.utilities import rank_zero_info
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from unembed.attacks.parts.backbones import Backbone, Dropout, Pretrained
from unembed.attacks.parts.precision import fast_dtype
from unembed.core.errors import InputError, did_you_mean

ALL_LINEAR: Literal["all-linear"] = "all-linear"


class Adapter(Protocol):
    """Prepares a language model for training.

    Attributes:
        frozen: Whether the pretrained weights are frozen. Checkpoints then omit them, and they are loaded from their
            source.
    """

    frozen: bool

    def check(self, backbone: Backbone) -> None:
        """Check that the adapter fits the backbone, by its configuration only."""
        ...

    def model(self, backbone: Backbone, artifacts: Path, *, weights: bool, device: torch.device) -> Any:
        """The backbone's model; frozen weights have ``requires_grad`` False.

        Args:
            backbone: Where the model comes from.
            artifacts: Where ``backbone.prepare`` wrote.
            weights: False where a checkpoint will be loaded over it.
            device: Where the model will run.
        """
        ...


class FullFineTuning:
    """All weights are trained, and all are in the checkpoint: what Zhu et al. (2024) do."""

    frozen = False

    def check(self, backbone: Backbone) -> None:
        """Goes with any backbone."""

    def model(self, backbone: Backbone, artifacts: Path, *, weights: bool, device: torch.device) -> Any:
        return backbone.model(artifacts, weights=weights)


@dataclass
class LoRA:
    """Low-rank matrices beside linear layers are trained, the layers themselves are not (Hu et al. 2021).

    A layer W becomes W + alpha / rank * B A, with A (rank, in) initialised randomly and B (out, rank) with zeros. A and
    B are float32 for any precision of the model.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: Dropout = 0.05
    modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = ALL_LINEAR

    frozen = True

    def check(self, backbone: Backbone) -> None:
        """See :class:`Adapter`; no weights are read for it."""
        known = layers(_pretrained(backbone).skeleton())
        for name in [] if self.modules == ALL_LINEAR else self.modules:
            if not any(path == name or path.endswith(f".{name}") for path in known):
                near = did_you_mean(name, {path.rpartition(".")[2] for path in known} | {ALL_LINEAR})
                raise InputError(
                    f"attack.adapter.modules: {_pretrained(backbone).name} has no linear layer {name}: {near}"
                )

    def model(self, backbone: Backbone, artifacts: Path, *, weights: bool, device: torch.device) -> Any:
        """See :class:`Adapter`. The model's own weights are read even where a checkpoint follows: it lacks them."""
        from peft import LoraConfig, inject_adapter_in_model

        model = self.base(_pretrained(backbone), device)
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=self.modules,
            fan_in_fan_out=any(_transposed(layer) for layer in layers(model).values()),
        )
        adapted = inject_adapter_in_model(config, model)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        return adapted

    def base(self, backbone: Pretrained, device: torch.device) -> Any:
        return backbone.pretrained()


@dataclass
class QLoRA(LoRA):
    """LoRA over a model whose own linear layers are kept in 4 bits (Dettmers et al. 2023): NF4, with the scales of its
    blocks quantised as well, multiplied in the type that the device multiplies fast.

    Without a CUDA device the layers stay as they are, and all the rest is the same: LoRA.
    """

    quantize_on_cpu: bool = False

    def base(self, backbone: Pretrained, device: torch.device) -> Any:
        if device.type != "cuda" and not self.quantize_on_cpu:
            rank_zero_info(
                f"attack.adapter: no 4-bit weights on {device.type}: the model stays in {backbone.dtype}, "
                "and LoRA is trained without quantisation"
            )
            return super().base(backbone, device)
        from transformers import BitsAndBytesConfig

        four_bits = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=fast_dtype(str(device)),
        )
        model = backbone.pretrained(quantization_config=four_bits, device_map={"": device})
        for layer in layers(model).values():
            # For evaluation on some CPUs, bitsandbytes reorders the weights for good, and they cannot be trained again.
            layer.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
        return model


def layers(model: Any) -> dict[str, nn.Module]:
    """The linear layers of a model by their names; GPT-2 calls its own, which are transposed, Conv1D."""
    return {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear) or _transposed(part)}


def _transposed(layer: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, Conv1D)


def _pretrained(backbone: Backbone) -> Pretrained:
    if isinstance(backbone, Pretrained) and not backbone.random_weights:
        return backbone
    raise InputError(
        "attack/adapter: an adapter is trained beside pretrained weights, and this backbone has random ones; take "
        "attack/adapter=none, or a pretrained model by attack=llm attack.backbone.name=<hub name or folder>"
    )
