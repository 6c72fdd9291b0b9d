"""Vectors from a file: .npy, .parquet, .safetensors or .jsonl, for ``unembed invert`` and ``unembed audit``.

vectors = read_vectors(Path("mine.npy"), dimension=384)      # (n, 384) float32
rows = VectorRows(Path("mine.npy"), "mine.npy", 384)         # the same in parts: rows[100:228] is (128, 384)

.npy          an array (n, d); never unpickled
.safetensors  one tensor (n, d), or the one called "vectors" or "embeddings"
.parquet      one column of lists of numbers, or the one called "vector", "vectors", "embedding" or "embeddings"
.jsonl        a list of numbers a line, or an object with one of these names
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unembed.core import limits
from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean, listed, missing
from unembed.datamodules.vector_stores.base import address_of, reading
from unembed.datamodules.vector_stores.child import Answer, Child, limits_for

if TYPE_CHECKING:
    from torch import Tensor

# numpy reads the header as a Python literal, and those of old files by the tokenizer of Python.
_NPY_ERRORS = (ValueError, EOFError, OSError, TypeError, OverflowError, SyntaxError, RecursionError, MemoryError,
               TokenError)  # fmt: skip
LONGEST_HEADER = 10_000  # bytes, as numpy has it
SHORTEST, LONGEST = 1e-18, 1e18  # lengths whose squares float32 holds in full
NAMES = ("vector", "vectors", "embedding", "embeddings")
BLOCK = 16_384  # rows
EXPLAINED = 500  # vectors of another dimension that are read to tell why
ROWS_AT_ONCE = 4096  # of a parquet file
Array = NDArray[Any]
FIRST = 2_000  # vectors that are checked before anything heavy is imported


class DimensionError(InputError):
    """Vectors of another dimension than wanted.

    Attributes:
        vectors: Some of them, (m, other dimension).
    """

    def __init__(self, message: str, vectors: Array) -> None:
        super().__init__(message)
        self.vectors = vectors


def dimension_of(vectors: str) -> int | None:
    """The dimension of the vectors in a file, of which only the beginning is read; None for another kind of store."""
    path = Path(vectors).expanduser()
    if path.suffix not in _READERS or not path.is_file():
        return None
    array = _READERS[path.suffix](path, 0, 1)
    return array.shape[1] if array.ndim == 2 else None


def read_vectors(path: Path, dimension: int, limit: int | None = None) -> Tensor:
    """The first ``limit`` vectors of a file, (n, dimension) float32.

    Raises:
        InputError: No such file, an unknown extension, a file that cannot be read, no vectors, another dimension
            than the attack was trained on, another type than real numbers, or a row that is NaN, infinite, zero, or of
            a length that float32 cannot square (the first one is named).
    """
    read = _read(path, dimension, limit)
    import torch  # after the mistakes that need no second

    return torch.from_numpy(read)


def check_file(path: Path) -> None:
    """Check the first vectors of a file without importing torch."""
    _read(path, None, FIRST)


class VectorRows:
    """The first ``limit`` vectors of a file or an array, checked once and then read in parts.

    Of a .npy file only a part is in memory at a time; other kinds of files are read as a whole.

    Args:
        given: The file, or the array.
        name: What messages call it.
        dimension: Of the vectors, d.
        limit: None: all.

    Raises:
        InputError: As ``read_vectors``.
    """

    def __init__(self, given: Path | Array, name: str, dimension: int, limit: int | None = None) -> None:
        whole = given if not isinstance(given, Path) else _open(given, dimension, limit)
        _check_shape(whole, name, dimension)
        self._source = given if isinstance(given, Path) and given.suffix == ".npy" else whole
        self.name, self._count = name, len(whole[:limit])
        _check_lengths(name, (self._floats(slice(begin, begin + BLOCK)) for begin in range(0, self._count, BLOCK)))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> Tensor:
        """Vectors of adjacent rows, (m, d) float32."""
        import torch

        return torch.from_numpy(self._floats(rows))

    def sample(self, most: int) -> Tensor:
        """At most ``most`` rows, evenly, (m, d) float32."""
        import torch

        if self._count <= most:
            return self[:]
        rows = [part * self._count // most for part in range(most)]
        return torch.from_numpy(np.concatenate([self._floats(slice(row, row + 1)) for row in rows]))

    def _floats(self, rows: slice) -> Array:
        # A .npy file is mapped anew for each part, as the pages of a mapping, and those around them, stay in memory.
        array = _npy(self._source, 0, None) if isinstance(self._source, Path) else self._source
        return _floats(array[: self._count][rows])


def _read(path: Path, dimension: int | None, limit: int | None) -> Array:
    array = _open(path, dimension or 0, limit)
    if dimension is None:
        dimension = array.shape[-1] if array.ndim else 0
    return _checked(array, str(path), dimension, limit)


def _open(path: Path, dimension: int, limit: int | None) -> Array:
    if path.suffix not in _READERS or not path.is_file():
        raise InputError(f"vectors={path}: {_unreadable(path)}")
    return _READERS[path.suffix](path, dimension, limit)


def _unreadable(path: Path) -> str:
    """Why no vectors can be read from a path, and what to give instead."""
    store = str(path) if ":" in str(path) and not (path.exists() or path.suffix in _READERS) else address_of(path)
    if store is not None:
        return f"a store, which another script reads: {command('audit', f'vectors={store}')}"
    if path.is_dir():
        return "a folder; give a file in it, or a store with its kind, such as chroma:<folder> (docs/audit.md)"
    if path.suffix not in _READERS and (path.suffix or path.exists()):
        return f"unknown extension {path.suffix!r}, {did_you_mean(path.suffix, _READERS)}"
    return missing(path)


def checked(array: Array, name: str, dimension: int, limit: int | None = None) -> Tensor:
    """The first ``limit`` rows of vectors that somebody gave as ``vectors=name``, (n, dimension) float32."""
    import torch

    return torch.from_numpy(_checked(array, name, dimension, limit))


def read_in_child(path: Path) -> Array:
    """All vectors of an untrusted .npy file, (n, d) float32, read and checked in a child process."""
    child = Child(f"vectors={path.name}", open_npy, [str(path)], ["numpy"], limits_for(path.stat().st_size))
    parts = [child.ask(range(start, min(start + BLOCK, child.opened))) for start in range(0, child.opened, BLOCK)]
    child.close()
    return np.concatenate(parts)


def open_npy(path: str) -> tuple[int, Answer]:
    """The opener of the child: the number of rows, and what gives them."""
    array = _npy(Path(path), 0, None)
    vectors = _checked(array, Path(path).name, array.shape[-1] if array.ndim else 0, None)
    return len(vectors), lambda positions: vectors[positions]


def _checked(array: Array, name: str, dimension: int, limit: int | None) -> Array:
    _check_shape(array, name, dimension)
    array = _floats(array[:limit])
    # In blocks, as a copy of all of them in another type may not fit.
    _check_lengths(name, (array[start : start + BLOCK] for start in range(0, len(array), BLOCK)))
    return array


def _floats(array: Array) -> Array:
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and named as such
        return np.array(array, dtype=np.float32)


def _check_shape(array: Array, name: str, dimension: int) -> None:
    if not len(array.ravel()):
        raise InputError(f"vectors={name}: holds no vectors (its shape is {array.shape}); embed at least one text")
    if array.ndim != 2:
        raise InputError(f"vectors={name}: expected an array (n, {dimension}), found shape {array.shape}")
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:  # numpy counts spans of time as integers
        raise InputError(f"vectors={name}: expected real numbers (float16 to float64, integers), found {array.dtype}")
    if array.shape[1] != dimension:
        raise DimensionError(
            f"vectors={name}: vectors of dimension {array.shape[1]}, but this attack was trained on dimension "
            f"{dimension}: they come from another embedder (or another defense)",
            np.array(array[:EXPLAINED]),
        )


def _check_lengths(name: str, blocks: Iterable[Array]) -> None:
    # A row with NaN or infinity has no finite length.
    lengths = np.sqrt(np.concatenate([np.einsum("ij,ij->i", one, one, dtype=np.float64) for one in blocks]))
    _check_rows(name, ~np.isfinite(lengths), "holds NaN or infinity", "its embedding failed, or overflowed")
    _check_rows(name, lengths == 0, "is all zeros", "it has no direction to read back, as of an empty text")
    outside = (lengths < SHORTEST) | (lengths > LONGEST)
    if outside.any():
        row = int(outside.argmax())
        raise InputError(
            f"vectors={name}: row {row} has the length {lengths[row]:.3g} ({int(outside.sum())} such rows): outside "
            f"{SHORTEST:g} to {LONGEST:g} float32 cannot compute cosines; scale the vectors to those of the embedder"
        )


def _check_rows(name: str, bad: Array | np.bool, what: str, why: str) -> None:
    if bad.any():
        raise InputError(
            f"vectors={name}: row {int(bad.argmax())} {what} ({int(bad.sum())} such rows): {why}; embed the texts of "
            "these rows again, or leave them out"
        )


def _npy(path: Path, dimension: int, limit: int | None) -> Array:
    try:
        _check_header(path)
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))  # np.load would open archives too
    except _NPY_ERRORS as error:
        raise InputError(f"vectors={path}: no .npy array can be read from it: {error}") from error


def _check_header(path: Path) -> None:
    """Raise ValueError for a longer header than numpy takes, which reads all of it before it looks."""
    with path.open("rb") as file:
        begin = file.read(12)
    later = begin.startswith(np.lib.format.MAGIC_PREFIX) and begin[6:7] > b"\x01"  # format 1.0 has two bytes for it
    if later and (size := int.from_bytes(begin[8:], "little")) > LONGEST_HEADER:
        raise ValueError(f"its header has {size:,} bytes, and at most {LONGEST_HEADER:,} are read")


def _safetensors(path: Path, dimension: int, limit: int | None) -> Array:
    import torch
    from safetensors import SafetensorError, safe_open

    with reading(str(path), SafetensorError, OSError), safe_open(path, framework="pt") as file:
        tensor = file.get_tensor(_choose(path, file.keys()))
    if tensor.dtype.is_complex or tensor.dtype == torch.bool or (tensor.is_floating_point() and tensor.itemsize < 2):
        raise InputError(f"vectors={path}: expected real numbers (float16 to float64, integers), found {tensor.dtype}")
    tensor = tensor[:limit] if tensor.ndim else tensor
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _parquet(path: Path, dimension: int, limit: int | None) -> Array:
    # In a child process: Arrow aborts on some damaged metadata, and a small file may unfold to any size.
    arguments = [str(path), dimension, limit]
    child = Child(f"vectors={path}", open_parquet, arguments, ["pyarrow.parquet"], limits_for(path.stat().st_size))
    starts = range(0, child.opened, BLOCK)
    parts = [child.ask(range(start, min(start + BLOCK, child.opened))) for start in starts]
    child.close()
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def open_parquet(path: str, dimension: int, limit: int | None) -> tuple[int, Answer]:
    """The opener of the child: the number of rows, and what gives them.

    The first rows alone, if they are not ``dimension`` long.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    parts: list[Array] = []
    errors = pyarrow.ArrowException, OSError, ValueError, OverflowError
    with reading(path, *errors), parquet.ParquetFile(path) as file:
        name = _choose(Path(path), file.schema_arrow.names)
        if file.metadata.num_rows:
            _check_kind(path, file.schema_arrow.field(name).type)  # before it is read: texts would unfold
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=[name]):
            parts.append(_rows(path, batch.column(0), read := sum(map(len, parts))))
            if parts[0].shape[1] != dimension or (limit is not None and read + len(batch) >= limit):
                break
    dimensions = {part.shape[1] for part in parts}
    if len(dimensions) > 1:
        raise InputError(f"vectors={path}: holds vectors of dimensions {listed(map(str, sorted(dimensions)))}")
    vectors = np.concatenate(parts)[:limit] if parts else np.empty((0, 0), np.float32)
    return len(vectors), lambda positions: vectors[positions]


