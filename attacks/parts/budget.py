"""The training budget in steps or time, and the share of it that is used.

planned_steps(trainer)       # 1800; None where only the time is limited
training_progress(trainer)   # 0.25 after 450 of 1,800 steps
"""

from __future__ import annotations

import math

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Timer


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
