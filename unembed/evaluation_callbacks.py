"""Shared by train.py and evaluate.py: the callbacks that write test results, and repeated test trials.

trainer = session.trainer(run, [*writing(run, session, datamodule, configured), record])
run_trials(session, output, 1, known, of_the_test(config), checkpoint)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning import Callback

from unembed.callbacks.analyses import Analyses
from unembed.callbacks.baseline import NearestNeighborBaseline
from unembed.callbacks.pace import Pace, TerminalBar
from unembed.callbacks.predictions import Predictions
from unembed.callbacks.run_record import RunRecord
from unembed.callbacks.termination import Termination
from unembed.callbacks.testing import Testing
from unembed.core.ranks import is_first
from unembed.datamodules.inversion import InversionDataModule
from unembed.reports.trials import folder as trial_folder
from unembed.runs import layout
from unembed.runs.config_file import write_config
from unembed.runs.record import training_of
from unembed.session import Session


def writing(
    output: Path, session: Session, training: InversionDataModule | None, configured: Sequence[Callback]
) -> list[Callback]:
    """The callbacks that write the results of a test, together with the ``configured`` ones, in the right order.

    Args:
        output: Directory that they write to.
        session: The run's session.
        training: Data module of the attack's training text; without it, no baseline and no analyses are computed.
        configured: Callbacks built from the configuration.
    """
    known: list[Callback] = []
    if training is not None:
        known = [
            NearestNeighborBaseline(output, session.embedder, training, session.models),
            Analyses(output, training),
        ]
    return [Predictions(output, session.embedder, training, session.models), *configured, *known]


def run_trials(
    session: Session,
    output: Path,
    count: int,
    training: InversionDataModule | None,
    testing: Sequence[Testing],
    checkpoint: Path | None,
) -> bool:
    """Test the attack of a finished run ``count`` times with different random numbers; return whether this is rank 0.

    Args:
        session: The session of the run, with its attack connected.
        output: The directory of the results.
        count: Number of trials.
        training: Data module of the attack's training text.
        testing: The callbacks of the configuration that belong to the test.
        checkpoint: The weights; None for an attack that is not trained.

    Raises:
        InputError: The directory already holds other results.
    """
    attack, config = session.attack, session.config
    folders = [trial_folder(output, number) for number in range(count)]
    caches = [session.batch_cache(folder) for folder in folders]
    if is_first():
        layout.start(output, resuming=caches[0].exists(), key="output_dir")
        caches[0].create()
        write_config(output, session.values)
    results = [
        *writing(output, session, training, testing),
        RunRecord(output, session.embedder, training_of(session.run), checkpoint),
    ]
    progress = [TerminalBar()] if config.trainer.get("enable_progress_bar", True) else []
    trainer = session.trainer(output, [*progress, Pace(), *results, Termination()], enable_checkpointing=False)
    for logger in trainer.loggers:
        logger.log_hyperparams(session.values)
    others = [callback for callback in trainer.callbacks if callback not in results]
    attack.batch_cache = caches[0]
    trainer.test(attack, session.datamodule, ckpt_path=checkpoint, verbose=False, weights_only=True)
    for number in range(1, count):
        attack.begin_trial(number)
        attack.batch_cache = caches[number]
        predictions = Predictions(folders[number], session.embedder, training, session.models)
        trainer.callbacks = [*others, predictions, *testing]
        trainer.test(attack, session.datamodule, verbose=False)
    if trainer.is_global_zero and not any(cache.wanted for cache in caches):
        for cache in caches:
            cache.clear()
    return bool(trainer.is_global_zero)
