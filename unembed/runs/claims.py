"""Directories owned by one process: created exclusively, locked while in use, and removed if nothing was written.

    directory = claim(Path("runs/x/2026-11-22_14-05-09"))     # or ..._14-05-09-2 if the first name is taken
    with held(directory, "run_dir"):                          # refused while another process holds it
        ...

The lock is an operating system lock on the file ``.lock``, released whenever the process ends. It is a record lock
(``fcntl.lockf``): child processes that survive a killed parent do not inherit it, and NFS supports it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from unembed.core.errors import InputError

log = logging.getLogger("claims")

LOCK = ".lock"
_TRIES = 100
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def claim(directory: Path) -> Path:
    """Create ``directory``, or the first of ``<directory>-2``, ``-3``, ... that does not exist yet.

    Raises:
        OSError: It cannot be created.
    """
    number, path, tries = 1, directory, 0
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.parent.is_dir():  # the name is not taken: a parent is a broken link
                raise
            number += 1
            path = directory.with_name(f"{directory.name}-{number}")
        except FileNotFoundError:  # another process has just removed an empty parent
            tries += 1
            if tries == _TRIES:  # nothing can be created there, as in /proc
                raise
        else:
            return path


@contextlib.contextmanager
def held(directory: Path, key: str) -> Iterator[None]:
    """Lock ``directory`` against other writing processes; it is created if missing.

    On a file system without locks, a warning is logged and no lock is taken.

    Args:
        directory: The directory of a run or an evaluation.
        key: The config key that names it, for messages.

    Raises:
        InputError: Another process holds the lock; the message says which process, on which host, and since when.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    file = _locked(path, f"{key}={directory}")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while locked, so that no other process's file is removed
            directory.rmdir()  # if it is empty, as after a failed start
        os.close(file)


def _locked(path: Path, named: str) -> int:
    while True:
        if path.is_symlink() or (path.exists() and not _is_own(path.stat())):  # the file will be written to
            raise InputError(f"{path}: a link or not a file, so it cannot serve as a lock; remove it")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                log.warning("%s: the file system has no locks; no other process may write there meanwhile", named)
                return file
            holder = os.read(file, 300).decode(errors="replace").strip() or "another process"
            os.close(file)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise InputError(
                f"{named}: {holder} is writing there; wait until it has ended, or choose another directory"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False)):
                break
        os.close(file)  # its owner has ended and removed it between the two calls
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}, started {since},\n".encode())
    return file


def _is_own(status: os.stat_result) -> bool:
    """Whether a file has a single name; with a second hard link, writing could change a file outside the run."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1
