"""SIGTERM while Lightning runs: training saves a checkpoint first, other stages end at once; all ranks end together.
A training also saves one soon after it has begun, so that a run that is killed early can be resumed.

    Trainer(callbacks=[..., Termination(run_dir / layout.CHECKPOINT)])

If one rank receives the signal, all ranks stop after the same step. Lightning's own handler would start a collective
operation in the middle of another one, and then exit with code 0. SIGUSR1, which SLURM sends to requeue a job, is still
handled by Lightning.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from unembed.core import stopping

FIRST_SECONDS = 10.0  # of training, until the first checkpoint; callbacks.checkpoint saves the later ones
_CHILDREN_SECONDS = 5.0  # time for the ranks that this process started; a scheduler sends SIGKILL after 30


class Termination(Callback):
    """Ends the process with :class:`stopping.Terminated`; must be the last callback of the list.

    Args:
        checkpoint: Where checkpoints are saved; None if nothing is trained.
    """

    def __init__(self, checkpoint: Path | None = None) -> None:
        self.checkpoint = checkpoint
        self._step, self._began, self._has_saved = 0, 0.0, False

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """From here on, a signal takes effect at the end of a step."""
        self._step, self._began = trainer.global_step, time.monotonic()
        _listen(trainer, at_once=False)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save early, and after a signal save and end, once a step is complete: no accumulated gradients are lost."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._save_first(trainer)
            self._end_if_asked(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Handle a signal that came during the last validation."""
        self._end_if_asked(trainer)

    def on_test_start(self, trainer: Trainer, *_: Any) -> None:
        """From here on a signal ends the test at once; finished batches are in the test batch cache."""
        _listen(trainer, at_once=True)

    def on_test_batch_end(self, *_: Any) -> None:
        """End here if a library has swallowed the exception."""
        if stopping.received():
            raise stopping.Terminated

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Terminate the ranks that this process started before it ends."""
        launcher = trainer.strategy.launcher
        if isinstance(exception, stopping.Terminated) and isinstance(launcher, _SubprocessScriptLauncher):
            children = list(launcher.procs)
            launcher.kill(signal.SIGTERM)
            launcher.procs.clear()  # Lightning's monitor would kill this process once a rank has ended
            for child in children:
                try:
                    child.wait(_CHILDREN_SECONDS)
                except subprocess.TimeoutExpired:  # it waits in a collective operation, without handling signals
                    child.kill()

    def _save_first(self, trainer: Trainer) -> None:
        due = time.monotonic() - self._began >= FIRST_SECONDS
        if self.checkpoint is None or self._has_saved or not trainer.strategy.reduce_boolean_decision(due, all=False):
            return
        self._has_saved = True
        trainer.save_checkpoint(self.checkpoint)

    def _end_if_asked(self, trainer: Trainer) -> None:
        if trainer.strategy.reduce_boolean_decision(stopping.received(), all=False):
            if self.checkpoint is not None:
                trainer.save_checkpoint(self.checkpoint)
            raise stopping.Terminated(saved=trainer.global_step)


def _listen(trainer: Trainer, *, at_once: bool) -> None:
    """Handle SIGTERM instead of Lightning, which restores the previous handlers at its end."""

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping.receive():
            if trainer.strategy.launcher is not None:
                trainer.strategy.launcher.kill(signal.SIGTERM)
            if at_once:
                raise stopping.Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handle)
