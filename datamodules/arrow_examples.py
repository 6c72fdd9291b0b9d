"""Examples in a memory-mapped Arrow file: millions of texts that become Python objects only when one is read.

examples = to_arrow(Example(0, text) for text in corpus)   # written to a temporary file, 4,096 rows a batch
examples[7]                                                # Example(index=7, text="My name is Ada.", ...)
examples.select(np.flatnonzero(wanted))                    # the same file with fewer rows, renumbered
examples.texts[100:200]                                    # ["My name is Ada.", ...]
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.core.examples import Example, Span, written_ids
from unembed.core.temporary_map import MappedArray, TemporaryMap

ROWS = 4096  # of a record batch; all but the last have as many
READ_BEFORE_RELEASE = 1024  # single rows, each of which makes up to 64 KB of the file resident

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
_SCHEMA = pyarrow.schema([(field.name, _TYPES[field.name]) for field in fields(Example) if field.name != "index"])

Rows = NDArray[np.integer[Any]]
_Columns = Mapping[str, Any]  # Arrow arrays by name; those that hold nothing but nulls are left out


class _File(NamedTuple):
    memory: TemporaryMap
    batches: Sequence[_Columns]


class ExampleWriter:
    """Collects examples into a file; ``finish`` gives them back. An example's own index is not stored."""

    def __init__(self) -> None:
        self._memory = TemporaryMap()
        self._sink = pyarrow.ipc.new_file(self._memory, _SCHEMA)
        self._waiting: list[Example] = []
        self._count = 0

    def append(self, example: Example) -> None:
        """Add one."""
        self._waiting.append(example)
        self._count += 1
        if len(self._waiting) == ROWS:
            self._flush()

    def finish(self) -> ArrowExamples:
        """All of them, in order."""
        self._flush()
        self._sink.close()
        reader = pyarrow.ipc.open_file(pyarrow.py_buffer(self._memory.content()))
        batches = []
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            named = zip(_SCHEMA.names, batch.columns, strict=True)
            batches.append({name: column for name, column in named if column.null_count < len(column)})
        return ArrowExamples(_File(self._memory, batches), None, self._count)

    def _flush(self) -> None:
        if not self._waiting:
            return
        arrays = []
        for name in _SCHEMA.names:
            values = [getattr(example, name) for example in self._waiting]
            if (stored := _STORED.get(name)) is not None:
                values = [stored(value) for value in values]
            try:
                arrays.append(pyarrow.array(values, _TYPES[name]))
            except UnicodeEncodeError as error:  # a lone surrogate, as JSON may carry
                raise InputError(f"the {name} of a text is not valid Unicode: {error.object!r:.80}") from error
        self._sink.write_batch(pyarrow.record_batch(arrays, schema=_SCHEMA))
        self._waiting.clear()


def to_arrow(examples: Iterable[Example]) -> ArrowExamples:
    """The examples in a file, numbered by their position; those that lie in one stay there."""
    if isinstance(examples, ArrowExamples):
        return examples
    writer = ExampleWriter()
    for example in examples:
        writer.append(example)
    return writer.finish()


class ArrowExamples(Sequence[Example]):
    """Examples that are read from the file when they are indexed or iterated over; ``index`` is the position."""

    def __init__(self, file: _File, rows: MappedArray | None, count: int) -> None:
        self._file, self._rows, self._count = file, rows, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        """One example, or those of a range."""
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            return list(self._between(begin, end)) if step == 1 else [self[place] for place in range(begin, end, step)]
        place = range(len(self))[operator.index(index)]
        return _example(place, {name: self.value(place, name) for name in self._columns(place)})

    def __iter__(self) -> Iterator[Example]:
        return self._between(0, len(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def select(self, positions: Rows) -> ArrowExamples:
        """The examples at ``positions`` (m,), ascending."""
        if len(positions) == len(self):
            return self
        rows = positions if self._rows is None else self._rows[positions]
        return ArrowExamples(self._file, MappedArray(rows.astype(np.int32)), len(positions))

    @property
    def texts(self) -> Texts:
        """``text`` of every example."""
        return Texts([self], ids=False)

    @property
    def queries(self) -> Texts:
        """``query`` of every example."""
        return Texts([self], ids=True)

    def column(self, name: str) -> Iterator[Any]:
        """One attribute of every example, without the others."""
        for block in self.blocks(0, len(self), (name,)):
            yield from block[name]

    def value(self, place: int, name: str) -> Any:
        """One attribute of one example as it is stored, None where it is empty."""
        row = self._row(place)
        self._file.memory.read(1, most=READ_BEFORE_RELEASE)
        column = self._file.batches[row // ROWS].get(name)
        return None if column is None else column[row % ROWS].as_py()

    def blocks(self, begin: int, end: int, names: Sequence[str] = tuple(_TYPES)) -> Iterator[dict[str, list[Any]]]:
        """Some attributes of the examples from ``begin`` to ``end``, a batch of the file at a time."""
        while begin < end:
            if self._rows is None:
                number = begin // ROWS
                stop = min(end, (number + 1) * ROWS)
                chosen: slice | Rows = slice(begin - number * ROWS, stop - number * ROWS)
            else:
                near = self._rows[begin : min(end, begin + ROWS)]
                number = int(near[0]) // ROWS
                stop = begin + int(np.searchsorted(near, (number + 1) * ROWS))
                chosen = near[: stop - begin] - number * ROWS
            columns, block = self._file.batches[number], dict[str, list[Any]]()
            for name in names:
                if (column := columns.get(name)) is not None:
                    part = column[chosen] if isinstance(chosen, slice) else column.take(pyarrow.array(chosen))
                    read = _READ.get(name)
                    values = part.to_pylist()
                    block[name] = [None if v is None else read(v) for v in values] if read else values
                elif len(names) == 1:
                    block[name] = [None] * (stop - begin)
            self._file.memory.read(stop - begin, most=64 * ROWS)
            yield block
            begin = stop

    def _columns(self, place: int) -> Iterable[str]:
        return self._file.batches[self._row(place) // ROWS]

    def _row(self, place: int) -> int:
        return place if self._rows is None else int(self._rows[place : place + 1][0])

    def _between(self, begin: int, end: int) -> Iterator[Example]:
        for block in self.blocks(begin, end):
            for values in zip(*block.values(), strict=True):
                given = {name: value for name, value in zip(block, values, strict=True) if value is not None}
                yield Example(begin, **given)
                begin += 1


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
        number = bisect_right(self._ends, place)
        part, place = self._parts[number], place - (self._ends[number - 1] if number else 0)
        ids = part.value(place, "tokens") if self._ids else None
        return str(part.value(place, "text")) if ids is None else written_ids(ids)

    def __iter__(self) -> Iterator[str]:
        return self._between(0, len(self))

    def _between(self, begin: int, end: int) -> Iterator[str]:
        for part, part_end in zip(self._parts, self._ends, strict=True):
            start = part_end - len(part)
            for block in part.blocks(max(begin - start, 0), min(end - start, len(part)), ("text", "tokens")):
                yield from self._block(block)

    def _block(self, block: Mapping[str, list[Any]]) -> list[str]:
        if not self._ids or "tokens" not in block:
            return block["text"]
        both = zip(block["text"], block["tokens"], strict=True)
        return [text if ids is None else written_ids(ids) for text, ids in both]


def _example(index: int, values: Mapping[str, Any]) -> Example:
    given = {n: _READ[n](value) if n in _READ else value for n, value in values.items() if value is not None}
    return Example(index, **given)
