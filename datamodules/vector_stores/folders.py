"""What all stores in folders have in common: their size, that nothing in them leads outside, and a lock."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from unembed.core.errors import InputError, missing

# What a folder of each kind of store holds.
MARKS = {"chroma": "chroma.sqlite3", "qdrant": "meta.json", "lancedb": "*.lance", "milvus": "collections"}


def address_of(path: Path) -> str | None:
    """``chroma:folder`` for the folder of a store, or for what marks it as one; None for other paths."""
    for kind, mark in MARKS.items():
        if path.is_dir() and any(path.glob(mark)):
            return f"{kind}:{path}"
        if path.exists() and path.match(mark):
            return f"{kind}:{path.parent}"
    return None


def store_folder(kind: str, place: str) -> Path:
    """The folder of a store.

    Raises:
        InputError: There is none, or it holds no store of this kind; says what to give instead.
    """
    folder = Path(place).expanduser()
    if folder.is_dir() and any(folder.glob(MARKS[kind])):
        return folder
    if not folder.exists():
        raise InputError(f"vectors={kind}:{place}: {missing(folder, 'directory')}")
    address = address_of(folder)
    instead = f"the folder of such a store has {MARKS[kind]}" if address is None else f"give vectors={address}"
    raise InputError(f"vectors={kind}:{place}: no {kind} store; {instead}")


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
