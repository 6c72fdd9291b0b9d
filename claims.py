"""Directories that belong to one process: claimed by making them, locked while it writes, and not left behind empty.

    directory = claim(Path("runs/x/2026-11-22_14-05-09"))     # or ..._14-05-09-2, where that one stands already
    with held(directory, "run_dir"):                          # refused while another process holds it
        ...

The lock is the operating system's on the file ``.lock``: it goes with the process, however that ends. It is a record
lock (``fcntl.lockf``), as child processes that outlive a killed one do not inherit those, and NFS knows them.
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
from types import TracebackType

import stopping
from errors import InputError
from ranks import is_first
from run_directory import layout

log = logging.getLogger("claims")

LOCK, LOG = ".lock", "log"
_OF_LOGGERS = ("hparams.yaml", "events.out.tfevents.*")  # written before there is a curve
_TRIES = 100
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def claim(directory: Path) -> Path:
    """Make ``directory``, or the first of ``<directory>-2``, ``-3``, ... that nobody has made yet.

    Raises:
        OSError: It cannot be made.
    """
    number, path, tries = 1, directory, 0
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.parent.is_dir():  # it is not the name that is taken: a link above it leads nowhere
                raise
            number += 1
            path = directory.with_name(f"{directory.name}-{number}")
        except FileNotFoundError:  # another process has tidied up an empty parent just now
            tries += 1
            if tries == _TRIES:  # no: nothing can be made there, as in /proc
                raise
        else:
            return path


@contextlib.contextmanager
def held(directory: Path, key: str) -> Iterator[None]:
    """Keep other processes from writing into ``directory``, which is made where it is missing.

    A file system without locks is warned about and written to all the same.

    Args:
        directory: Of a run or an evaluation.
        key: What names it, for the message.

    Raises:
        InputError: Another process holds it; says which, where, and since when.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    file = _locked(path, f"{key}={directory}")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while it is held: nobody else's is removed
        os.close(file)


def _locked(path: Path, named: str) -> int:
    while True:
        if path.is_symlink() or (path.exists() and not _is_own(path.stat())):  # it will be written
            raise InputError(f"{path}: a link or no file, where a process leaves a note that it writes; remove it")
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
        os.close(file)  # its holder has ended and removed it between the two calls
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}, started {since},\n".encode())
    return file


def _is_own(status: os.stat_result) -> bool:
    """Whether a file has one name only: another one may stand outside of somebody else's run."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


class Tidied:
    """Removes what this process made for nothing: directories of a start that failed.

        with Tidied() as made:
            made.expect(directory)      # before it is made
            ...

    After a mistake of the user a directory goes that holds no more than every start writes, its configuration and its
    log; after a signal only where nothing had begun, since the configuration is what a run is resumed with; after
    anything else only one that holds nothing.

    Args:
        keeps_log: Whether a log by itself is kept where all went well.
    """

    def __init__(self, *, keeps_log: bool = True) -> None:
        self.keeps_log = keeps_log
        self._places: list[tuple[Path, list[Path]]] = []

    def __enter__(self) -> Tidied:
        return self

    def expect(self, directory: Path) -> None:
        """Take note of a directory that is made later, and of missing ones above it; one that stands stays."""
        missing = _missing(directory)
        if missing and missing[0] == directory.absolute():
            self._places.append((directory.absolute(), missing))

    def claim(self, directory: Path) -> Path:
        """:func:`claim`, taken note of."""
        above = _missing(directory.parent)
        path = claim(directory).absolute()
        self._places.append((path, [path, *above]))
        return path if directory.is_absolute() else path.relative_to(Path.cwd())

    def adopt(self, directory: Path) -> None:
        """Take note of a directory that has been made for this process, unless a run stands in it."""
        if not (directory / layout.CONFIG).exists():
            self._places.append((directory.absolute(), [directory.absolute()]))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        stopped = isinstance(error, KeyboardInterrupt) or getattr(error, "code", None) in stopping.WORDS
        disposable: tuple[str, ...] = ()
        if isinstance(error, InputError) or getattr(error, "mistake", False):
            disposable = (LOG, layout.CONFIG, *_OF_LOGGERS)
        elif stopped or (error is None and not self.keeps_log):
            disposable = (LOG,)
        if is_first():
            for directory, missing in reversed(self._places):
                _remove(directory, missing, disposable, failed=error is not None)


def _missing(directory: Path) -> list[Path]:
    directory = directory.absolute()
    return [path for path in (directory, *directory.parents) if not path.exists()]


def _remove(directory: Path, missing: list[Path], disposable: tuple[str, ...], *, failed: bool) -> None:
    """Remove a directory whose files all have ``disposable`` names, and parents that are empty then."""

    def is_disposable(path: Path) -> bool:
        if path.name == LOG and failed and path.stat().st_size == 0:
            return True
        return any(path.match(name) for name in (*disposable, LOCK))

    # Another process that writes there keeps it, and so does one that puts something there just now.
    with contextlib.suppress(OSError, InputError):
        files = [path for path in directory.rglob("*") if not path.is_dir() or path.is_symlink()]
        if directory.is_dir() and all(map(is_disposable, files)):
            with held(directory, "directory"):
                for path in files:
                    if path.name != LOCK:
                        path.unlink()
            for folder in sorted((path for path in directory.rglob("*") if path.is_dir()), reverse=True):
                folder.rmdir()
            for path in missing:
                path.rmdir()
