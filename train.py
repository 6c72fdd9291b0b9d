"""Train an attack on real embeddings, test it, and write a report.

    python train.py                              # a small GEIA and lexicon search on vectors of the built-in corpus
    python train.py attack=geia embedder=simcse datamodule=files datamodule.path=my.jsonl
    python train.py run_dir=<dir> ckpt_path=last # resume a killed run with its own settings
    python train.py init_from=minilm datamodule=files datamodule.path=my.jsonl  # train an attacker further

All results are in the run directory (unembed/runs/layout.py lists them); `python train.py --help` lists keys and
groups.
"""

from __future__ import annotations

if __name__ == "__main__":
    from unembed.core import stopping

    stopping.begin()

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from unembed import launch
from unembed.core.commands import command
from unembed.core.ranks import is_first

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("train")


def train(cfg: DictConfig) -> None:
    """Compose -> open a session -> fit -> test -> report."""
    from hydra.utils import instantiate
    from lightning import seed_everything

    from unembed.attacks.parts.sharding import check_sharding, is_sharded
    from unembed.callbacks.blending import Blending
    from unembed.callbacks.run_record import RunRecord
    from unembed.callbacks.termination import Termination
    from unembed.callbacks.testing import Testing
    from unembed.evaluation_callbacks import writing
    from unembed.reports.page import print_summary, write_report
    from unembed.runs import layout
    from unembed.runs.checkpoints import resume_from
    from unembed.runs.init_from import check_origin
    from unembed.runs.record import data_of
    from unembed.runs.space_file import TEXTS, keep_space
    from unembed.runs.training_state import taking_up
    from unembed.session import Session

    run_dir = Path(cfg.run_dir)
    checkpoint = resume_from(run_dir, cfg.ckpt_path)
    session = Session(cfg, run_dir)
    session.check()
    # The other ranks of a DDP run start this script again once the directory exists.
    if is_first():
        layout.start(run_dir, resuming=cfg.ckpt_path is not None)
        launch.keep(run_dir, cfg)
    seed_everything(cfg.seed, workers=True, verbose=False)

    embedder, attack = session.embedder, session.attack
    attack.check_embedder(embedder)
    datamodule = session.datamodule
    if cfg.ckpt_path is not None:
        datamodule.expect(data_of(run_dir), "put back what it was, or train a new run")
    attack.connect(run_dir / layout.ARTIFACTS, datamodule.oracle, from_checkpoint=checkpoint is not None)
    attack.batch_cache = session.batch_cache(run_dir)
    origin = None if cfg.init_from is None else launch.find_run(cfg.init_from, "init_from")
    if origin is not None and checkpoint is None:
        check_origin(origin, session.values["attack"], embedder.fingerprint, embedder.dimension)
        attack.begin_from(origin)
    configured = [instantiate(node, _convert_="all") for node in cfg.callbacks.values() if node is not None]
    for callback in configured:
        if isinstance(callback, Blending):
            callback.origin = origin
    results = writing(run_dir, session, datamodule, configured)
    record, end = RunRecord(run_dir, embedder), Termination(run_dir / layout.CHECKPOINT)
    without = {} if attack.validated else {"limit_val_batches": 0}
    trainer = session.trainer(run_dir, [*results, record, end], **without)
    check_sharding(trainer.strategy, attack)
    for callback in trainer.callbacks:
        if isinstance(callback, Testing):
            callback.check(attack)
    for logger in trainer.loggers:
        logger.log_hyperparams(session.values)
    if is_first():
        launch.note_changes(run_dir, cfg)
    if attack.trainable:
        with taking_up(trainer, checkpoint):
            trainer.fit(attack, datamodule, ckpt_path=checkpoint, weights_only=True)
        trainer.save_checkpoint(run_dir / layout.CHECKPOINT)
        if trainer.is_global_zero:
            (run_dir / layout.PREVIOUS).unlink(missing_ok=True)
            keep_space(run_dir, session, datamodule.training_sample(TEXTS))
        if is_sharded(trainer.strategy):
            again = command("evaluate", run=run_dir)
            log.info("trained in shards, which one process cannot decode; now run: %s", again)
            return
    trainer.test(attack, datamodule, verbose=False, weights_only=True)
    if trainer.is_global_zero:
        attack.batch_cache.clear()
        write_report(run_dir)
        print_summary(run_dir)


if __name__ == "__main__":
    launch.main(train, "train")
