"""Test the attack of a run again: on its own test texts, on other data, with another decoding.

    python evaluate.py run=<dir>                                               # the figures of the training run again
    python evaluate.py run=<dir> datamodule=files datamodule.test=mine.jsonl   # other text
    python evaluate.py run=<dir> attack.decoding.beams=1 datamodule.limit_test=100
    python evaluate.py run=<dir> defense=noise defense.level=0.01              # of an attacker who was not told
    python evaluate.py run=<dir> attack/decoding=sampling trials=10 compare=<dir> # means of ten trials, and a t-test
    python evaluate.py run=<dir> experiment=tradeoff collection=<dir>  # what defenses keep and what they cost a search
    python evaluate.py run=<dir> callbacks=iterative_correction logger=wandb   # figures and curve in a logger, too

Everything else is rebuilt from the run directory. Results go to <run>/evaluations/<time>, or to output_dir=<dir>: the
same command with the directory of an evaluation that was killed goes on with it.
"""

from __future__ import annotations

if __name__ == "__main__":
    import stopping

    stopping.begin()

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import configuration
from errors import InputError
from run_directory import layout
from run_directory.checkpoints import finished_checkpoint
from run_directory.config_file import read_config, write_config
from run_directory.record import training_of
from tradeoff import trade_off

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("evaluate")
OTHER_DATA = "where it has moved, or the other text is wanted, name it: datamodule.path=<file>"


def evaluate(settings: DictConfig, config: DictConfig) -> None:
    """Rebuild -> test -> report."""
    if settings.tradeoff is not None:
        trade_off(settings, config)
        return
    if settings.collection is not None:
        raise InputError(f"collection={settings.collection}: it is searched by experiment=tradeoff; add that")
    from hydra.utils import instantiate
    from lightning import seed_everything
    from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

    from callbacks.analyses import Analyses
    from callbacks.baseline import NearestNeighborBaseline
    from callbacks.pace import Pace, TerminalBar
    from callbacks.predictions import Predictions
    from callbacks.run_record import RunRecord
    from callbacks.termination import Termination
    from callbacks.testing import of_the_test
    from datamodules.defended import FittedDefense
    from datamodules.inversion import InversionDataModule
    from defenses.base import Fitted
    from defenses.threat import threat_of
    from embedders.cache.cached import CachedEmbedder
    from reports.page import print_summary, write_report
    from reports.trials import compare, find, folder, write_trials
    from run_directory.batch_cache import BatchCache, settings_key
    from run_directory.checkpoint_io import WholeCheckpoints
    from run_directory.record import data_of
    from scoring.models import scoring_models

    run, output = Path(settings.run), Path(settings.output_dir)
    other = None if settings.compare is None else find(Path(settings.compare), "compare")
    if other is not None and settings.trials == 1:  # both have been tested
        compare(find(run, "run"), other)
        return
    configuration.check_devices(config)
    original = read_config(run)
    models = scoring_models(config)  # one that cannot be loaded is found out now
    threat = threat_of(config.defense)  # as is a secret that is not given
    seed_everything(config.seed, workers=True, verbose=False)
    embedder = CachedEmbedder(instantiate(config.embedder, _convert_="all"), Path(config.cache_dir))
    datamodule = instantiate(config.datamodule, _convert_="all")
    trained_on = [] if settings.unknown_data else data_of(run)
    if not settings.other_data:
        datamodule.expect(trained_on, OTHER_DATA)
    datamodule.connect(embedder, threat.defense, adaptive=threat.adaptive, hypotheses=threat.hypotheses)
    attack = instantiate(config.attack, _convert_="all")
    key = settings_key(configuration.plain(config), embedder.fingerprint)
    finished = [BatchCache(folder(output, n) / layout.TEST_BATCHES, key) for n in range(settings.trials)]
    attack.batch_cache = finished[0]
    testing = of_the_test(config)  # the run's other callbacks are about training
    for callback in testing:
        callback.check(attack)
    if settings.trials > 1:
        attack.begin_trial(0)  # an attack that draws nothing says so before anything is tested
    checkpoint = finished_checkpoint(run, settings.ckpt_path) if attack.trainable else None

    # What the attack knew: the run's own training text, also where the test text is another.
    training = instantiate(original.datamodule, _convert_="all")
    training.connect(embedder, threat.defense, adaptive=threat.adaptive, hypotheses=threat.hypotheses)
    try:
        training.expect(trained_on, "put back what it was")
        training.examples("train")
        knew = [NearestNeighborBaseline(output, embedder, training, models), Analyses(output, training)]
        known: InversionDataModule | None = training
    except InputError as error:
        rank_zero_warn(
            "the nearest-neighbour baseline and the analyses are left out: the run's training text cannot be read: "
            f"{error}"
        )
        known, knew = None, []
    kept = FittedDefense(run / layout.ARTIFACTS, threat.settings, embedder.fingerprint)
    if isinstance(threat.defense, Fitted) and not kept.restore(threat.defense):
        if known is None:
            raise InputError(
                f"defense={config.choices.defense} is fitted to the run's training text, and there is none"
            )
        training.fit_defense()
    attack.connect(run / layout.ARTIFACTS, (known or datamodule).oracle, from_checkpoint=True, trained_on=known)

    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        # An evaluation that was killed is gone on with; a run is not written over, finished or not.
        layout.start(
            output, resuming=finished[0].begun() and not (output / layout.ARTIFACTS).exists(), key="output_dir"
        )
        finished[0].begin()
        write_config(output, configuration.plain(config))
    own = [
        Predictions(output, embedder, known, models),
        *testing,
        *knew,
        RunRecord(output, embedder, training_of(run)),
    ]
    progress = [TerminalBar()] if config.trainer.get("enable_progress_bar", True) else []
    trainer = instantiate(
        config.trainer,
        _convert_="all",
        logger=instantiate(config.logger, _convert_="all", **_beside(output, config.logger)) or False,
        plugins=[WholeCheckpoints()],
        enable_checkpointing=False,
        default_root_dir=output,  # nothing is written elsewhere, whatever the run says
        callbacks=[*progress, Pace(), *own, Termination()],
    )
    for logger in trainer.loggers:
        logger.log_hyperparams(configuration.plain(config))
    shown = [callback for callback in trainer.callbacks if callback not in own]
    trainer.test(attack, datamodule, ckpt_path=checkpoint, verbose=False, weights_only=True)
    for number in range(1, settings.trials):
        attack.begin_trial(number)
        attack.batch_cache = finished[number]
        trainer.callbacks = [*shown, Predictions(folder(output, number), embedder, known, models), *testing]
        trainer.test(attack, datamodule, verbose=False)
    if trainer.is_global_zero and settings.trials > 1:
        write_trials(output, settings.trials)
        if other is not None:
            compare(output, other)
    if trainer.is_global_zero:
        if not any(trial.wanted for trial in finished):
            for trial in finished:
                trial.clear()
        write_report(output)
        print_summary(output)


def _beside(output: Path, logger: DictConfig) -> dict[str, str]:
    """Loggers write into the directory of the results, not into that of the run."""
    return {"save_dir": str(output)} if "save_dir" in logger else {}


if __name__ == "__main__":
    configuration.main_on_run(evaluate, "evaluate")
