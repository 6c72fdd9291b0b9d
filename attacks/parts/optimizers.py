"""Optimisers behind one torch Optimizer object, and the learning-rate schedule over steps or time.

    optimizer = MuonAdamW(muon_lr=1.2e-2, adamw_lr=3e-3).build(module)
    schedule(progress=0.5, step=4_000, warmup_steps=200)             # 0.5
    schedule(progress=0.5, step=4_000, warmup_steps=200, decay="constant")  # 1.0

Lightning gives clipping, accumulation and a right step count to one optimiser only, so Muon and AdamW stand behind one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities import rank_zero_warn
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn
from torch.optim import Optimizer

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


@dataclass
class AdamW:
    """Plain AdamW for all parameters; the choice for pretrained models, and under FSDP and DeepSpeed."""

    lr: PositiveFloat = 3e-4
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    warmup_steps: NonNegativeInt = 0
    decay: Decay = "linear"

    def build(self, module: nn.Module) -> Optimizer:
        """Weight decay falls on matrices only."""
        parameters = [p for p in module.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        options: dict[str, Any] = {"lr": self.lr, "betas": tuple(self.betas), "eps": self.eps}  # YAML gives a list
        if any(parameter.device.type != "cpu" for parameter in parameters):
            return torch.optim.AdamW(groups, **options)
        # Fused: one pass over the weights instead of a dozen. Lightning would not clip the gradients of an optimiser
        # that offers to unscale them itself, as a fused one does; JointOptimizer makes no such offer.
        return JointOptimizer([torch.optim.AdamW(groups, **options, fused=True)])


@dataclass
class MuonAdamW:
    """Muon on the hidden matrices, AdamW on embeddings, output heads, biases and norms.

    Muon (Jordan et al. 2024) orthogonalises the momentum of a matrix by Newton-Schulz iterations. Made for models that
    start from random weights. ``newton_schulz`` is ``minimax``, three iterations, or ``standard``, the five of
    torch.optim.Muon; ``weight_decay`` is of the hidden matrices, ``betas`` are AdamW's.
    """

    muon_lr: PositiveFloat = 1.2e-2
    adamw_lr: PositiveFloat = 3e-3
    momentum: Fraction = 0.95
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.01
    newton_schulz: Literal["minimax", "standard"] = "minimax"
    warmup_steps: NonNegativeInt = 100
    decay: Decay = "linear"

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
            iterations = {"minimax": MINIMAX, "standard": STANDARD}[self.newton_schulz]
            parts.append(Muon(matrices, self.muon_lr, self.momentum, self.weight_decay, iterations))
        if others:
            betas = (self.betas[0], self.betas[1])  # YAML gives a list
            parts.append(torch.optim.AdamW(others, lr=self.adamw_lr, betas=betas, weight_decay=0.0, fused=True))
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

    @property
    def state(self) -> Any:
        """The parts' states as one mapping, by whose values Lightning moves them to a device."""
        return {parameter: state for part in self.parts for parameter, state in part.state.items()}

    @state.setter
    def state(self, state: Any) -> None:
        """Torch sets an empty one."""

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


# -- Muon, with batched orthogonalisation in the type that the device multiplies fast
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


# Those of torch.optim.Muon: one polynomial five times.
STANDARD = Iterations(((3.4445, -4.775, 2.0315),) * 5, "frobenius")
# Three iterations that leave every singular value of 0.005 or more between 0.5 and 1.5, where Muon needs them. Each
# polynomial is the one of degree 5 whose largest distance to 1 is smallest on the interval that the singular values
# are in by then, from [0.005, 1] on (the construction of Amsel et al. 2025, "The Polar Express").
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
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
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


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


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
