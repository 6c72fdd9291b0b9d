"""Vectors from files: each format, and each thing that can be wrong with one."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores import vector_files
from unembed.datamodules.vector_stores.child import Limits
from unembed.datamodules.vector_stores.vector_files import read_vectors

VECTORS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
Write = Callable[[Path, NDArray[Any]], None]


def npy(path: Path, vectors: NDArray[Any]) -> None:
    np.save(path, vectors)


def safetensors(path: Path, vectors: NDArray[Any]) -> None:
    save_file({"embeddings": torch.from_numpy(vectors.copy()), "ids": torch.arange(3)}, path)


def parquet(path: Path, vectors: NDArray[Any]) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(vectors))), "vector": vectors.tolist()}), path)


def jsonl(path: Path, vectors: NDArray[Any]) -> None:
    path.write_text("".join(json.dumps({"id": 1, "embedding": row}) + "\n" for row in vectors.tolist()))


FORMATS: dict[str, Write] = {".npy": npy, ".safetensors": safetensors, ".parquet": parquet, ".jsonl": jsonl}


def message(path: Path, dimension: int = 4) -> str:
    with pytest.raises(InputError) as error:
        read_vectors(path, dimension)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(params=FORMATS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[NDArray[Any]], Path]:
    def write(vectors: NDArray[Any]) -> Path:
        path = tmp_path / f"mine{request.param}"
        FORMATS[request.param](path, vectors)
        return path

    return write


def test_every_format_gives_the_same_vectors(written: Callable[[NDArray[Any]], Path]) -> None:
    vectors = read_vectors(written(VECTORS), 4)
    assert vectors.dtype == torch.float32
    assert vectors.tolist() == VECTORS.tolist()
    assert read_vectors(written(VECTORS), 4, limit=2).tolist() == VECTORS[:2].tolist()
    assert "vectors of dimension 4, but this attack was trained on dimension 384" in message(written(VECTORS), 384)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite(written: Callable[[NDArray[Any]], Path], bad: float) -> None:
    vectors = VECTORS.copy()
    vectors[3, 1] = vectors[4, 0] = bad
    assert "row 3 holds NaN or infinity (2 such rows)" in message(written(vectors))


def test_a_row_of_zeros_and_no_rows(written: Callable[[NDArray[Any]], Path]) -> None:
    vectors = VECTORS.copy()
    vectors[2] = 0
    assert "row 2 is all zeros" in message(written(vectors))
    assert "holds no vectors" in message(written(VECTORS[:0]))


def test_missing_files_and_unknown_extensions(tmp_path: Path) -> None:
    for name in ("invert.py", "limits.py", "README.md"):
        (tmp_path / name).touch()  # which are not suggested
    assert message(tmp_path / "mine.npy") == f"vectors={tmp_path / 'mine.npy'}: no such file in {tmp_path}"
    assert message(tmp_path / "mine") == f"vectors={tmp_path / 'mine'}: no such file in {tmp_path}"
    (tmp_path / "mine.jsonl").touch()
    assert "did you mean mine.jsonl?" in message(tmp_path / "mine.npy")
    npy(tmp_path / "mine.npy", VECTORS)
    assert "no such file, did you mean mine.npy?" in message(tmp_path / "mina.npy")
    assert f"no directory {tmp_path / 'no'}" in message(tmp_path / "no" / "mine.npy")
    (tmp_path / "mine.csv").write_text("1,2,3,4")
    assert "unknown extension '.csv'" in message(tmp_path / "mine.csv")


def test_a_folder_and_a_store(tmp_path: Path) -> None:
    said = message(tmp_path)
    assert said.startswith(f"vectors={tmp_path}: a folder; give a file in it, or a store with its kind")
    (tmp_path / "chroma.sqlite3").touch()
    for path in (tmp_path, tmp_path / "chroma.sqlite3", Path(f"chroma:{tmp_path}")):
        said = f"a store, which another script reads: unembed audit vectors=chroma:{tmp_path}"
        assert message(path) == f"vectors={path}: {said}"


@pytest.mark.parametrize("extension", FORMATS)
def test_garbage_and_truncated_files(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"mine{extension}"
    FORMATS[extension](path, VECTORS)
    whole = path.read_bytes()
    for content in (whole[: len(whole) - 20], whole[:5], b"", b"\xff\x00garbage" * 20):
        path.write_bytes(content)
        message(path)


class Evil:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickles_are_never_loaded_and_an_archive_is_no_array(tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "mine.npy"
    np.save(path, np.array([Evil(mark)], dtype=object), allow_pickle=True)
    assert "no .npy array" in message(path)
    path.write_bytes(pickle.dumps(Evil(mark)))
    assert "no .npy array" in message(path)
    assert not mark.exists()
    (tmp_path / "v.npy").write_bytes(b"PK\x03\x04 and no archive")
    with pytest.raises(InputError, match=r"no \.npy array can be read from it"):
        read_vectors(tmp_path / "v.npy", 4)
    np.savez(tmp_path / "other.npz", a=np.ones((2, 4), np.float32))
    (tmp_path / "other.npz").rename(tmp_path / "v.npy")
    with pytest.raises(InputError, match=r"no \.npy array can be read from it"):
        read_vectors(tmp_path / "v.npy", 4)


@pytest.mark.parametrize("shape", [(4,), (), (2, 2, 4)])
def test_arrays_of_other_dimensions(tmp_path: Path, shape: tuple[int, ...]) -> None:
    for extension in (".npy", ".safetensors"):
        path = tmp_path / f"mine{extension}"
        FORMATS[extension](path, np.ones(shape, np.float32))
        assert f"found shape {shape}" in message(path)


@pytest.mark.parametrize(
    "array",
    [
        np.full((2, 4), "a"), np.ones((2, 4), complex), np.ones((2, 4), bool), np.ones((2, 4), "timedelta64[s]"),
        np.ones((2, 4), "datetime64[s]"), np.ones((2, 4), np.longdouble),
    ],
)  # fmt: skip
def test_arrays_that_hold_no_real_numbers(tmp_path: Path, array: NDArray[Any]) -> None:
    npy(tmp_path / "mine.npy", array)
    assert "expected real numbers" in message(tmp_path / "mine.npy")


def test_which_tensor_or_column(tmp_path: Path) -> None:
    rows = torch.from_numpy(VECTORS)
    path = tmp_path / "mine.safetensors"
    save_file({"anything": rows.bfloat16()}, path)
    assert read_vectors(path, 4).tolist() == rows.bfloat16().float().tolist()
    save_file({"a": rows, "b": rows + 1}, path)
    assert "which of a, b holds the vectors?" in message(path)
    save_file({"vector": rows, "embedding": rows + 1}, path)
    assert "which of" in message(path)
    path = tmp_path / "mine.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": VECTORS.tolist(), "b": [1] * 5}), path)
    assert "which of a, b holds the vectors?" in message(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[1, 2, 3", "line 3: no JSON"),
        ("[1, 2, 3]", "line 3: expected a list of 4 numbers, found shape (3,)"),
        ("[[1, 2, 3, 4]]", "line 3: expected a list of 4 numbers, found shape (1, 4)"),
        ("7", "line 3: expected a list of 4 numbers, found shape ()"),
        ("null", "line 3: expected a list of"),
        ('["a", 2, 3, 4]', "line 3: expected a list of numbers"),
        ('["1", "2", "3", "4"]', "line 3: expected a list of numbers"),
        ("[1, [2], 3, 4]", "line 3: expected a list of numbers"),
        ("[1, null, 3, 4]", "line 3: expected a list of numbers"),
        ('{"text": "a", "id": 1}', "line 3: which of text, id holds the vectors?"),
        ("{}", "line 3: which of no names"),
    ],
)
def test_a_wrong_json_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f"[1, 2, 3, 4]\n\n{line}\n[1, 2, 3, 4]\n")
    assert expected in message(path)


@pytest.mark.parametrize(
    "rows", [[[1.0, 2, 3, 4], None], [[1.0, 2, 3, 4], [1.0, 2]], [[1.0, 2, 3, 4], [1, None, 3, 4]]]
)
def test_parquet_rows_without_a_vector(tmp_path: Path, rows: Any) -> None:
    path = tmp_path / "mine.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"vector": rows}), path)
    assert "row 1" in message(path)


def test_parquet_of_fixed_size_lists_and_of_no_lists(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(VECTORS.ravel()), 4)
    pyarrow.parquet.write_table(pyarrow.table({"vector": column}), path, row_group_size=2)
    assert read_vectors(path, 4).tolist() == VECTORS.tolist()
    assert read_vectors(path, 4, limit=3).tolist() == VECTORS[:3].tolist()
    for values in ([1.0, 2.0], ["a", "b"], [["a"] * 4]):
        pyarrow.parquet.write_table(pyarrow.table({"vector": values}), path)
        message(path)


def test_what_follows_the_limit_is_not_read(written: Callable[[NDArray[Any]], Path], tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    path.write_text("[1, 2, 3, 4]\n[1, 2, 3, 5]\nno JSON\n")
    assert read_vectors(path, 4, limit=2).tolist() == [[1, 2, 3, 4], [1, 2, 3, 5]]


def test_vectors_in_parquet_that_unfold_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_files, "limits_for", lambda size: Limits(2.0, 20_000_000))
    path = tmp_path / "mine.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"vector": [[1.0] * 10_000] * 1000}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    assert re.search("takes more than 19 MB of memory|malloc|realloc", message(path, 10_000))


@pytest.mark.parametrize("changed", [b"\x15\x0c\x25\x00", b"\x15\x00\x25\x02"])
def test_parquet_whose_metadata_aborts_arrow_does_no_harm(tmp_path: Path, changed: bytes) -> None:
    """Of a column that may lack values: said to have all of them, against its size statistics; or of another type."""
    file = tmp_path / "mine.parquet"
    table = pyarrow.table({"text": ["a text", None], "vector": [[1.0, 2.0, 3.0, 4.0]] * 2})
    pyarrow.parquet.write_table(table, file, compression="none")
    content, column = file.read_bytes(), b"\x15\x0c\x25\x02\x18\x04text"
    assert content.count(column) == 1
    file.write_bytes(content.replace(column, changed + column[4:]))
    with contextlib.suppress(InputError):  # whether Arrow looks at the other column, and aborts, is its matter
        assert read_vectors(file, 4).tolist() == table["vector"].to_pylist()


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4", "i1", "i8", "longlong", "u1", "u4", "u8"])
def test_all_types_of_real_numbers_are_read(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "mine.npy", np.arange(1, 9).reshape(2, 4).astype(kind))
    assert read_vectors(tmp_path / "mine.npy", 4).tolist() == [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint32])
def test_all_types_of_real_tensors_are_read(tmp_path: Path, kind: torch.dtype) -> None:
    save_file({"vectors": torch.arange(1, 9).reshape(2, 4).to(kind)}, tmp_path / "mine.safetensors")
    assert read_vectors(tmp_path / "mine.safetensors", 4).tolist() == [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]


@pytest.mark.parametrize("kind", [torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_other_types_of_tensors_are_refused_by_name(tmp_path: Path, kind: torch.dtype) -> None:
    save_file({"vectors": torch.ones(2, 4).to(kind)}, tmp_path / "mine.safetensors")
    assert message(tmp_path / "mine.safetensors").endswith(f"integers), found {kind}")


@pytest.mark.parametrize(("scale", "length"), [(1e38, "2e+38"), (1e19, "2e+19"), (1e-19, "2e-19")])
def test_lengths_that_float32_cannot_square_are_refused(
    written: Callable[[NDArray[Any]], Path], scale: float, length: str
) -> None:
    vectors = np.ones((3, 4), np.float32)
    vectors[1] *= np.float32(scale)
    said = message(written(vectors))
    assert f"row 1 has the length {length} (1 such rows)" in said
    assert "scale the vectors to those of the embedder" in said


def test_numbers_lines_and_headers_that_are_too_large(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.array([[1.0, 2, 3, 4], [1e300, 0, 0, 0]]))
    assert "row 1 holds NaN or infinity" in message(tmp_path / "mine.npy")
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"[1, 2, 3, 4]\n[1" + b", 1" * 3_400_000 + b"]\n")
    assert f"{path}:2: longer than 10,000,000 bytes" in message(path)
    path = tmp_path / "mine.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little"))
    os.truncate(path, 2**32 + 100)  # of which nothing is stored
    assert "its header has 4,294,967,295 bytes, and at most 10,000 are read" in message(path)
