"""Commands suggested in messages and pages, quoted so that the user can copy them into the shell.

command("train", run_dir="runs/x (2)", ckpt_path="last")  # python train.py 'run_dir="runs/x (2)"' ckpt_path=last
command("evaluate", "attack.decoding.beams=1", run="runs/a")  # python evaluate.py attack.decoding.beams=1 run=runs/a

What the user has to put in is written as a placeholder: ``<file>``.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

SCRIPTS = ("train", "evaluate", "invert", "audit", "membership", "compare", "export")


def command(script: str | None, *words: str, **values: object) -> str:
    """``python <script>.py <words>``, with the scripts' directory if it is not the working directory.

    Args:
        script: None stands for the running script.
        words: Overrides as they are typed.
        values: Values by key, quoted where Hydra's grammar asks for it.
    """
    running = Path(sys.argv[0])
    name = running.name if script is None else f"{script}.py"
    elsewhere = (script is None or running.stem in SCRIPTS) and running.absolute().parent != Path.cwd()
    path = str(running.with_name(name)) if elsewhere else name
    return shlex.join(["python", path, *words, *(f"{key}={quoted(value)}" for key, value in values.items())])


def quoted(value: object) -> str:
    """A value quoted for Hydra's override grammar, which knows only letters of ASCII outside of quotes."""
    text = str(value)
    if re.fullmatch(r"[\w./:@%+-]+( [\w./:@%+-]+)*", text, re.ASCII):
        return text
    # A backslash is itself, but before a quote it has to be doubled.
    escaped = re.sub(r'(\\*)("|\Z)', lambda found: 2 * found[1] + found[2].replace('"', r"\""), text)
    return f'"{escaped}"'
