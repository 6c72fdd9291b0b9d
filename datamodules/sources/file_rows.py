"""Files of texts, row by row: .jsonl, .csv, .tsv, .txt and .parquet, and .gz of each but the last.

for line, row in rows(existing("chat.jsonl", "datamodule.path"), text_field="utterance"):
    row                                                             # {"utterance": "hi, I am Ada", "split": "train"}
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from unembed.core import limits
from unembed.core.errors import InputError, did_you_mean, missing

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
