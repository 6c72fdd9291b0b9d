"""What all stores in folders have in common: their size, that nothing in them leads outside, and a lock."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from errors import InputError


def checked_size(folder: Path, name: str) -> int:
    """Bytes of all files in a folder.

    Raises:
        InputError: A link is among them.
    """
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    if links:  # a library would follow it, and some write
        raise InputError(f"vectors={name}: {links[0]} is a link, and such a folder holds none; copy what it leads to")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def locked(path: Path, name: str) -> Iterator[None]:
    """Within it, no program that locks this file has the folder open, and none can open it.

    Raises:
        InputError: A program has it open.
    """
    with ExitStack() as opened:
        if path.is_file():
            file = opened.enter_context(path.open("rb"))
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"vectors={name}: another program has it open; end that first") from error
        yield
