"""Size and SHA-256 of the files that texts are read from, to detect changes.

{"path": "/home/ada/chat.jsonl", "bytes": 81320, "sha256": "9f86d081884c7d65..."}
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from unembed.core.errors import InputError
from unembed.runs.files import DataFile

_SHOWN = 12  # digits of a hash in messages


@runtime_checkable
class ReadsFiles(Protocol):
    """A source that reads files of this machine."""

    def data_files(self) -> Iterable[Path]:
        """All files that ``load`` reads, fetched where they come from elsewhere; one may be missing."""
        ...


def files_of(source: object) -> list[Path]:
    """The files that a source reads; empty if it does not list them."""
    return list(dict.fromkeys(source.data_files())) if isinstance(source, ReadsFiles) else []


def described(files: Iterable[Path]) -> list[DataFile]:
    """Size and hash of each file that is there; some 2 seconds a gigabyte at most."""
    return [_described(file) for file in files if file.is_file()]


def check_unchanged(files: Iterable[Path], trained_on: Sequence[DataFile], names: str) -> None:
    """Check that each file has the content of one that a run was trained on, under any name.

    Args:
        files: The files to read.
        trained_on: The files recorded by the run.
        names: Advice for the message: the option to give if the changed content is intended, or the file has moved.

    Raises:
        InputError: A file has changed, is unknown or missing; names the file and the advice.
    """
    before: Mapping[str, DataFile] = {found.path: found for found in trained_on}
    known = {found.sha256 for found in trained_on}
    for file in files:
        path = str(file.absolute())
        if not file.is_file():
            raise InputError(f"{path}: the run was trained on this file, which is not there any more; {names}")
        now = _described(file)
        if now.sha256 in known:
            continue
        if path not in before:
            raise InputError(f"{path}: it has the content of none of the files that the run was trained on; {names}")
        then = before[path]
        raise InputError(
            f"{path}: has changed since the run was trained on it ({then.bytes:,} bytes, SHA-256 "
            f"{then.sha256[:_SHOWN]}...; now {now.bytes:,} bytes, {now.sha256[:_SHOWN]}...); {names}"
        )


def _described(file: Path) -> DataFile:
    try:
        status = file.stat()
        return DataFile(str(file.absolute()), status.st_size, _sha256(str(file), status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error


@functools.cache
def _sha256(path: str, size: int, modified: int) -> str:
    """The hash of a file; ``size`` and ``modified`` tell it from the same file at another time."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
