"""The scripts on a run that takes seconds, forked from a process that has imported the libraries."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.processes import ROOT, Script, Warm, program

TINY = [
    "trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_steps=4", "callbacks.progress=null",
    "attack=geia", "attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2",
    "attack.decoding.beams=1", "attack.decoding.max_new_tokens=8", "datamodule.limit_train=64",
    "datamodule.limit_valid=8", "datamodule.limit_test=8", "datamodule.batch_size=16",
    "++datamodule.source.sentences=300", "++datamodule.source.valid=20", "++datamodule.source.test=60",
]  # fmt: skip


class Scripts:
    """Runs the scripts in a folder, with a cache there."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self.folder, self.warm = folder, warm

    def start(self, script: str, *overrides: str, code: str | None = None) -> Script:
        kept = {name: value for name, value in os.environ.items() if name != "RUN_ID"}
        environment = {**kept, "OMP_NUM_THREADS": "1", "UNEMBED_CACHE": str(self.folder / "cache"),
                       "PYTHONPATH": str(ROOT)}  # fmt: skip
        command = [*program(script), *overrides] if code is None else ["-c", code, *program(script), *overrides]
        return self.warm.start(command, cwd=self.folder, environment=environment)

    def end(self, script: Script) -> tuple[int | None, str]:
        """Exit code and standard error."""
        try:
            _, errors = script.communicate()
        finally:
            script.kill()
        return script.returncode, errors

    def refuse(self, script: str, *overrides: str) -> str:
        """The line that a mistake ends with."""
        code, errors = self.end(self.start(script, *overrides))
        assert code == 2, errors[-3000:]
        assert "Traceback" not in errors
        return errors.splitlines()[-1]


def wait_for(script: Script, what: Callable[[], Any]) -> None:
    end = time.monotonic() + 300
    while not what():
        assert script.poll() is None, script.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
