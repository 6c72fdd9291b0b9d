"""The running command, and commands suggested in messages and pages, quoted so that the user can copy them.

command("train", run_dir="runs/x (2)", ckpt_path="last")      # unembed train 'run_dir="runs/x (2)"' ckpt_path=last
command("evaluate", "attack.decoding.beams=1", run="runs/a")  # unembed evaluate attack.decoding.beams=1 run=runs/a

What the user has to put in is written as a placeholder: ``<file>``. From train.py and evaluate.py, commands that
suggest these are ``python train.py ...``.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

SCRIPTS = ("train.py", "evaluate.py")


def arguments() -> list[str]:
    """The arguments of the running command: what follows ``train.py`` or ``unembed train``."""
    return sys.argv[2:] if _is_unembed(Path(sys.argv[0])) else sys.argv[1:]


def command(name: str | None, *words: str, **values: object) -> str:
    """``unembed <name> <words>``, to be copied into the shell.

    Args:
        name: None stands for the running command.
        words: Overrides as they are typed.
        values: Values by key, quoted where Hydra's grammar asks for it.
    """
    running = Path(sys.argv[0])
    if name is None:
        name = sys.argv[1] if _is_unembed(running) else running.stem
    script = f"{name}.py"
    if running.name in SCRIPTS and script in SCRIPTS:
        start = ["python", script if running.absolute().parent == Path.cwd() else str(running.with_name(script))]
    else:
        as_module = _is_unembed(running) and running.suffix == ".py"
        start = [*(["python", "-m"] if as_module else []), "unembed", name]
    return shlex.join([*start, *words, *(f"{key}={quoted(value)}" for key, value in values.items())])


def shown_value(value: object) -> str:
    """A configuration value as it is written on a command line, for messages."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_unembed(program: Path) -> bool:
    """Whether it is the console command ``unembed`` or ``python -m unembed``."""
    return program.stem == "unembed" or (program.name, program.parent.name) == ("__main__.py", "unembed")


def quoted(value: object) -> str:
    """A value quoted for Hydra's override grammar, which knows only letters of ASCII outside of quotes."""
    text = str(value)
    if re.fullmatch(r"[\w./:@%+-]+( [\w./:@%+-]+)*", text, re.ASCII):
        return text
    # A backslash is itself, but before a quote it has to be doubled.
    escaped = re.sub(r'(\\*)("|\Z)', lambda found: 2 * found[1] + found[2].replace('"', r"\""), text)
    return f'"{escaped}"'
