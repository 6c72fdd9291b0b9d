"""Files of vectors, as unembed invert and unembed audit read them."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from hypothesis import strategies as st
from safetensors.torch import save

from unembed.datamodules.vector_stores.vector_files import read_vectors

from .broken import Inputs, Reader, changed, inputs, lines_of, trees, written

DIMENSION = 4
VECTORS = np.arange(1, 13, dtype=np.float32).reshape(3, DIMENSION)


def readers() -> dict[str, Reader]:
    """By the names of their files."""
    rows = lines_of(VECTORS.tolist())
    tensors = {"vectors": torch.from_numpy(VECTORS.copy())}
    return {
        "vectors.npy": Reader(_vectors("npy"), _npy, lambda whole: inputs(whole, (60, _headers()))),
        "vectors.safetensors": Reader(_vectors("safetensors"), lambda: save(tensors), _safetensors),
        "vectors.parquet": Reader(_vectors("parquet"), lambda: parquet_of(_table()), _parquet),
        "vectors.jsonl": Reader(_vectors("jsonl"), lambda: rows, lambda whole: trees(whole, lines_of, (1, _long()))),
    }


def _vectors(kind: str) -> Callable[[Path, bytes], object]:
    # As many rows as somebody asks for: without a limit a sound file of gigabytes takes gigabytes.
    return lambda folder, content: read_vectors(written(folder / f"vectors.{kind}", content), DIMENSION, limit=1000)


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, VECTORS)
    return file.getvalue()


def _headers() -> Inputs:
    """Arrays with headers of other types and shapes, before data that are too short, or zeros without end."""
    kinds = st.sampled_from(["<f4", ">f8", "<f2", "<M8[s]", "<m8[ns]", "|O", "|b1", "<U1", "|S9", "<c8", "|V4", "<i8"])
    sizes = st.sampled_from([0, 1, 3, 4, 10**6, 2**31, 2**62, 10**30, -1])
    grown = st.sampled_from([b"", b"", b"", b"\n#grown-to:2000000000"])

    def made(kind: str, fortran: bool, shape: list[int], tail: bytes) -> bytes:
        header = f"{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {tuple(shape)}, }}".encode()
        header += b" " * (-(len(header) + 11) % 64) + b"\n"
        return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + VECTORS.tobytes() + tail

    shapes = st.lists(sizes, max_size=3) | st.just([3, 4]) | st.just([10**8, 4])
    return st.builds(made, kinds, st.booleans(), shapes, grown)


def _safetensors(whole: bytes) -> Inputs:
    """With another header: lengths that overlap, lie outside, or do not fit the shape."""
    places = st.sampled_from([0, 1, 4, 48, 96, 10**9, 2**63, -1, 1.5, "1"])
    kinds = st.sampled_from(["F32", "F16", "BF16", "F8_E4M3", "I64", "U8", "BOOL", "C64", "F4", "", 1])
    entry = st.fixed_dictionaries(
        {
            "dtype": kinds,
            "shape": st.just([3, 4]) | st.just([12]) | st.lists(places, max_size=3),
            "data_offsets": st.just([0, 48]) | st.lists(places, max_size=3),
        }
    )
    names = st.sampled_from(["vectors", "vector", "embedding", "a", "__metadata__", "\x1b", "../made"])
    headers = st.dictionaries(names, entry, max_size=3)

    def made(header: object) -> bytes:
        said = json.dumps(header).encode()
        return len(said).to_bytes(8, "little") + said + VECTORS.tobytes()

    return inputs(whole, (60, headers.map(made)))


def _table() -> pyarrow.Table:
    return pyarrow.table({"vector": VECTORS.tolist(), "text": ["a", "b", "c"]})


@functools.cache
def _unfolding(kind: str) -> bytes:
    """Parquet of a few kB that is gigabytes of vectors."""
    if kind == "row":
        lists = pyarrow.ListArray.from_arrays([0, 150_000_000], np.zeros(150_000_000, np.float32))
        return parquet_of(pyarrow.table({"vector": lists}))
    if kind == "null rows":
        return parquet_of(pyarrow.table({"vector": pyarrow.nulls(20_000_000, pyarrow.list_(pyarrow.float32()))}))
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.ones(8_000_000, np.float32)), 4)
    return parquet_of(pyarrow.table({"vector": rows}), repeated=40)


def _parquet(whole: bytes) -> Inputs:
    numbers = st.floats(width=32) | st.integers(-5, 5) | st.none()
    values = st.lists(numbers, min_size=4, max_size=4) | st.lists(numbers, max_size=5) | numbers | st.text(max_size=3)
    values = values | st.lists(st.lists(numbers, max_size=2), max_size=2) | st.lists(st.timedeltas(), max_size=4)
    names = st.sampled_from(["vector", "embedding", "a", "\x1b"])
    bombs = st.sampled_from(["row", "rows", "null rows"]).map(_unfolding)
    plain = parquet_of(_table(), use_dictionary=False, compression="none", data_page_version="2.0")
    return inputs(whole, (60, odd_tables(values, names)), (30, changed(plain)), (1, bombs))


@functools.cache
def _numbers(text: bytes, count: int) -> bytes:
    return b"[" + text + (b"," + text) * (count - 1) + b"]\n"


def _long() -> Inputs:
    """A line of a million numbers, a million lines, one endless number."""
    long = st.builds(_numbers, st.sampled_from([b"1", b"1.5e300", b"null", b"[]"]), st.sampled_from([10**5, 10**7]))
    return long | st.sampled_from(
        [b"[1,2,3,4]\n" * 10**6, b"[" + b"1" * 10**7 + b",1,1,1]\n", b"[0." + b"1" * 10**7 + b"]"]
    )


def parquet_of(table: Any, repeated: int = 1, **options: Any) -> bytes:
    """A parquet file with a row group for each time that ``table`` is repeated."""
    file = io.BytesIO()
    with pyarrow.parquet.ParquetWriter(file, table.schema, **options) as writer:
        for _ in range(repeated):
            writer.write_table(table)
    return file.getvalue()


def odd_tables(values: st.SearchStrategy[Any], names: st.SearchStrategy[str]) -> Inputs:
    """Parquet of columns of other types than should be there, as far as Arrow can make them."""

    def made(columns: dict[str, list[Any]], options: dict[str, Any]) -> bytes:
        arrays = {}
        for name, column in columns.items():
            try:
                arrays[name] = pyarrow.array(column)
            except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
                arrays[name] = pyarrow.array([repr(value).encode() for value in column])
        try:
            return parquet_of(pyarrow.table(arrays), **options)
        except (pyarrow.ArrowException, UnicodeEncodeError, ValueError):
            return b""

    options = st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["snappy", "gzip", "zstd", "brotli", "none"]),
            "use_dictionary": st.booleans(),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
        }
    )
    rows = st.integers(0, 4).flatmap(
        lambda count: st.dictionaries(names, st.lists(values, min_size=count, max_size=count), min_size=1, max_size=3)
    )
    return st.builds(made, rows, options)
