"""Texts and labels of a data module in memory-mapped files: they take the disk, not the memory.

examples = to_arrow(Example(0, text) for text in corpus)   # written to a temporary file, 4,096 rows at once
examples[7]                                                # Example(index=7, text="My name is Ada.", ...)
examples.select(np.flatnonzero(wanted))                    # the same file with fewer rows, renumbered
examples.texts[100:200]                                    # ["My name is Ada.", ...]
TokenIds(examples.texts, encode).padded([7, 9])            # (2, T) labels

The files have no name while they are in use, so that nothing remains of a killed process. ``TMPDIR`` sets their place.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain, islice
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
    """The examples in a file, numbered by their position; those that lie in one stay there."""
    if isinstance(examples, ArrowExamples):
        return examples
    source = iter(examples)
    return _written(_batch(some) for some in iter(lambda: list(islice(source, ROWS)), []))


def _written(batches: Iterable[pyarrow.RecordBatch]) -> ArrowExamples:
    from datasets import Dataset  # takes half a second

    with tempfile.NamedTemporaryFile(suffix=".arrow") as file, pyarrow.ipc.new_stream(file, _SCHEMA) as stream:
        for batch in batches:
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
        """The text of every example, read when it is indexed."""
        return Texts(self._rows.select_columns("text"))

    @property
    def queries(self) -> Texts:
        """The ``query`` of every example: the text, or its token ids as written by ``written_ids``."""
        return Texts(self._rows.select_columns(["text", "tokens"]))

    def column(self, name: str) -> Iterator[Any]:
        """One attribute of every example, None where it is empty."""
        read = _READ.get(name, lambda value: value)
        for table in self._rows.select_columns(name).iter(ROWS):
            yield from (None if value is None else read(value) for value in table[name].to_pylist())

    def _read(self, places: Sequence[int]) -> list[Example]:
        table = self._rows[places]
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
    """Texts that are read when they are indexed; token ids are written out where rows have some."""

    def __init__(self, rows: Dataset) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __add__(self, other: Texts) -> Texts:
        from datasets import concatenate_datasets

        return Texts(concatenate_datasets([self._rows, other._rows]))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One text, or those of a range."""
        if isinstance(index, slice):
            return _written_texts(self._rows[index])
        return _written_texts(self._rows[[range(len(self))[index]]])[0]

    def __iter__(self) -> Iterator[str]:
        for table in self._rows.iter(ROWS):
            yield from _written_texts(table)


def _written_texts(table: pyarrow.Table) -> list[str]:
    texts: list[str] = table["text"].to_pylist()
    if "tokens" not in table.column_names or table["tokens"].null_count == len(texts):
        return texts
    rows = zip(texts, table["tokens"].to_pylist(), strict=True)
    return [text if ids is None else written_ids(ids) for text, ids in rows]


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
