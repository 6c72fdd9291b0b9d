"""Optimisers behind one torch Optimizer object, and the learning-rate schedule over steps or time.

    optimizer = MuonAdamW(muon_lr=1.2e-2, adamw_lr=3e-3).build(module)
    schedule(progress=0.5, step=4_000, warmup_steps=200)             # 0.5
    schedule(progress=0.5, step=4_000, warmup_steps=200, decay="constant")  # 1.0

Lightning gives clipping, accumulation and a right step count to one optimiser only, so Muon and AdamW stand behind one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities import rank_zero_warn
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.attacks.parts.muon import MINIMAX, STANDARD, Muon
from unembed.attacks.parts.precision import fast_dtype

Fraction = Annotated[float, Field(ge=0, lt=1)]
Decay = Literal["linear", "constant"]


class OptimizerSettings(Protocol):
    """Makes an optimiser for a module once its parameters exist.

    Attributes:
        warmup_steps: Steps over which the learning rate rises linearly from 0.
        decay: Of the learning rate after that: ``linear`` to 0 at the end of the budget, or ``constant``, none.
    """

    warmup_steps: int
    decay: Decay

    def build(self, module: nn.Module) -> Optimizer: ...


class AdamW:
    """Plain AdamW for all parameters; the choice for pretrained models, and under FSDP and DeepSpeed."""

    def __init__(
        self,
        lr: PositiveFloat = 3e-4,
        betas: tuple[Fraction, Fraction] = (0.9, 0.999),
        eps: PositiveFloat = 1e-8,
        weight_decay: NonNegativeFloat = 0.01,
        warmup_steps: NonNegativeInt = 0,
        decay: Decay = "linear",
    ) -> None:
        self.lr, self.betas, self.eps, self.weight_decay = lr, (betas[0], betas[1]), eps, weight_decay
        self.warmup_steps, self.decay = warmup_steps, decay

    def build(self, module: nn.Module) -> Optimizer:
        """Weight decay falls on matrices only."""
        parameters = [p for p in module.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if any(parameter.device.type != "cpu" for parameter in parameters):
            return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps)
        # Fused: one pass over the weights instead of a dozen. Lightning would not clip the gradients of an optimiser
        # that offers to unscale them itself, as a fused one does; JointOptimizer makes no such offer.
        return JointOptimizer([torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)])


class MuonAdamW:
    """Muon on the hidden matrices, AdamW on embeddings, output heads, biases and norms.

    Muon (Jordan et al. 2024) orthogonalises the momentum of a matrix by Newton-Schulz iterations. Made for models that
    start from random weights. ``newton_schulz`` is ``minimax``, three iterations, or ``standard``, the five of
    torch.optim.Muon; ``weight_decay`` is of the hidden matrices, ``betas`` are AdamW's.
    """

    def __init__(
        self,
        muon_lr: PositiveFloat = 1.2e-2,
        adamw_lr: PositiveFloat = 3e-3,
        momentum: Fraction = 0.95,
        betas: tuple[Fraction, Fraction] = (0.9, 0.95),
        weight_decay: NonNegativeFloat = 0.01,
        newton_schulz: Literal["minimax", "standard"] = "minimax",
        warmup_steps: NonNegativeInt = 100,
        decay: Decay = "linear",
    ) -> None:
        self.muon_lr, self.adamw_lr, self.momentum = muon_lr, adamw_lr, momentum
        self.betas = (betas[0], betas[1])  # YAML gives a list
        self.weight_decay, self.warmup_steps, self.decay = weight_decay, warmup_steps, decay
        self.iterations = {"minimax": MINIMAX, "standard": STANDARD}[newton_schulz]

    def build(self, module: nn.Module) -> Optimizer:
        """Split the parameters: two-dimensional ones that are no embedding, and the rest."""
        embeddings = {
            id(parameter)
            for part in module.modules()
            if isinstance(part, nn.Embedding)
            for parameter in part.parameters(recurse=False)
        }
        heads = {id(parameter) for name, parameter in module.named_parameters() if name.endswith("lm_head.weight")}
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        matrices = [p for p in trained if p.ndim == 2 and id(p) not in embeddings | heads]
        hidden = set(map(id, matrices))
        others = [parameter for parameter in trained if id(parameter) not in hidden]
        parts: list[Optimizer] = []
        if matrices:
            parts.append(Muon(matrices, self.muon_lr, self.momentum, self.weight_decay, self.iterations))
        if others:
            parts.append(torch.optim.AdamW(others, lr=self.adamw_lr, betas=self.betas, weight_decay=0.0, fused=True))
        return JointOptimizer(parts)


class JointOptimizer(Optimizer):
    """Several optimisers over disjoint parameters as one: one ``step``, one state dict, all parameter groups."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        # A scheduler and a clipper write into param_groups: they must be the very dicts that the parts read.
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = _Joined(self.parts)  # type: ignore[assignment]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the parts, then share their (new) parameter groups again."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share()


