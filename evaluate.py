"""Test the attack of a run again: on its own test texts, on other data, with another decoding.

    python evaluate.py run=<dir>                                               # the metrics of the training run again
    python evaluate.py run=<dir> datamodule=files datamodule.test=mine.jsonl   # other text
    python evaluate.py run=<dir> attack.decoding.beams=1 datamodule.limit_test=100
    python evaluate.py run=<dir> defense=noise defense.level=0.01              # a naive attacker, unaware of it
    python evaluate.py run=<dir> attack/decoding=sampling trials=10 compare=<dir> # means of ten trials, and a t-test
    python evaluate.py run=<dir> experiment=strongest                  # with the run's search, 300 queries a text
    python evaluate.py run=<dir> experiment=tradeoff collection=<dir>  # privacy against search quality, by defense
    python evaluate.py run=<dir> callbacks=iterative_correction logger=wandb   # metrics and curve in a logger, too

Everything else is rebuilt from the run directory. Results go to <run>/evaluations/<time>, or to output_dir=<dir>: the
same command with the directory of an evaluation that was killed resumes it.
"""

from __future__ import annotations

if __name__ == "__main__":
    from unembed.core import stopping

    stopping.begin()

from pathlib import Path

from omegaconf import DictConfig

from unembed import launch
from unembed.core.errors import InputError
from unembed.core.ranks import check_devices


def evaluate(settings: DictConfig, config: DictConfig) -> None:
    """Open the run -> test, once or in several trials -> report."""
    from lightning import seed_everything

    from unembed.reports import trials
    from unembed.reports.page import print_summary, write_report
    from unembed.reports.tradeoff import UNDEFENDED, trade_off
    from unembed.session import Session

    run, output = Path(settings.run), Path(settings.output_dir)
    if settings.tradeoff is not None:
        lines = [UNDEFENDED, *(line for line in settings.tradeoff.points if line != UNDEFENDED)]
        points = launch.defense_points(config, lines, "tradeoff.points", settings.config_dir)
        trade_off(Session.open(run, config), settings, points)
        return
    if settings.collection is not None:
        raise InputError(f"collection={settings.collection}: it is searched by experiment=tradeoff; add that")
    other = None if settings.compare is None else trials.find(Path(settings.compare), "compare")
    if other is not None and settings.trials == 1:  # both directories have been tested
        trials.compare(trials.find(run, "run"), other)
        return
    check_devices(config.trainer)
    session = Session.open(run, launch.with_queries(config, run, settings.max_queries))
    session.check()
    seed_everything(config.seed, workers=True, verbose=False)
    if session.run_trials(output, settings.trials, session.checkpoint(settings.ckpt_path), settings.other_data):
        if settings.trials > 1:
            trials.write_trials(output, settings.trials)
            if other is not None:
                trials.compare(output, other)
        write_report(output)
        print_summary(output)


def main() -> None:
    """``python evaluate.py``, or ``unembed evaluate`` from any directory."""
    launch.main(evaluate, "evaluate")


if __name__ == "__main__":
    main()
