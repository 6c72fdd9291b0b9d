"""Commands that messages propose, as they can be typed where the user is.

command("train", "run_dir=my runs/x", "ckpt_path=last")     # python train.py 'run_dir=my runs/x' ckpt_path=last
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

SCRIPTS = ("train", "evaluate", "invert", "audit", "compare")


def command(script: str, *words: str) -> str:
    """``python <script>.py <words>``, with the directory of the scripts where that is not the working directory."""
    running = Path(sys.argv[0])
    name = Path(f"{script}.py")
    if running.stem in SCRIPTS and running.absolute().parent != Path.cwd():
        name = running.with_name(name.name)
    return shlex.join(["python", str(name), *words])
