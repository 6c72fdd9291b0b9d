"""Reads the file of an offline W&B run, which W&B's own process writes, and may end after ``finish``."""

from __future__ import annotations

import time
from pathlib import Path


def recorded(folder: Path, *expected: bytes, seconds: float = 60.0) -> bytes:
    """The content of the only offline run in ``folder``, once all of ``expected`` is in it or the time is up."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    until = time.monotonic() + seconds
    while not all(part in file.read_bytes() for part in expected) and time.monotonic() < until:
        time.sleep(0.1)
    return file.read_bytes()
