"""What stands between a command line and the scripts: composing, checking, help, and how a script ends.

    python train.py attack=geia embedder=simcse         # a configuration from configs/, checked before it is built
    python evaluate.py run=runs/x datamodule=files      # a run's own configuration, amended

Exit codes: 0, 2 for something that the user gave (a line for each mistake), 130 for Ctrl-C, 143 for SIGTERM, 1 and a
traceback for the rest. Nothing here imports torch before the configuration is checked, so that --help answers at once.
"""

from configuration.amending import amend
from configuration.composing import check, compose, plain
from configuration.finished_run import on_run
from configuration.points import DefensePoint, defense_points
from configuration.resuming import keep, note_changes
from configuration.running import check_devices, main, main_on_run

__all__ = [
    "DefensePoint",
    "amend",
    "check",
    "check_devices",
    "compose",
    "defense_points",
    "keep",
    "main",
    "main_on_run",
    "note_changes",
    "on_run",
    "plain",
]
