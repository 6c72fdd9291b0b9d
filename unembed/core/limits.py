"""Limits on the size of files from untrusted sources, so that none exhausts memory or time.

    limits.text(run / "metrics.json", limits.LARGEST_JSON)     # checks the size before reading
    for number, line in limits.lines(run / "predictions.jsonl"): ...

A file that is read line by line may have any size, such as a corpus of 50 GB. Errors of a size, and of a pipe, a device
or a file of /proc, are InputError.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from unembed.core.errors import InputError, missing

LARGEST_CONFIG = 1_000_000  # bytes of a YAML file; a run's config has a few thousand
LARGEST_LEXICON = 64_000_000  # bytes of a word list of some million words
LARGEST_JSON = 32_000_000  # bytes of one object; mT5's vocabulary takes 10 MB; a byte may become 32 bytes of objects
LARGEST_TABLE = 4_000_000_000  # bytes of a run's own JSON lines, all held in memory: two million long texts
LARGEST_TOKENIZER = 250_000_000  # bytes of a tokenizer.json; Gemma 3's has 33 MB
LONGEST_LINE = 10_000_000  # bytes of a line or row: a book of 1,500 pages has 4 MB


def content(path: Path, most: int) -> bytes:
    """The bytes of a file of at most ``most`` bytes."""
    _check_regular(path)
    check_size(path, most)
    return path.read_bytes()


def text(path: Path, most: int) -> str:
    """The text of a file of at most ``most`` bytes."""
    return content(path, most).decode()


def lines(path: Path, most: int | None = LARGEST_TABLE, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """The lines of a file of at most ``most`` bytes (None: no limit), split at line feeds only, with their numbers."""
    _check_regular(path)
    if most is not None:
        check_size(path, most)
    number = 0
    with path.open("rb") as file:
        while line := file.readline(longest + 1):
            number += 1
            check_line(path, number, len(line), longest)
            yield number, line


def check_size(path: Path, most: int) -> None:
    """Check that a file has at most ``most`` bytes."""
    if (size := path.stat().st_size) > most:
        raise InputError(f"{path}: {size:,} bytes, and at most {most:,} are read of such a file")


def check_line(path: Path, number: int, size: int, longest: int = LONGEST_LINE) -> None:
    """Check the length of a line or row of which ``size`` bytes were read."""
    if size > longest:
        raise InputError(
            f"{path}:{number}: longer than {longest:,} bytes, the most that are read of a line or row; cut it into "
            "several texts"
        )


def check_data(path: Path) -> None:
    """Refuse a file in /proc, where ``environ`` holds keys and passwords."""
    if path.resolve().is_relative_to("/proc"):
        raise InputError(f"{path}: leads to {path.resolve()}, which describes processes and is not a data file")


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path}: {'a directory' if path.is_dir() else 'a pipe or a device'}, not a file")
    check_data(path)


def existing(name: str, key: str) -> Path:
    """The file of that name."""
    file = Path(name).expanduser()
    if file.is_file():
        check_data(file)
        return file
    if file.is_dir():
        raise InputError(f"{key}={name} is a directory, not a file")
    raise InputError(f"{key}={name}: {missing(file)}")
