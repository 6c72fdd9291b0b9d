"""How fast a long run goes and when it will end: a bar where somebody watches, and a line a minute in the log.

training: step 1,840 (epoch 12), 812 texts a second, loss 2.314, about 3 min 20 s left, 3.1 GB of GPU memory
testing: 96 of 500 batches, 41 texts a second, about 12 min 05 s left
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer, TQDMProgressBar
from pydantic import NonNegativeInt, PositiveFloat

from embedders.progress import duration

log = logging.getLogger("train")


class TerminalBar(TQDMProgressBar):
    """Lightning's bar, where there is a terminal; in a file it would be thousands of lines."""

    def __init__(self, refresh_rate: NonNegativeInt = 10) -> None:
        super().__init__(refresh_rate=refresh_rate)
        if not sys.stdout.isatty():
            self.disable()


class Pace(Callback):
    """Logs the pace of training and testing every ``every_seconds``.

    The time left is what the past pace makes of the work to come: of the steps, epochs or minutes that end a training,
    whichever comes first, and of the batches of a test, whose texts come in no order of length. Batches that a killed
    test had finished count as done, not as fast.
    """

    def __init__(self, every_seconds: PositiveFloat = 60.0) -> None:
        self.every_seconds = every_seconds
        self.began = self.told = 0.0
        self.texts = self.steps_before = self.worked = 0
        self.spent = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start()
        self.steps_before = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Say how training goes, when it is time."""
        self.texts += len(batch["index"]) * trainer.world_size
        elapsed = time.monotonic() - self.began
        if not self._is_time():
            return
        loss = trainer.callback_metrics.get("train/loss")
        parts = [
            f"step {trainer.global_step:,} (epoch {trainer.current_epoch})",
            _rate(self.texts, elapsed),
            *([] if loss is None else [f"loss {loss.item():.3f}"]),
            *self._left(self._training_left(trainer, elapsed)),
            *_memory(pl_module.device),
        ]
        if trainer.is_global_zero:
            log.info("training: %s", ", ".join(parts))

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start()
        self.worked, self.spent = 0, 0.0

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Take the time."""
        self.batch_began = time.monotonic()

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Say how testing goes, when it is time."""
        took = time.monotonic() - self.batch_began
        if took >= 0.5 * outputs["seconds"]:  # else it was finished in an earlier session
            self.worked, self.spent = self.worked + 1, self.spent + took
            self.texts += len(batch["index"]) * trainer.world_size
        if not self._is_time() or not self.worked:
            return
        total = int(trainer.num_test_batches[dataloader_idx])
        left = self.spent / self.worked * (total - batch_idx - 1)
        parts = [
            f"{batch_idx + 1:,} of {total:,} batches",
            _rate(self.texts, self.spent),
            *self._left(left),
            *_memory(pl_module.device),
        ]
        if trainer.is_global_zero:
            log.info("testing: %s", ", ".join(parts))

    def _start(self) -> None:
        self.began = self.told = time.monotonic()
        self.texts = 0

    def _is_time(self) -> bool:
        if time.monotonic() - self.told < self.every_seconds:
            return False
        self.told = time.monotonic()
        return True

    def _training_left(self, trainer: Trainer, elapsed: float) -> float | None:
        """Seconds until the first limit is reached; None without one."""
        steps = trainer.global_step - self.steps_before
        limits = []
        if trainer.max_steps > 0:
            limits.append(trainer.max_steps - trainer.global_step)
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            a_pass = trainer.num_training_batches / trainer.accumulate_grad_batches
            limits.append(int(trainer.max_epochs * a_pass) - trainer.global_step)
        left = [elapsed / steps * max(limit, 0) for limit in limits if steps]
        timers = (callback for callback in trainer.callbacks if isinstance(callback, Timer))  # type: ignore[attr-defined]
        left += [remaining for timer in timers if (remaining := timer.time_remaining()) is not None]
        return min(left, default=None)

    def _left(self, seconds: float | None) -> list[str]:
        return [] if seconds is None else [f"about {duration(seconds)} left"]


def _rate(texts: int, seconds: float) -> str:
    rate = texts / max(seconds, 1e-9)
    return f"{rate:,.0f} texts a second" if rate >= 10 else f"{rate:.1f} texts a second"


def _memory(device: torch.device) -> list[str]:
    """The most that was in use on a GPU so far; nothing on the CPU."""
    return [f"{torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB of GPU memory"] if device.type == "cuda" else []
