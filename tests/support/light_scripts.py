"""Scripts that end with a message before anything heavy is imported, in forks of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.processes import ROOT, program

HEAVY = ("torch", "lightning", "transformers", "scipy", "torchmetrics")
# Runs each command in a fork of a process that has imported what all scripts import first.
WRAPPED = f"""
import atexit, json, os, runpy, sys
import unembed.commands.audit
from unembed import launch as configuration
for number, command in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{{sys.argv[2]}}/{{number}}.{{name}}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        atexit.register(lambda: print("imported", *(name for name in {HEAVY} if name in sys.modules)))
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 2, command
"""


def answers(*commands: list[str], folder: Path) -> list[list[str]]:
    """What scripts say of mistakes, which they must do without an import of HEAVY and with code 2."""
    given = json.dumps([[*program(script), *arguments] for script, *arguments in commands])
    with tempfile.TemporaryDirectory() as said:
        done = subprocess.run(
            [sys.executable, "-c", WRAPPED, given, said], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = [[(Path(said) / f"{n}.{kind}").read_text() for kind in ("out", "err")] for n in range(len(commands))]
    assert all(out == "imported\n" for out, _ in found), found
    return [errors.splitlines() for _, errors in found]
