"""Speed, remaining time and training curve of a long run: a progress bar, lines in the log, and history.jsonl.

training: 46 %, step 840 of 1,800 (epoch 3), 812 texts a second, loss 2.314, about 1 min 15 s left, 3.1 GB of GPU memory
testing: 19 %, 96 of 500 batches, 41 texts a second, about 12 min 05 s left

{"step": 120, "epoch": 1, "seconds": 14.2, "train_loss": 3.1, "val_loss": null, "learning_rate": 0.01}
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.trainer.states import TrainerFn
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from unembed.attacks.parts.optimizers import own_progress, planned_steps, timer
from unembed.core.atomic_files import write_file
from unembed.core.progress import duration
from unembed.runs import layout

log = logging.getLogger("train")


class TerminalBar(TQDMProgressBar):
    """Lightning's progress bar with one bar for all planned steps instead of one an epoch; only on a terminal.

    Lightning's bars know epochs only, so they cannot estimate the end of a training that is limited in steps.

    Args:
        refresh_rate: Test batches between two updates.
        seconds: Seconds between two updates in training.
    """

    def __init__(self, refresh_rate: NonNegativeInt = 1, seconds: PositiveFloat = 0.5) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self.seconds, self.drawn = seconds, 0.0
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

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if time.monotonic() - self.drawn >= self.seconds:
            self._draw(trainer, "training")

    def on_train_epoch_end(self, *_: Any) -> None:
        """Keep the bar for the next epoch."""

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Leave the bar at the step where training ended."""
        self._draw(trainer, "trained")
        super().on_train_end(trainer, *_)

    def init_validation_tqdm(self) -> Tqdm:
        """No bar of its own for validation during training."""
        return Tqdm(disable=True) if self.trainer.state.fn == "fit" else super().init_validation_tqdm()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn == "fit":
            self._draw(trainer, "training")

    def on_test_epoch_end(self, *_: Any) -> None:
        """Close the bar before scoring, which may show bars of its own."""
        self.test_progress_bar.close()

    def on_exception(self, *_: Any) -> None:
        """End the line of the bar, so that a message starts on a new line."""
        for bar in (self._train_progress_bar, self._test_progress_bar):
            if bar is not None:
                bar.close()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The losses, without the version number of loggers."""
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}

    def _draw(self, trainer: Trainer, what: str) -> None:
        if self.is_enabled:
            bar, self.drawn = self.train_progress_bar, time.monotonic()
            bar.n = trainer.global_step
            bar.set_description(what, refresh=False)
            bar.set_postfix(self.get_metrics(trainer, trainer.lightning_module))


class Pace(Callback):
    """Logs the speed of training and testing after ``first_seconds``, then at intervals growing to ``every_seconds``.

    The remaining time extrapolates the past speed to the remaining steps, epochs or minutes, whichever limit comes
    first, or to the remaining test batches, whose texts are not ordered by length. Batches that a killed test had
    finished count as done, but not for the speed.
    """

    def __init__(self, every_seconds: PositiveFloat = 60.0, first_seconds: PositiveFloat = 5.0) -> None:
        self.every_seconds, self.first_seconds = every_seconds, first_seconds

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self._start()
        self.steps_before = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.texts += len(batch["index"]) * trainer.world_size
        if not self._is_due():
            return
        step, steps, clock = trainer.global_step, planned_steps(trainer), timer(trainer)
        self.seconds = self.last - self.began
        left = [clock.time_remaining() or 0.0] if clock is not None else []
        if steps is not None and step > self.steps_before:
            left.append(self.seconds / (step - self.steps_before) * max(steps - step, 0))
        total = f" of {steps:,}" if steps else ""
        self._log(
            trainer, "training", own_progress(trainer), f"step {step:,}{total} (epoch {trainer.current_epoch})",
            min(left, default=None), pl_module.device,
        )  # fmt: skip

    def on_test_start(self, *_: Any) -> None:
        self._start()
        self.decoded, self.seconds = 0, 0.0

    def on_test_batch_start(self, *_: Any) -> None:
        self.batch_began = time.monotonic()

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        took = time.monotonic() - self.batch_began
        if took >= 0.5 * outputs["seconds"]:  # otherwise the batch came from the test batch cache
            self.decoded, self.seconds = self.decoded + 1, self.seconds + took
            self.texts += len(batch["index"]) * trainer.world_size
        if self._is_due() and self.decoded:
            done, total = batch_idx + 1, int(trainer.num_test_batches[dataloader_idx])
            left = self.seconds / self.decoded * (total - done)
            self._log(trainer, "testing", done / total, f"{done:,} of {total:,} batches", left, pl_module.device)

    def _start(self) -> None:
        self.began = self.last = time.monotonic()
        self.wait = min(self.first_seconds, self.every_seconds)
        self.texts = 0

    def _is_due(self) -> bool:
        if time.monotonic() - self.last < self.wait:
            return False
        self.last, self.wait = time.monotonic(), min(2 * self.wait, self.every_seconds)
        return True

    def _log(
        self, trainer: Trainer, what: str, share: float, done: str, left: float | None, device: torch.device
    ) -> None:
        """Log a line on rank 0; if a terminal shows a bar, only to the log file."""
        if not trainer.is_global_zero:
            return
        rate = self.texts / max(self.seconds, 1e-9)
        parts = [
            *([f"{100 * share:.0f} %"] if share else []),
            done,
            f"{rate:,.{0 if rate >= 10 else 1}f} texts a second",
        ]
        loss = trainer.callback_metrics.get("train/loss")
        if what == "training" and loss is not None:
            parts.append(f"loss {loss.item():.3f}")
        if left is not None:
            parts.append(f"about {duration(left)} left")
        if device.type == "cuda":
            parts.append(f"{torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB of GPU memory")
        bar = trainer.progress_bar_callback
        shown = isinstance(bar, TerminalBar) and bar.is_enabled
        log.info("%s: %s", what, ", ".join(parts), extra={"for_log_alone": shown})


class History(Callback):
    """Appends a line to history.jsonl every ``every_n_steps`` steps and after each validation; the report shows it.

    Lightning's CSVLogger cannot replace it: it deletes its file when a run is resumed, and records no time. The seconds
    are those of training, earlier sessions of a resumed run included.
    """

    def __init__(self, directory: str, every_n_steps: PositiveInt = 20) -> None:
        self.path = Path(directory) / layout.HISTORY
        self.every_n_steps = every_n_steps
        self.before, self.started = 0.0, time.monotonic()
        self.losses: list[float] = []
        self.written = 0

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Start the clock; drop lines of steps that a killed session took after its last checkpoint."""
        self.started = time.monotonic()
        if trainer.is_global_zero and self.path.exists():
            steps = (
                re.match(r'{"step": (\d+),.*}$', line) for line in self.path.read_text(encoding="utf-8").split("\n")
            )
            kept = [f"{step[0]}\n" for step in steps if step and int(step[1]) <= trainer.global_step]
            write_file(self.path, "".join(kept) if trainer.global_step else "")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Average the loss over the steps since the last line."""
        if (loss := trainer.callback_metrics.get("train/loss")) is not None:
            self.losses.append(loss.item())
        step = trainer.global_step
        # with gradient accumulation, several batches share a step
        if step % self.every_n_steps == 0 and step > self.written and self.losses:
            self._append(trainer, train_loss=sum(self.losses) / len(self.losses))
            self.losses, self.written = [], step

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        loss = trainer.callback_metrics.get("valid/loss")
        if loss is not None and not trainer.sanity_checking and trainer.state.fn == TrainerFn.FITTING:
            self._append(trainer, val_loss=loss.item())

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before = state_dict["seconds"]

    def _seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def _append(self, trainer: Trainer, train_loss: float | None = None, val_loss: float | None = None) -> None:
        if not trainer.is_global_zero:
            return
        row = {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "seconds": round(self._seconds(), 3),
            "train_loss": _finite(train_loss),
            "val_loss": _finite(val_loss),
            "learning_rate": _finite(trainer.optimizers[0].param_groups[0]["lr"]),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold, else None: the loss of a diverged training is NaN."""
    return value if value is not None and math.isfinite(value) else None