class _Joined(dict[Tensor, Any]):
    """The parts' states seen as one mapping; Lightning walks over its values to move them to a device."""

    def __init__(self, parts: list[Optimizer]) -> None:
        super().__init__()
        self.parts = parts

    def __getitem__(self, parameter: Tensor) -> Any:
        return dict(self.items())[parameter]

    def __len__(self) -> int:
        return len(self.items())

    def items(self) -> Any:
        return [pair for part in self.parts for pair in part.state.items()]

    def values(self) -> Any:
        return [state for part in self.parts for state in part.state.values()]


def schedule(progress: float, step: int, warmup_steps: int, decay: Decay = "linear") -> float:
    """Factor on the learning rate: linear warm-up over ``warmup_steps``, and linear decay to 0 at ``progress`` 1 unless
    ``decay`` is ``constant``."""
    warmup = min(1.0, (step + 1) / (warmup_steps + 1))
    return warmup * (max(0.0, 1.0 - progress) if decay == "linear" else 1.0)


def scheduled(settings: OptimizerSettings, module: LightningModule) -> Any:
    """What ``configure_optimizers`` returns: one optimiser, its learning rate set every step, by default from the share
    of the training budget that is used."""
    optimizer = settings.build(module)
    if any(p.requires_grad and p.dtype in (torch.bfloat16, torch.float16) for p in module.parameters()):
        rank_zero_warn(
            f"trainer.precision={module.trainer.precision}: the weights that are trained have 16 bits, in which "
            "AdamW's second moment cannot decay and small steps are lost; bf16-mixed keeps them in float32"
        )
    for part in optimizer.parts if isinstance(optimizer, JointOptimizer) else []:
        if isinstance(part, Muon):  # measured by each process: near the threshold they could differ
            strategy = module.trainer.strategy
            part.dtype = strategy.broadcast(fast_dtype(str(strategy.root_device)))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule(training_progress(module.trainer), step, settings.warmup_steps, settings.decay)
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def planned_steps(trainer: Trainer) -> int | None:
    """Optimiser steps after which ``max_steps`` or ``max_epochs`` ends the training, whichever comes first."""
    limits = []
    if trainer.max_steps > 0:
        limits.append(trainer.max_steps)
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        batches = trainer.num_training_batches  # infinite before the data are there
        if math.isfinite(batches):  # the last batches of an epoch make a step, however few they are
            limits.append(max(1, trainer.max_epochs * math.ceil(batches / trainer.accumulate_grad_batches)))
    return min(limits, default=None)


def timer(trainer: Trainer) -> Timer | None:
    """What ends the training after ``max_time``; None without such a limit."""
    timers = (callback for callback in trainer.callbacks if isinstance(callback, Timer))  # type: ignore[attr-defined]
    return next((found for found in timers if found.time_remaining() is not None), None)


def training_progress(trainer: Trainer) -> float:
    """Share of the training budget that is used, 0 to 1; 0 without a budget. All ranks call this together.

    With a planned number of steps, progress is counted in steps, so that the learning rate does not depend on the speed
    of the machine; an additional time limit only stops the training early. Without planned steps, progress is the
    elapsed time, averaged over ranks so that all have the same learning rate.
    """
    share = own_progress(trainer)
    if trainer.world_size > 1 and planned_steps(trainer) is None:  # on the device: nccl reduces nothing else
        local = torch.tensor(share, device=trainer.strategy.root_device)
        share = float(trainer.strategy.reduce(local, reduce_op="mean"))
    return share


def own_progress(trainer: Trainer) -> float:
    """The share that is used by this rank's own clock, where time counts; asks no other rank."""
    steps, clock = planned_steps(trainer), timer(trainer)
    if steps is not None:
        return min(1.0, trainer.global_step / steps)
    if clock is None:
        return 0.0
    elapsed, remaining = clock.time_elapsed(), clock.time_remaining()
    assert remaining is not None
    return min(1.0, elapsed / max(elapsed + remaining, 1e-9))


def cut_short(trainer: Trainer) -> bool:
    """Whether ``max_time`` ended the training before its planned steps."""
    steps, clock = planned_steps(trainer), timer(trainer)
    if steps is None or clock is None or trainer.global_step >= steps:
        return False
    remaining = clock.time_remaining()
    return remaining is not None and remaining <= 0
