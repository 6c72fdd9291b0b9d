"""A few broken files for every reader; benchmarks/fuzz_readers.py tries thousands. And what it found once."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import runs
from datamodules.vector_files import read_vectors
from errors import InputError

READERS = ["texts.jsonl", "texts.csv", "texts.parquet", "vectors.npy", "vectors.safetensors", "vectors.parquet",
           "vectors.jsonl", "qrels.tsv", "config.yaml", "last.ckpt", "predictions.jsonl",
           "metrics.json", "record.json", "config.yaml, reported"]  # fmt: skip


@pytest.fixture
def fuzzing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("fuzz_readers")


def test_these_are_all_readers(fuzzing: ModuleType) -> None:
    assert list(fuzzing.readers()) == list(fuzzing.good()) == READERS


@pytest.mark.parametrize("name", READERS)
def test_a_good_file_is_read_and_broken_ones_are_refused(fuzzing: ModuleType, tmp_path: Path, name: str) -> None:
    fuzzing.readers()[name](tmp_path, fuzzing.good()[name])
    seen = fuzzing.fuzz(name, 25)
    assert seen["inputs"] >= 25
    assert 0 < seen["refused"] < seen["inputs"]


def test_bytes_over_which_torch_trips(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(b"a")  # an IndexError, once
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        runs.load_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': F3, 4), }",  # Python's tokenizer gave up with an error of its own
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 30 + b", 4), }",
        b"(" * 300,
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 4), }",
    ],
)
def test_headers_of_arrays_that_were_found(tmp_path: Path, header: bytes) -> None:
    padded = header + b" " * (-(len(header) + 11) % 64) + b"\n"
    (tmp_path / "mine.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + b"\0" * 48)
    with pytest.raises(InputError, match=r"mine\.npy: no \.npy array can be read"):
        read_vectors(tmp_path / "mine.npy", 4)
