"""Texts and labels of a data module in memory-mapped files: they take the disk, not the memory.

examples = to_arrow(Example(0, text) for text in corpus)   # written to a temporary file, 4,096 rows at once
examples[7]                                                # Example(index=7, text="My name is Ada.", ...)
examples.select(np.flatnonzero(wanted))                    # the same file with fewer rows, renumbered
examples.texts[100:200]                                    # ["My name is Ada.", ...]
TokenIds(examples.texts, encode).padded([7, 9])            # (2, T) labels

The files have no name while they are in use, so that nothing remains of a killed process. ``TMPDIR`` sets their place.
"""

from __future__ import annotations

import errno
import operator
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example, Span, written_ids

if TYPE_CHECKING:
    from datasets import Dataset

ROWS = 4096  # written or read at once
IGNORED = -100  # a label that no loss counts
ENCODED_TOGETHER = 16_384  # texts: bounds the lists of ids that exist at one time

_TEXT, _LIST = pyarrow.large_string(), pyarrow.large_list
_SPAN = pyarrow.struct([("start", pyarrow.int64()), ("end", pyarrow.int64()), ("label", _TEXT)])
_TYPES = {
    "text": _TEXT,
    "spans": _LIST(_SPAN),
    "language": _TEXT,
    "attributes": _LIST(pyarrow.struct([("name", _TEXT), ("value", _TEXT)])),
    "group": _TEXT,
    "context": _TEXT,
    "original": _TEXT,
    "tokens": _LIST(pyarrow.int64()),
    "token_labels": _LIST(_TEXT),
}
_SCHEMA = pyarrow.schema([(field.name, _TYPES[field.name]) for field in fields(Example) if field.name != "index"])
# How a value is stored and read where Arrow has no such type; what is empty is stored as null.
_STORED: Mapping[str, Callable[[Any], Any]] = {
    "spans": lambda spans: [(span.start, span.end, span.label) for span in spans] or None,
    "attributes": lambda attributes: list(attributes.items()) or None,
    "token_labels": lambda labels: labels or None,
}
_READ: Mapping[str, Callable[[Any], Any]] = {
    "spans": lambda rows: tuple(Span(row["start"], row["end"], row["label"]) for row in rows),
    "attributes": lambda rows: {row["name"]: row["value"] for row in rows},
    "tokens": tuple,
    "token_labels": tuple,
}


class Encode(Protocol):
    """Maps texts to the token ids that an attack learns to predict."""

    def __call__(self, texts: Sequence[str], /) -> Sequence[Sequence[int]]: ...


def to_arrow(examples: Iterable[Example]) -> ArrowExamples:
    """The examples in a file, numbered by their position; those that lie in one stay there.

    Raises:
        InputError: A text is not valid Unicode, or the disk is full.
    """
    if isinstance(examples, ArrowExamples):
        return examples
    source = iter(examples)
    return _written(_batch(some) for some in iter(lambda: list(islice(source, ROWS)), []))


def _written(batches: Iterable[pyarrow.RecordBatch]) -> ArrowExamples:
    from datasets import Dataset  # takes half a second

    with tempfile.NamedTemporaryFile(suffix=".arrow") as file, pyarrow.ipc.new_stream(file, _SCHEMA) as stream:
        for batch in batches:
            with _room():
                stream.write(batch)
        stream.close()
        file.flush()
        return ArrowExamples(Dataset.from_file(file.name).with_format("arrow"))


def _batch(examples: Sequence[Example]) -> pyarrow.RecordBatch:
    columns = []
    for name in _SCHEMA.names:
        values = [getattr(example, name) for example in examples]
        if (stored := _STORED.get(name)) is not None:
            values = [stored(value) for value in values]
        try:
            columns.append(pyarrow.array(values, _TYPES[name]))
        except UnicodeEncodeError as error:  # a lone surrogate, as JSON may carry
            raise InputError(f"the {name} of a text is not valid Unicode: {error.object!r:.80}") from error
    return pyarrow.record_batch(columns, schema=_SCHEMA)


