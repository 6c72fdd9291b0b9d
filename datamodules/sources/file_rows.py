"""Files of texts, row by row: .jsonl, .csv, .tsv, .txt and .parquet, and .gz of each but the last.

for line, row in rows(existing("chat.jsonl", "datamodule.path"), text_field="utterance"):
    row                                                             # {"utterance": "hi, I am Ada", "split": "train"}
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from unembed.core import limits
from unembed.core.errors import InputError, did_you_mean, missing
from unembed.datamodules.vector_stores.child import Answer, Child, limits_for

EXTENSIONS = (".jsonl", ".csv", ".tsv", ".parquet", ".txt")
UNFOLDED_TOGETHER = 64_000_000  # bytes of parquet that become Python objects at a time
_TEXT = {"STRING", "JSON", "ENUM", "BSON", "NONE"}  # logical types that may be read as a dictionary


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
        unfolding = limits.Unfolding(file) if packed else None
        with cast(IO[bytes], gzip.open(file) if packed else file.open("rb")) as stream:
            while line := stream.readline(limits.LONGEST_LINE + 1):
                number += 1
                limits.check_line(file, number, len(line))
                if unfolding is not None:
                    unfolding.add(len(line), rows=1)
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
    size = 0  # characters of the lines that the present row runs over

    def counted() -> Iterator[str]:
        nonlocal size
        for number, line in _lines(file):
            size += len(line)
            limits.check_line(file, number, size)
            yield line

    reader = csv.reader(counted(), delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] | None = None
    try:
        for values in reader:
            size = 0
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
    import pyarrow

    number = 0
    try:
        for batch in batches(file):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # a date of no calendar, too
        raise InputError(f"{file}: damaged or not parquet, after row {number} ({error})") from error


def batches(file: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Record batches of a parquet file, each of a size that can be made into Python objects.

    Texts stay as they are stored, in a dictionary, until their lengths are known: 500 bytes may stand for 3 GB.

    Args:
        file: The file.
        columns: Names of those to read; None reads all.

    Raises:
        InputError: It unfolds to more than data does, or a row is too long.
        pyarrow.ArrowException: It is damaged.
    """
    import pyarrow.parquet

    unfolding, number = limits.Unfolding(file), 0
    texts, widest = checked(file, columns)
    with pyarrow.parquet.ParquetFile(file, read_dictionary=texts) as found:
        together = max(1, min(UNFOLDED_TOGETHER // widest, 65_536))
        groups = range(found.num_row_groups)  # each has dictionaries of its own, and pyarrow joins none in lists
        read = (found.iter_batches(together, row_groups=[group], columns=columns) for group in groups)
        for part, size in (small for batch in chain.from_iterable(read) for small in _small(batch)):
            if len(part) == 1:
                limits.check_line(file, number + 1, size)
            unfolding.add(size, rows=len(part))
            number += len(part)
            yield part


def checked(file: Path, columns: Sequence[str] | None = None) -> tuple[list[str], int]:
    """The result of ``declared``, in a separate process, since Arrow aborts on some damaged metadata.

    Raises:
        InputError: As ``declared``, or the process ended.
    """
    child = Child(str(file), declared, [str(file), columns], ["pyarrow.parquet"], limits_for(file.stat().st_size))
    child.close()
    texts, widest = child.opened
    return texts, widest


def declared(name: str, columns: Sequence[str] | None) -> tuple[tuple[list[str], int], Answer]:
    """Metadata of a parquet file: its text columns, and the bytes of its widest fixed-width column.

    Raises:
        InputError: It is damaged, or declares more than data unfolds to.
    """
    import pyarrow.parquet

    said, texts, widest = limits.Unfolding(Path(name)), list[str](), 8
    try:
        with pyarrow.parquet.ParquetFile(name) as found:
            said.add(0, rows=found.metadata.num_rows)
            for number in range(len(found.schema)):
                column = found.schema.column(number)
                if columns is not None and not any(f"{column.path}.".startswith(f"{one}.") for one in columns):
                    continue
                if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in _TEXT:
                    texts.append(column.path)
                widest = max(widest, column.length)
                for group in range(found.num_row_groups):
                    part = found.metadata.row_group(group).column(number)
                    # Of a text that a dictionary holds, each value is a number: how long it is, is counted later.
                    said.add(max(part.total_uncompressed_size, part.num_values * max(4, column.length)))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: damaged or not parquet, after row 0 ({error})") from error
    return (texts, widest), lambda request: np.empty((len(request), 0), np.float32)


def _small(batch: Any) -> Iterator[tuple[Any, int]]:
    """A batch in parts of at most UNFOLDED_TOGETHER bytes, or of one row, with what they unfold to."""
    size = sum(map(_unfolded, batch.columns))
    if size <= UNFOLDED_TOGETHER or len(batch) <= 1:
        yield batch, size
        return
    middle = len(batch) // 2
    for part in (batch.slice(0, middle), batch.slice(middle)):
        yield from _small(part)


def _unfolded(array: Any) -> int:
    """Bytes of an Arrow array's values, those of dictionaries counted as often as they occur."""
    import pyarrow
    import pyarrow.compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        lengths = pyarrow.compute.binary_length(array.dictionary)
        return pyarrow.compute.sum(lengths.take(array.indices)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_unfolded, array.flatten()))
    if pyarrow.types.is_map(kind):
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_unfolded(part.slice(begin, end - begin)) for part in (array.keys, array.items))
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        return _unfolded(array.flatten())
    return int(array.nbytes)
