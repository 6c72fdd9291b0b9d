"""Speed and remaining time of a long run: a progress bar on a terminal, and lines in the log.

training: 46 %, step 840 of 1,800 (epoch 3), 812 texts a second, loss 2.314, about 1 min 15 s left, 3.1 GB of GPU memory
testing: 19 %, 96 of 500 batches, 41 texts a second, about 12 min 05 s left
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from pydantic import NonNegativeInt, PositiveFloat

from unembed.attacks.parts.optimizers import own_progress, planned_steps, timer
from unembed.core.progress import duration

log = logging.getLogger("train")


class TerminalBar(TQDMProgressBar):
    """Lightning's progress bar on a terminal: one over all planned steps instead of one an epoch, and one for the test.

    It is not shown if the output is a file. Validation has no bar of its own. Lightning's bars only know epochs, so
    they cannot estimate the end of a training that is limited in steps or minutes.

    Args:
        refresh_rate: Test batches between two updates.
        seconds: Seconds between two updates in training.
    """

    def __init__(self, refresh_rate: NonNegativeInt = 1, seconds: PositiveFloat = 0.5) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self.seconds = seconds
        self.drawn = 0.0
        if not sys.stdout.isatty():
            self.disable()

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Start at the step of the checkpoint, so that earlier steps do not count for the rate."""
        super().on_train_start(trainer, *_)
        bar = self.train_progress_bar
        bar.unit, bar.total, bar.initial = " steps", planned_steps(trainer), trainer.global_step
        self._draw(trainer, "training")

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Keep the bar of the previous epochs."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar to the current step."""
        if self.is_enabled and time.monotonic() - self.drawn >= self.seconds:
            self._draw(trainer, "training")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the bar for the next epoch."""

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Leave the bar at the step where training ended."""
        self._draw(trainer, "trained")
        super().on_train_end(trainer, *_)

    def init_validation_tqdm(self) -> Tqdm:
        """Return no bar of its own for validation during training."""
        return Tqdm(disable=True) if self.trainer.state.fn == "fit" else super().init_validation_tqdm()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show in the training bar that validation runs."""
        super().on_validation_start(trainer, pl_module)
        if trainer.state.fn == "fit":
            self._draw(trainer, "validating")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the validation loss."""
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn == "fit":
            self._draw(trainer, "training")

    def init_test_tqdm(self) -> Tqdm:
        """The bar of the test, in batches."""
        bar = super().init_test_tqdm()
        bar.unit = " batches"
        return bar

    def on_test_batch_start(self, *arguments: Any, **named: Any) -> None:
        """Name the bar as the log does."""
        super().on_test_batch_start(*arguments, **named)
        self.test_progress_bar.set_description("testing")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar before scoring, which may show bars of its own."""
        self.test_progress_bar.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the line of the bar, so that a message starts on a new line."""
        for bar in (self._train_progress_bar, self._test_progress_bar):
            if bar is not None:
                bar.close()

    def _draw(self, trainer: Trainer, what: str) -> None:
        if self.is_enabled:
            bar = self.train_progress_bar
            bar.n = trainer.global_step
            bar.set_description(what, refresh=False)
            bar.set_postfix(self.get_metrics(trainer, trainer.lightning_module), refresh=False)
            bar.refresh()
            self.drawn = time.monotonic()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The losses, without the version number of loggers."""
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}


class Pace(Callback):
    """Logs the speed of training and testing after ``first_seconds``, then at intervals growing to ``every_seconds``.

    Lightning's ThroughputMonitor sends rates of equally sized training batches to loggers, without a remaining time.

    The remaining time extrapolates the past speed to the remaining steps, epochs or minutes, whichever limit comes
    first, or to the remaining test batches, whose texts are not ordered by length. Batches that a killed test had
    finished count as done, but not for the speed.
    """

    def __init__(self, every_seconds: PositiveFloat = 60.0, first_seconds: PositiveFloat = 5.0) -> None:
        self.every_seconds, self.first_seconds = every_seconds, first_seconds
        self.wait = 0.0
        self.began = self.last_line = 0.0
        self.texts = self.steps_before = self.worked = 0
        self.spent = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start()
        self.steps_before = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the speed of training when it is due."""
        self.texts += len(batch["index"]) * trainer.world_size
        elapsed = time.monotonic() - self.began
        if not self._is_time():
            return
        loss = trainer.callback_metrics.get("train/loss")
        steps, progress = planned_steps(trainer), own_progress(trainer)
        done = f"step {trainer.global_step:,}{f' of {steps:,}' if steps else ''} (epoch {trainer.current_epoch})"
        rate = _rate(self.texts, elapsed) if loss is None else f"{_rate(self.texts, elapsed)}, loss {loss.item():.3f}"
        _say(trainer, "training", progress, done, rate, self._training_left(trainer, elapsed), pl_module.device)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start()
        self.worked, self.spent = 0, 0.0

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Record the start time of the batch."""
        self.batch_began = time.monotonic()

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Log the speed of testing when it is due."""
        took = time.monotonic() - self.batch_began
        if took >= 0.5 * outputs["seconds"]:  # otherwise the batch came from the test batch cache
            self.worked, self.spent = self.worked + 1, self.spent + took
            self.texts += len(batch["index"]) * trainer.world_size
        if not self._is_time() or not self.worked:
            return
        total = int(trainer.num_test_batches[dataloader_idx])
        left = self.spent / self.worked * (total - batch_idx - 1)
        done, rate = f"{batch_idx + 1:,} of {total:,} batches", _rate(self.texts, self.spent)
        _say(trainer, "testing", (batch_idx + 1) / total, done, rate, left, pl_module.device)

    def _start(self) -> None:
        self.began = self.last_line = time.monotonic()
        self.wait = min(self.first_seconds, self.every_seconds)
        self.texts = 0

    def _is_time(self) -> bool:
        if time.monotonic() - self.last_line < self.wait:
            return False
        self.last_line = time.monotonic()
        self.wait = min(2 * self.wait, self.every_seconds)
        return True

    def _training_left(self, trainer: Trainer, elapsed: float) -> float | None:
        """Seconds until the first limit is reached; None without a limit."""
        taken, steps, clock = trainer.global_step - self.steps_before, planned_steps(trainer), timer(trainer)
        left = []
        if steps is not None and taken:
            left.append(elapsed / taken * max(steps - trainer.global_step, 0))
        if clock is not None:
            left.append(clock.time_remaining() or 0.0)
        return min(left, default=None)


def _say(
    trainer: Trainer, what: str, progress: float, done: str, rate: str, left: float | None, device: torch.device
) -> None:
    """Log a line on rank 0; if a terminal shows a bar, only to the log file."""
    if trainer.is_global_zero:
        share = f"{progress:.0%}".replace("%", " %") if progress else ""
        time_left = "" if left is None else f"about {duration(left)} left"
        parts = [part for part in (share, done, rate, time_left, _memory(device)) if part]
        bar = trainer.progress_bar_callback
        beside_bar = isinstance(bar, TerminalBar) and bar.is_enabled
        log.info("%s: %s", what, ", ".join(parts), extra={"for_log_alone": beside_bar})


def _rate(texts: int, seconds: float) -> str:
    rate = texts / max(seconds, 1e-9)
    return f"{rate:,.0f} texts a second" if rate >= 10 else f"{rate:.1f} texts a second"


def _memory(device: torch.device) -> str:
    """Peak GPU memory so far; empty on the CPU."""
    return f"{torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB of GPU memory" if device.type == "cuda" else ""
