"""Train an attack on real embeddings, test it, and write a report.

    python train.py                              # a small GEIA and lexicon search on vectors of the built-in corpus
    python train.py attack=geia embedder=simcse datamodule=files datamodule.path=my.jsonl
    python train.py run_dir=<dir> ckpt_path=last # resume a killed run with its own settings
    python train.py init_from=minilm datamodule=files datamodule.path=my.jsonl  # train an attacker further

All results are in the run directory; `python train.py --help` lists keys and groups.
"""

from __future__ import annotations

if __name__ == "__main__":
    from unembed.core import stopping

    stopping.begin()

import logging
from pathlib import Path

from omegaconf import DictConfig

from unembed import launch
from unembed.core.commands import command
from unembed.core.ranks import is_first


def train(config: DictConfig) -> float | None:
    """Open a session -> connect attack, data and trainer -> fit -> test -> report -> the value of ``objective``."""
    from lightning import seed_everything

    from unembed.attacks.parts.sharding import is_sharded
    from unembed.callbacks.results import objective_of
    from unembed.commands.export import check_absent, export_trained
    from unembed.runs import layout
    from unembed.runs.checkpoints import resume_from, resuming_from
    from unembed.runs.config_file import record_config
    from unembed.session import Session

    run_dir = Path(config.run_dir)
    checkpoint = resume_from(run_dir, config.ckpt_path)
    if config.export is not None:
        check_absent(Path(config.export), "export")
    origin = None if config.init_from is None else launch.find_run(config.init_from, "init_from")
    session = Session(config, run_dir)
    session.check()
    if is_first():  # the other ranks of a DDP run start this script again once the directory exists
        layout.start(run_dir, resuming=config.ckpt_path is not None)
    seed_everything(config.seed, workers=True, verbose=False)
    trainer = session.begin_training(checkpoint, origin)
    if is_first():
        record_config(run_dir, session.values)
    attack, datamodule = session.attack, session.datamodule
    if attack.trainable:
        with resuming_from(checkpoint, trainer):
            trainer.fit(attack, datamodule, ckpt_path=checkpoint, weights_only=True)
        trainer.save_checkpoint(run_dir / layout.CHECKPOINT)
        if trainer.is_global_zero:
            from unembed.reports.vector_space import TEXTS, keep_space

            (run_dir / layout.PREVIOUS).unlink(missing_ok=True)
            keep_space(run_dir, session, datamodule.training_sample(TEXTS))
        if is_sharded(trainer.strategy):
            again = command("evaluate", run=run_dir)
            logging.getLogger("train").info("trained in shards, which one process cannot decode; now run: %s", again)
            return None
    trainer.test(attack, datamodule, verbose=False, weights_only=True)
    if not trainer.is_global_zero:
        return None
    attack.batch_cache.clear()
    from unembed.reports.page import print_summary, write_report

    write_report(run_dir)
    print_summary(run_dir)
    if config.export is not None:
        export_trained(run_dir, Path(config.export))
    return objective_of(run_dir, config.objective)


def main() -> None:
    """``python train.py``, or ``unembed train`` from any directory."""
    launch.main(train, "train")


if __name__ == "__main__":
    main()
