"""The training curve of a run in history.jsonl, independent of the logger; the report shows it.

{"step": 120, "epoch": 1, "seconds": 14.2, "train_loss": 3.1, "val_loss": null, "learning_rate": 0.01}
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from pydantic import PositiveInt

from unembed.core import limits
from unembed.core.atomic_files import write_json_lines
from unembed.runs import layout

_NUMBERS = ("epoch", "seconds", "train_loss", "val_loss", "learning_rate")
_LARGEST = 1e300


class History(Callback):
    """Appends a line every ``every_n_steps`` steps and after each validation.

    Lightning's CSVLogger cannot replace it: it deletes its file when a run is resumed, records no time, and is off
    with ``logger=wandb``. The seconds are those of training, earlier sessions of a resumed run included.
    """

    def __init__(self, directory: str, every_n_steps: PositiveInt = 20) -> None:
        self.path = Path(directory) / layout.HISTORY
        self.every_n_steps = every_n_steps
        self.before, self.started = 0.0, time.monotonic()
        self.total, self.count = 0.0, 0
        self.written = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; drop lines of steps that a killed session took after its last checkpoint."""
        self.started = time.monotonic()
        if trainer.is_global_zero and self.path.exists():
            kept = [row for row in _rows(self.path) if row["step"] <= trainer.global_step]
            write_json_lines(self.path, kept if trainer.global_step else [])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Average the loss over the steps since the last line."""
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None:
            self.total, self.count = self.total + loss.item(), self.count + 1
        step = trainer.global_step
        # with gradient accumulation, several batches share a step
        if step % self.every_n_steps == 0 and step > self.written and self.count:
            self._append(trainer, train_loss=self.total / self.count)
            self.total, self.count = 0.0, 0
            self.written = step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the validation loss."""
        loss = trainer.callback_metrics.get("valid/loss")
        if loss is not None and not trainer.sanity_checking and trainer.state.fn == TrainerFn.FITTING:
            self._append(trainer, val_loss=loss.item())

    def state_dict(self) -> dict[str, Any]:
        """Training seconds so far."""
        return {"seconds": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the seconds of earlier sessions."""
        seconds = state_dict.get("seconds")
        self.before = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e12 else 0.0

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


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for _, line in limits.lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a killed session may be half written
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows.append({"step": row["step"], **{name: _finite(row.get(name)) for name in _NUMBERS}})
    return rows


def _finite(value: object) -> float | None:
    """A number that JSON can hold, else None: the loss of a diverged training is NaN."""
    return value if type(value) in (int, float) and -_LARGEST < value < _LARGEST else None  # type: ignore[operator, return-value]
