"""How much is read of a file that may be somebody else's, so that none fills the memory or takes the day.

    limits.text(run / "metrics.json", limits.LARGEST_JSON)     # the size is looked at before a byte is read
    for number, line in limits.lines(run / "predictions.jsonl"): ...

A file that lies unpacked on the disk may have any size where it is read line by line: a corpus of 50 GB is. What is
packed (gzip, the dictionaries of parquet) may unfold as far as data does, and not further.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from errors import InputError

LARGEST_CONFIG = 1_000_000  # bytes of a YAML file; those of runs have some thousand
LARGEST_LEXICON = 64_000_000  # bytes of a list of words: some million of them
LARGEST_JSON = 32_000_000  # bytes of one object; mT5's vocabulary takes 10 MB, and each byte may become 32 of objects
LARGEST_LIST = 1_000_000_000  # bytes of a data set that is one JSON list; PersonaChat has 200 MB
LARGEST_TABLE = 4_000_000_000  # bytes of a run's own lines of JSON, all of which are held: two million long texts
LARGEST_TOKENIZER = 250_000_000  # bytes of a tokenizer.json; that of Gemma 3 has 33 MB
LONGEST_LINE = 10_000_000  # bytes of a line or row: a book of 1,500 pages has 4 MB
MOST_TIMES = 100  # bytes that a packed one unfolds to: text takes 3 to 20, templates 60, a bomb 1,000 and more
FREE_BYTES = 128_000_000  # that any packed file may unfold to
FREE_ROWS = 100_000  # that any packed file may hold; beyond, distinct texts take more than a byte each


def content(path: Path, most: int) -> bytes:
    """The bytes of a file of at most ``most``.

    Raises:
        InputError: It has more, or is no regular file, such as a pipe or a device, which might never end.
        OSError: It cannot be read.
    """
    _check_regular(path)
    check_size(path, most)
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:  # it grew, or its size is not known, as in /proc
        raise _too_large(path, len(found), most)
    return found


def text(path: Path, most: int) -> str:
    """The text of a file of at most ``most`` bytes.

    Raises:
        InputError: As ``content``.
        OSError: It cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    return content(path, most).decode()


def lines(path: Path, most: int | None = LARGEST_TABLE, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, 1-based, and their ends; they end at line feeds only.

    Raises:
        InputError: The file has more than ``most`` bytes (None: any number may be read), a line has more than
            ``longest``, or it is no regular file.
        OSError: It cannot be read.
    """
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
    """Whether a file has at most ``most`` bytes.

    Raises:
        InputError: It has more.
        OSError: There is none.
    """
    if (size := path.stat().st_size) > most:
        raise _too_large(path, size, most)


def check_line(path: Path, number: int, size: int, longest: int = LONGEST_LINE) -> None:
    """Whether a line or row, of which ``size`` bytes were read, is short enough.

    Raises:
        InputError: It is not; names file and line.
    """
    if size > longest:
        raise InputError(
            f"{path}:{number}: longer than {longest:,} bytes, the most that are read of a line or row; cut it into "
            "several texts"
        )


class Unfolding:
    """What a packed file has unfolded to so far.

    Args:
        path: The file; its size says how much it may become.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        self.most_bytes, self.most_rows = max(FREE_BYTES, MOST_TIMES * size), max(FREE_ROWS, size)
        self.size, self.bytes, self.rows = size, 0, 0

    def add(self, size: int, rows: int = 0) -> None:
        """Count bytes and rows that were unpacked, or that are about to be.

        Raises:
            InputError: They are more than data of the file's size becomes.
        """
        self.bytes += size
        self.rows += rows
        for count, most, what in ((self.bytes, self.most_bytes, "bytes"), (self.rows, self.most_rows, "rows")):
            if count > most:
                raise InputError(
                    f"{self.path}: {self.size:,} bytes that unfold to more than {most:,} {what}, as no data does; if "
                    "you trust it, unpack it into a .jsonl, which may have any size"
                )


def check_data(path: Path) -> None:
    """Whether a file lies elsewhere than in /proc, where ``environ`` holds keys and passwords as text.

    Raises:
        InputError: It does not; a link may lead there.
    """
    if path.resolve().is_relative_to("/proc"):
        raise InputError(f"{path}: leads to {path.resolve()}, which tells of processes and is no file of data")


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        kind = "a directory" if path.is_dir() else "a pipe or a device"
        raise InputError(f"{path}: {kind}, not a file")
    check_data(path)


def _too_large(path: Path, size: int, most: int) -> InputError:
    return InputError(
        f"{path}: {size:,} bytes, and at most {most:,} are read of such a file: it is not what its name says"
    )
