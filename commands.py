"""Commands suggested in messages, quoted so that the user can copy them into the shell.

command("train", "run_dir=my runs/x", "ckpt_path=last")     # python train.py 'run_dir=my runs/x' ckpt_path=last
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

SCRIPTS = ("train", "evaluate", "invert", "audit", "membership", "compare", "export")


def command(script: str | None, *words: str) -> str:
    """``python <script>.py <words>``, with the scripts' directory if it is not the working directory.

    ``script=None`` stands for the running script.
    """
    running = Path(sys.argv[0])
    name = running.name if script is None else f"{script}.py"
    elsewhere = (script is None or running.stem in SCRIPTS) and running.absolute().parent != Path.cwd()
    return shlex.join(["python", str(running.with_name(name)) if elsewhere else name, *words])
