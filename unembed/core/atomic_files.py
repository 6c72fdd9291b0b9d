"""Atomic writes: a reader sees a file's old content or its new content, never a part of it.

    write_json(run / "metrics.json", {"bleu": 31.2})
    with replacing(artifacts / "decoder") as folder:      # renamed to artifacts/decoder when the block ends
        tokenizer.save_pretrained(folder)

Everything is written under a temporary name in the same directory, ``.<name>.<process>-<random>.part``, and renamed.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from unembed.core import limits
from unembed.core.errors import InputError


def write_file(path: Path, content: str | bytes | Callable[[BinaryIO], object], previous: Path | None = None) -> None:
    """Write a file atomically, creating its directory if needed.

    Args:
        path: Final name.
        content: Text, bytes, or a function that writes to the open binary file.
        previous: Where to keep the old content of ``path``, in the same directory. If the process is killed in between,
            this file may exist and ``path`` may not.

    Raises:
        OSError: The disk is full, or the file cannot be created; the error names the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):  # a full disk does not name the file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON."""
    write_file(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n" for row in rows)
    write_file(path, lambda file: file.writelines(lines))


def read_json(path: Path) -> dict[str, Any]:
    """Read a file written by write_json.

    Raises:
        InputError: It is not a JSON object, holds a number that is not finite, or is too large.
        FileNotFoundError: The file does not exist.
    """
    try:
        content = json.loads(limits.text(path, limits.LARGEST_JSON), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object of keys and values, found {type(content).__name__}")
    return content


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a new empty folder that replaces ``folder`` when the block ends; it is removed if the block fails."""
    temporary = _temporary(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_temporary(directory: Path, older_than: float = 0.0) -> None:
    """Remove the temporary files and folders left by killed processes in ``directory`` and below.

    Args:
        directory: The directory.
        older_than: Age in seconds; where other processes may be writing, longer than a write takes.
    """
    for path in list(directory.rglob(".*.part")):
        with suppress(FileNotFoundError):  # its writer has renamed it by now
            if older_than and time.time() - path.lstat().st_mtime < older_than:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _temporary(path: Path) -> Path:
    # Random, since processes of two machines or containers may have the same number.
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def _finite(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(f"{written:.20} is not a finite number")
    return number
