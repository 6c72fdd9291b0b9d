"""Files of texts and of relevance labels: .jsonl, .csv, .txt, .gz, .parquet, and a BEIR collection."""

from __future__ import annotations

import csv
import functools
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from hypothesis import strategies as st

from unembed.datamodules.collections.beir import BeirCollection
from unembed.datamodules.sources.files import TextFiles

from .broken import Inputs, inputs, lines_of, trees, weighted, written
from .reader import Reader

QRELS = b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t2\n"
CORPUS = b'{"_id": "d1", "title": "", "text": "one"}\n{"_id": "d2", "title": "two", "text": "three"}\n'
QUERIES = b'{"_id": "q1", "text": "what"}\n{"_id": "q2", "text": "who"}\n'
LINES = [{"text": "a", "split": "train", "spans": [[0, 1, "NAME"]]}, {"text": "b", "split": "test", "spans": []}]


def readers() -> dict[str, Reader]:
    """By the names of their files."""
    table = {"text": ["a", "b", "c"], "split": ["train", "valid", "test"]}
    lines = lines_of(LINES)
    return {
        "texts.jsonl": Reader(_texts("texts.jsonl"), lambda: lines, _jsonl),
        "texts.csv": Reader(_texts("texts.csv"), _csv, lambda whole: inputs(whole, (1, _long(b"", b",train\n")))),
        "texts.txt": Reader(_texts("texts.txt", split_field=None), lambda: b"one\ntwo\n\nthree\n",
                            lambda whole: inputs(whole, (1, _long(b"", b"\n")))),
        "texts.jsonl.gz": Reader(_texts("texts.jsonl.gz"), lambda: gzip.compress(lines, mtime=0), _gz),
        "texts.parquet": Reader(_texts("texts.parquet"), lambda: parquet_of(pyarrow.table(table)), _parquet),
        "qrels.tsv": Reader(_collection("qrels/test.tsv"), lambda: QRELS),
        "corpus.jsonl": Reader(_collection("corpus.jsonl"), lambda: CORPUS, lambda whole: trees(whole, lines_of)),
    }  # fmt: skip


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


def _texts(name: str, **options: Any) -> Callable[[Path, bytes], object]:
    given = {"split_field": "split", "valid_fraction": 0.0, **options}
    if "jsonl" in name:
        given["spans_field"] = "spans"
    return lambda folder, content: TextFiles(path=str(written(folder / name, content)), **given).load()


def _collection(broken: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, content: bytes) -> object:
        for name, sound in (("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES), ("qrels/test.tsv", QRELS)):
            written(folder / name, content if name == broken else sound)
        return BeirCollection(path=str(folder)).read()

    return read


def _csv() -> bytes:
    rows = io.StringIO()
    csv.writer(rows).writerows([["text", "split"], ["a, b", "train"], ["c", "test"]])
    return rows.getvalue().encode()


@functools.cache
def _repeated(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def _long(before: bytes, after: bytes) -> Inputs:
    """One line of many megabytes."""
    units = st.sampled_from([b"a", b"a ", "\u00e9".encode(), b"x.", b"'"])
    sizes = st.sampled_from([2_000_000, 40_000_000])
    return st.builds(lambda unit, size: before + _repeated(unit, size) + after, units, sizes)


def _jsonl(whole: bytes) -> Inputs:
    long = _long(b'{"split": "train", "text": "', b'"}\n') | _long(
        b'{"split": "train", "text": "a", "spans": "', b'"}\n'
    )
    return trees(whole, lines_of, (1, long))


def _gz(whole: bytes) -> Inputs:
    lines = gzip.decompress(whole)
    packed = trees(lines, lines_of).map(lambda content: gzip.compress(content[-100_000:], 1, mtime=0))
    return inputs(whole, (100, packed))


def _parquet(whole: bytes) -> Inputs:
    values = st.none() | st.text(max_size=5) | st.binary(max_size=5) | st.integers() | st.floats() | st.datetimes()
    values = values | st.lists(st.text(max_size=3), max_size=3) | st.dictionaries(st.text(max_size=3), st.integers())
    names = st.sampled_from(["text", "split", "spans", "", "a\x1b"])
    return weighted((9, odd_tables(values, names)), (1, st.binary(max_size=200)))