class ArrowExamples(Sequence[Example]):
    """Examples that are read from the file when they are indexed or iterated over; ``index`` is the position."""

    def __init__(self, rows: Dataset) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[np.integer[Any]]) -> list[Example]: ...
    def __getitem__(self, index: int | slice | Sequence[int] | NDArray[np.integer[Any]]) -> Example | list[Example]:
        """One example, or those of a range or list of positions."""
        if isinstance(index, slice):
            index = range(len(self))[index]
        elif not isinstance(index, Sequence | np.ndarray):
            return self._read([range(len(self))[operator.index(index)]])[0]
        return self._read([int(place) for place in index])

    def __iter__(self) -> Iterator[Example]:
        for begin in range(0, len(self), ROWS):
            yield from self._read(range(begin, min(begin + ROWS, len(self))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def select(self, positions: NDArray[np.integer[Any]]) -> ArrowExamples:
        """The examples at ``positions`` (m,), ascending, in a file of their own: reading through a list is slow."""
        if len(positions) == len(self):
            return self
        begins = range(0, len(self), ROWS)
        bounds = np.searchsorted(positions, [*begins, len(self)])
        return _written(
            self._rows[begin : begin + ROWS].take(positions[low:high] - begin).combine_chunks()
            for begin, low, high in zip(begins, bounds, bounds[1:], strict=False)
        )

    @property
    def texts(self) -> Texts:
        """``text`` of every example."""
        return Texts([self], ids=False)

    @property
    def queries(self) -> Texts:
        """``query`` of every example."""
        return Texts([self], ids=True)

    def column(self, name: str) -> Iterator[Any]:
        """One attribute of every example, None where it is empty."""
        read = _READ.get(name, lambda value: value)
        for table in self._rows.select_columns(name).iter(ROWS):
            yield from (None if value is None else read(value) for value in table[name].combine_chunks().to_pylist())

    def written(self, begin: int, end: int, *, ids: bool) -> Iterator[str]:
        """The texts from ``begin`` to ``end``; with ``ids``, those of examples of token ids as ``query`` has them."""
        rows = self._rows.select_columns(["text", "tokens"] if ids else ["text"])
        for start in range(begin, end, ROWS):
            table = rows[start : min(start + ROWS, end)].combine_chunks()
            texts = table["text"].to_pylist()
            if ids and table["tokens"].null_count < len(texts):
                both = zip(texts, table["tokens"].to_pylist(), strict=True)
                texts = [text if row is None else written_ids(row) for text, row in both]
            yield from texts

    def _read(self, places: Sequence[int]) -> list[Example]:
        table = self._rows[places].combine_chunks()
        columns = {}
        for name in table.column_names:
            if (column := table[name]).null_count < len(column):
                values, read = column.to_pylist(), _READ.get(name)
                columns[name] = [None if value is None else read(value) for value in values] if read else values
        return [
            Example(place, **{name: value for name, value in zip(columns, row, strict=True) if value is not None})
            for place, row in zip(places, zip(*columns.values(), strict=True), strict=True)
        ]


class Texts(Sequence[str]):
    """The texts of examples, one list after another, each read when it is indexed.

    Args:
        parts: The examples.
        ids: Give ``query``, token ids written out, where an example has some.
    """

    def __init__(self, parts: Sequence[ArrowExamples], *, ids: bool) -> None:
        self._parts, self._ids = parts, ids
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __add__(self, other: Texts) -> Texts:
        return Texts([*self._parts, *other._parts], ids=self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One text, or those of a range."""
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            return list(self._between(begin, end))[::step]
        place = range(len(self))[operator.index(index)]
        return next(self._between(place, place + 1))

    def __iter__(self) -> Iterator[str]:
        return self._between(0, len(self))

    def _between(self, begin: int, end: int) -> Iterator[str]:
        for part, part_end in zip(self._parts, self._ends, strict=True):
            start = part_end - len(part)
            yield from part.written(max(begin - start, 0), min(end - start, len(part)), ids=self._ids)


class TokenIds:
    """Token ids of many texts, end to end in one memory-mapped file.

    Attributes:
        lengths: Ids of each text, (n,).
    """

    def __init__(self, texts: Sequence[str], encode: Encode) -> None:
        self.lengths: NDArray[np.int32] = np.empty(len(texts), np.int32)
        with tempfile.TemporaryFile() as file:
            for start in range(0, len(texts), ENCODED_TOGETHER):
                ids = encode(texts[start : start + ENCODED_TOGETHER])
                self.lengths[start : start + len(ids)] = [len(row) for row in ids]
                with _room():
                    file.write(np.fromiter(chain.from_iterable(ids), np.int32).tobytes())
            file.write(bytes(4))  # of no text: an empty file cannot be mapped
            self._ids = np.memmap(file, np.int32, mode="r")
        self._ends = np.cumsum(self.lengths, dtype=np.int64)

    def padded(self, indices: NDArray[np.integer[Any]]) -> Tensor:
        """Labels of some texts, (B, T) int64 with T the longest of them, padded with -100."""
        lengths = self.lengths[indices]
        places = np.arange(lengths.max(initial=0))
        within = places < lengths[:, None]
        padded = np.full(within.shape, IGNORED, np.int64)
        padded[within] = self._ids[((self._ends[indices] - lengths)[:, None] + places)[within]]
        return torch.from_numpy(padded)


@contextmanager
def _room() -> Iterator[None]:
    """Explain the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        folder = tempfile.gettempdir()
        raise InputError(
            f"{folder}: no room for the texts in a temporary file, {shutil.disk_usage(folder).free / 1e6:,.1f} MB are "
            "free; the variable TMPDIR names another place"
        ) from error
