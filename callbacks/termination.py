"""SIGTERM while Lightning works: in training a checkpoint first, elsewhere the end at once; all ranks, or none.

    Trainer(callbacks=[..., Termination(run_dir / runs.CHECKPOINT)])

A rank that a signal reaches has the others stop after the same step. Lightning's own handler would have the ranks talk
to each other in the midst of whatever they talk about, and then leave with exit code 0; SIGUSR1, by which SLURM has a
job requeued, stays with Lightning.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

import stopping

_CHILDREN_SECONDS = 5.0  # for ranks that this process started; a scheduler sends SIGKILL after 30


class Termination(Callback):
    """Ends the process with :class:`stopping.Terminated`; the last callback of the list.

    Args:
        checkpoint: Where a training that is to end is saved; None where nothing is trained.
    """

    def __init__(self, checkpoint: Path | None = None) -> None:
        self.checkpoint = checkpoint
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal waits for the end of a step."""
        self._step = trainer.global_step
        _listen(trainer, at_once=False)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and end after a step, where a signal has come; gradients that are still added up would be lost."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._end_if_asked(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A signal may have come in the last validation."""
        self._end_if_asked(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal ends the test at once: batches that are finished are kept."""
        _listen(trainer, at_once=True)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """End here where the exception was lost in a library."""
        if stopping.received():
            raise stopping.Terminated

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Have the ranks that this process started end before it does."""
        launcher = trainer.strategy.launcher
        if isinstance(exception, stopping.Terminated) and isinstance(launcher, _SubprocessScriptLauncher):
            children = list(launcher.procs)
            launcher.kill(signal.SIGTERM)
            launcher.procs.clear()  # Lightning's observer would kill this process when one has ended
            for child in children:
                try:
                    child.wait(_CHILDREN_SECONDS)
                except subprocess.TimeoutExpired:  # it waits for another rank, and no signal is heard there
                    child.kill()

    def _end_if_asked(self, trainer: Trainer) -> None:
        if trainer.strategy.reduce_boolean_decision(stopping.received(), all=False):
            if self.checkpoint is not None:
                trainer.save_checkpoint(self.checkpoint)
            raise stopping.Terminated(saved=trainer.global_step)


def _listen(trainer: Trainer, *, at_once: bool) -> None:
    """Answer SIGTERM in the place of Lightning, which puts back what was there before when it is done."""

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping.receive():
            if trainer.strategy.launcher is not None:
                trainer.strategy.launcher.kill(signal.SIGTERM)
            if at_once:
                raise stopping.Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handle)
