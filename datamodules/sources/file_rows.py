"""Files of texts, row by row: .jsonl, .csv, .tsv, .txt and .parquet, and .gz of each but the last; their hashes.

for line, row in rows(existing("chat.jsonl", "datamodule.path"), text_field="utterance"):
    row                                                             # {"utterance": "hi, I am Ada", "split": "train"}
described([Path("chat.jsonl")])          # [DataFile("/home/ada/chat.jsonl", 81320, "9f86d081884c7d65...")]
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, cast, runtime_checkable

from unembed.core import limits
from unembed.core.errors import InputError, did_you_mean, missing
from unembed.runs.files import DataFile

EXTENSIONS = (".jsonl", ".csv", ".tsv", ".parquet", ".txt")
_ROWS_AT_ONCE = 4096  # of a parquet file


def existing(name: str, key: str) -> Path:
    """The file of that name.

    Raises:
        InputError: There is none, it is a directory, or lies in /proc; names ``key`` and the nearest file beside it.
    """
    file = Path(name).expanduser()
    if file.is_file():
        limits.check_data(file)
        return file
    if file.is_dir():
        raise InputError(f"{key}={name} is a directory, not a file")
    raise InputError(f"{key}={name}: {missing(file)}")


def rows(file: Path, text_field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a file with their line numbers (row numbers in parquet), 1-based.

    Raises:
        InputError: The extension is unknown, bytes are not UTF-8, or a line is not of the file's format.
    """
    extension = file.with_suffix("").suffix if file.suffix.lower() == ".gz" else file.suffix
    match extension.lower():
        case ".jsonl":
            yield from _json_rows(file, text_field)
        case ".csv":
            yield from _table_rows(file, text_field, ",", csv.QUOTE_MINIMAL)
        case ".tsv":
            yield from _table_rows(file, text_field, "\t", csv.QUOTE_NONE)
        case ".txt":
            yield from plain_rows(file, text_field)
        case ".parquet" if file.suffix.lower() != ".gz":
            yield from _parquet_rows(file)
        case _:
            raise InputError(f"{file}: unknown extension {extension!r}; {did_you_mean(extension, EXTENSIONS)}")


def plain_rows(file: Path, text_field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a file with a text a line, whatever its extension; .gz is unpacked.

    Raises:
        InputError: Bytes are not UTF-8, or the file is damaged.
    """
    return ((number, {text_field: line.rstrip("\r\n")}) for number, line in _lines(file))


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Decoded lines with their ends and numbers; a byte order mark at the start is left out."""
    number = 0
    packed = file.suffix.lower() == ".gz"
    try:
        with cast(IO[bytes], gzip.open(file) if packed else file.open("rb")) as stream:
            while line := stream.readline(limits.LONGEST_LINE + 1):
                number += 1
                limits.check_line(file, number, len(line))
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}:{number}: not UTF-8 ({error.reason} at byte {error.start + 1} of the line)"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: damaged or not gzip, after line {number} ({error})") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error


def _json_rows(file: Path, text_field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in _lines(file):
        if not line.strip():
            yield number, {text_field: ""}
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}:{number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"{file}:{number}: a line should be a JSON object, not {type(row).__name__}")
        yield number, row


def _table_rows(file: Path, text_field: str, delimiter: str, quoting: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(limits.LONGEST_LINE)  # else 128 KiB
    reader = csv.reader((line for _, line in _lines(file)), delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] | None = None
    try:
        for values in reader:
            if not values:
                yield reader.line_num, {text_field: ""}
            elif header is None:
                header = [name.strip() for name in values]
            elif len(values) != len(header):
                raise InputError(f"{file}:{reader.line_num}: {len(values)} fields, but the header has {len(header)}")
            else:
                yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: not valid {file.name} ({error})") from error


def _parquet_rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # a date of no calendar, too
        raise InputError(f"{file}: damaged or not parquet, after row {number} ({error})") from error


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