def _check_kind(path: str, kind: Any) -> None:
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        raise InputError(f"vectors={path}: expected a column of lists of numbers, found {kind}")


def _rows(path: str, column: Any, begin: int) -> Array:
    """The lists of an Arrow column as an array; ``begin`` is the number of its first row."""
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)  # NaN for a null
    if (bad := lengths != lengths[0]).any() or column.null_count:
        row = begin + int((bad | np.isnan(lengths)).argmax())
        raise InputError(f"vectors={path}, row {row}: its length is not that of the rows before, or it is null")
    values: Array = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)  # NaN for a null
    return values.reshape(len(column), int(lengths[0]))


def _jsonl(path: Path, dimension: int, limit: int | None) -> Array:
    def values() -> Iterator[tuple[str, Any]]:
        for number, line in limits.lines(path, most=None):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"vectors={path}, line {number}: no JSON: {error}") from error
            if isinstance(value, dict):
                value = value[_choose(path, value, f", line {number}")]
            yield f"line {number}", value

    return _stack(path, islice(values(), limit), dimension)


def _choose(path: Path, names: Iterable[str], where: str = "") -> str:
    """The name of the vectors: the only name, or the only one of ``NAMES``."""
    present = list(names)
    usual = [name for name in present if name in NAMES]
    if len(present) != 1 and len(usual) != 1:
        raise InputError(
            f"vectors={path}{where}: which of {listed(present) or 'no names'} holds the vectors? "
            f"Call it one of {', '.join(NAMES)}"
        )
    return present[0] if len(present) == 1 else usual[0]


def _stack(path: Path, values: Iterable[tuple[str, Any]], dimension: int) -> Array:
    """The rows as an array; the first ones alone, where they are not ``dimension`` long."""
    rows: list[Array] = []
    for where, value in values:
        try:
            row = np.asarray(value)
        except ValueError as error:
            raise InputError(f"vectors={path}, {where}: expected a list of numbers: {error}") from error
        if row.dtype.kind not in "iuf":  # numpy would turn the text "1" into a number
            raise InputError(f"vectors={path}, {where}: expected a list of numbers")
        if row.ndim != 1 or (rows and len(row) != len(rows[0])):
            raise InputError(
                f"vectors={path}, {where}: expected a list of {len(rows[0]) if rows else 'd'} numbers, "
                f"found shape {row.shape}"
            )
        rows.append(row.astype(np.float32))
        if len(row) != dimension and len(rows) == EXPLAINED:
            break
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


# By extension; each takes a path, the expected dimension, and how many vectors are wanted.
_READERS: Mapping[str, Callable[[Path, int, int | None], Array]] = {
    ".npy": _npy, ".parquet": _parquet, ".safetensors": _safetensors, ".jsonl": _jsonl,
}  # fmt: skip
