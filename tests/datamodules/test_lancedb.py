"""LanceDB: tables that its library wrote into a folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from support.stores import ROWS, TEXTS, TITLES, VECTORS, check_store, refusal, refused_field
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.lancedb_folder import read_table

lancedb = pytest.importorskip("lancedb")

IDS = [f"doc-{row}" for row in range(ROWS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables docs, of which rows were deleted and added; rows, without ids; and two, with two vectors a row."""
    place = tmp_path_factory.mktemp("lancedb")
    database = lancedb.connect(str(place))
    rows = [
        {"id": IDS[row], "vector": VECTORS[row].tolist(), "text": TEXTS[row], "meta": {"title": TITLES[row]}}
        for row in range(ROWS)
    ]
    docs = database.create_table("docs", [*rows[:20], {**rows[0], "id": "gone"}])
    docs.delete("id in ('gone', 'doc-3')")
    docs.add([rows[3], *rows[20:]])
    database.create_table("rows", [{key: value for key, value in row.items() if key != "id"} for row in rows])
    database.create_table("two", [{"a": VECTORS[1].tolist(), "b": VECTORS[2].tolist(), "body": "hi"}])
    return place


def refused(folder: Path, collection: str | None = None) -> str:
    """The message of what the child process runs; in this process, which has imported the library."""
    with pytest.raises(InputError) as raised:
        read_table(str(folder), collection, "lancedb:mine")
    return str(raised.value)


def test_rows_texts_and_choices(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    check_store(f"lancedb:{folder}", IDS, "docs")
    check_store(f"lancedb:{folder}", [str(row) for row in range(ROWS)], "rows")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for collection, said in (
        (None, "which collection? give collection=<one of docs, rows, two>"),
        ("dogs", "no collection dogs; did you mean docs?"),
        ("two", "collection two has the vectors a, b; give collection=two/<one of them>"),
    ):
        assert said in refused(folder, collection)
    assert "did you mean body?" in refused_field(f"lancedb:{folder}", "bdy", "two/b")


def test_what_is_no_folder_damaged_or_elsewhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no lancedb store" in refusal(f"lancedb:{tmp_path}")
    assert not any(tmp_path.iterdir())
    # A shallow clone names the folder of the table that it was made from; it may be any address.
    clone = tmp_path / "clone"
    lancedb.connect(str(clone)).clone_table("mine", str(folder / "docs.lance"), is_shallow=True)
    assert "names other places of its files, which are not read; copy the table" in refused(clone)
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "rows.lance" / "data")
    assert "vectors=lancedb:" in refusal(f"lancedb:{copy}", "rows")
    manifest = max((copy / "two.lance" / "_versions").glob("*.manifest"))
    manifest.write_bytes(manifest.read_bytes()[:-9])
    assert f"{manifest} is damaged" in refused(copy, "two")
    monkeypatch.setitem(sys.modules, "lancedb", None)
    assert "pip install 'unembed[lancedb]'" in refusal(f"lancedb:{folder}", "docs")
