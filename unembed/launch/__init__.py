"""Command lines: composing and checking configurations, help, and exit codes.

    python train.py attack=geia embedder=simcse         # a configuration from configs/, checked before it is built
    python evaluate.py run=runs/x datamodule=files      # a run's own configuration with overrides

Exit codes: 0, 2 for a user error (one line per mistake), 130 for Ctrl-C, 143 for SIGTERM, and 1 with a
traceback for anything else. torch is imported only after all names are right, so that --help is fast. The functions of
this package and of unembed.runs raise InputError for what the user can correct.
"""

from unembed.launch.checking import check
from unembed.launch.composing import amend, plain, search_of, with_queries
from unembed.launch.finished_run import DefensePoint, compose, defense_points, on_run
from unembed.launch.locations import find_run
from unembed.launch.running import main

__all__ = [
    "DefensePoint",
    "amend",
    "check",
    "compose",
    "defense_points",
    "find_run",
    "main",
    "on_run",
    "plain",
    "search_of",
    "with_queries",
]
