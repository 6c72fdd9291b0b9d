"""Train an attack on real embeddings, test it, and write what it read.

    python train.py                              # a small GEIA on all-MiniLM-L6-v2 vectors of the built-in corpus
    python train.py attack=geia embedder=simcse datamodule=files datamodule.path=my.jsonl
    python train.py run_dir=<dir> ckpt_path=last # resume it after a kill, with the settings that it has
    python train.py init_from=<dir> datamodule=files datamodule.path=my.jsonl   # train a finished run further

Everything the run leaves is in its directory (run_directory/layout.py lists it); `python train.py --help` lists groups
and keys.
"""

from __future__ import annotations

if __name__ == "__main__":
    import stopping

    stopping.begin()

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import configuration
from run_directory import layout
from run_directory.checkpoints import resume_from

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("train")


def train(cfg: DictConfig) -> None:
    """Compose -> seed -> fit -> test -> report."""
    from hydra.utils import instantiate
    from lightning import seed_everything
    from lightning.pytorch.utilities import rank_zero_only

    from callbacks.analyses import Analyses
    from callbacks.baseline import NearestNeighborBaseline
    from callbacks.predictions import Predictions
    from callbacks.run_record import RunRecord
    from callbacks.termination import Termination
    from callbacks.testing import Testing
    from datamodules.defended import FittedDefense
    from defenses.threat import threat_of
    from embedders.cache.cached import CachedEmbedder
    from models.sharding import check_sharding, is_sharded
    from reports.page import print_summary, write_report
    from run_directory.batch_cache import BatchCache, settings_key
    from run_directory.checkpoint_io import WholeCheckpoints
    from run_directory.init_from import check_origin
    from run_directory.record import data_of
    from run_directory.training_state import taking_up
    from scoring.models import scoring_models

    run_dir = Path(cfg.run_dir)
    checkpoint = resume_from(run_dir, cfg.ckpt_path)
    models = scoring_models(cfg)  # one that cannot be loaded is found out now
    threat = threat_of(cfg.defense)  # as is a secret that is not given
    # The other ranks of a DDP run start this script again once the directory stands.
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        layout.start(run_dir, resuming=cfg.ckpt_path is not None)
        if cfg.ckpt_path == "last" and not (run_dir / layout.CONFIG).exists():
            log.warning("run_dir=%s: there is no run to resume there, so a new one begins", run_dir)
        configuration.keep(run_dir, cfg)
    seed_everything(cfg.seed, workers=True, verbose=False)

    embedder = CachedEmbedder(instantiate(cfg.embedder, _convert_="all"), Path(cfg.cache_dir))
    attack = instantiate(cfg.attack, _convert_="all")
    attack.check_embedder(embedder)
    datamodule = instantiate(cfg.datamodule, _convert_="all")
    datamodule.connect(
        embedder,
        threat.defense,
        adaptive=threat.adaptive,
        hypotheses=threat.hypotheses,
        kept=FittedDefense(run_dir / layout.ARTIFACTS, threat.settings, embedder.fingerprint),
    )
    if cfg.ckpt_path is not None:
        datamodule.expect(data_of(run_dir), "put back what it was, or train a new run")
    attack.connect(run_dir / layout.ARTIFACTS, datamodule.oracle, from_checkpoint=checkpoint is not None)
    attack.batch_cache = BatchCache(
        run_dir / layout.TEST_BATCHES, settings_key(configuration.plain(cfg), embedder.fingerprint)
    )
    if cfg.init_from is not None and checkpoint is None:
        origin = Path(cfg.init_from)
        check_origin(origin, configuration.plain(cfg.attack), embedder.fingerprint, embedder.dimension)
        attack.begin_from(origin)
    record = RunRecord(run_dir, embedder)
    trainer = instantiate(
        cfg.trainer,
        _convert_="all",
        logger=instantiate(cfg.logger, _convert_="all") or False,
        plugins=[WholeCheckpoints()],
        default_root_dir=run_dir,
        callbacks=[
            Predictions(run_dir, embedder, datamodule, models),
            *(instantiate(callback, _convert_="all") for callback in cfg.callbacks.values()),
            NearestNeighborBaseline(run_dir, embedder, datamodule, models),
            Analyses(run_dir, datamodule),
            record,
            Termination(run_dir / layout.CHECKPOINT),
        ],
    )
    check_sharding(trainer.strategy, attack)
    for callback in trainer.callbacks:
        if isinstance(callback, Testing):
            callback.check(attack)
    for logger in trainer.loggers:
        logger.log_hyperparams(configuration.plain(cfg))
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        configuration.note_changes(run_dir, cfg)
    if attack.trainable:
        with taking_up(trainer, checkpoint):
            trainer.fit(attack, datamodule, ckpt_path=checkpoint, weights_only=True)
        trainer.save_checkpoint(run_dir / layout.CHECKPOINT)
        if trainer.is_global_zero:
            (run_dir / layout.PREVIOUS).unlink(missing_ok=True)
        if is_sharded(trainer.strategy):
            log.info("trained in shards, of which no process can decode alone; now: python evaluate.py run=%s", run_dir)
            return
    trainer.test(attack, datamodule, verbose=False, weights_only=True)
    if trainer.is_global_zero:
        attack.batch_cache.clear()
        write_report(run_dir)
        print_summary(run_dir)


if __name__ == "__main__":
    configuration.main(train, "train")
