"""Claims on texts: if several processes fill one cache, only one of them sends a text and the others wait.

    with claiming(folder, keys) as mine:      # (n,) bool; False: a running process has claimed that text before
        ...                                   # send and store the claimed texts

A claim is a file of keys that its process locks while it is in ``claiming``; claims of dead processes are void. No
process waits for other texts within ``claiming``, so there are no deadlocks. On a disk without file locks all claims
are void, and each process sends all its texts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unembed.embedders.cache.shards import Keys, lock

_SUFFIX = ".claim"
_MUTEX = "claims.lock"
_MUTEX_SECONDS = 5.0  # a process claims within milliseconds, unless it is suspended just then


@contextlib.contextmanager
def claiming(folder: Path, keys: Keys) -> Iterator[NDArray[np.bool_]]:
    """Context manager: claim those of ``keys`` (n, 2) that no other process has claimed.

    Raises:
        OSError: The folder is not writable, or the disk is full.
    """
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
    try:
        with contextlib.ExitStack() as mutex:
            # One process at a time reads the claims and adds its own.
            descriptor = os.open(folder / _MUTEX, os.O_RDWR | os.O_CREAT, 0o600)
            mutex.callback(os.close, descriptor)
            end = time.monotonic() + _MUTEX_SECONDS
            while not lock(descriptor) and time.monotonic() < end:
                time.sleep(0.01)
            mine = ~_claimed(folder, keys)
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            lock(file.fileno())
            file.write(np.ascontiguousarray(keys[mine, 0], dtype="<u8").tobytes())
            file.flush()
        with file:
            yield mine
    finally:
        path.unlink(missing_ok=True)


def _claimed(folder: Path, keys: Keys) -> NDArray[np.bool_]:
    """Which of ``keys`` a running process has claimed, by their first 64 bits, (n,)."""
    claimed = np.zeros(len(keys), dtype=np.bool_)
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
            if lock(file.fileno()):
                path.unlink()
                continue
            content = file.read()
            claimed |= np.isin(keys[:, 0], np.frombuffer(content[: len(content) // 8 * 8], dtype="<u8"))
    return claimed
