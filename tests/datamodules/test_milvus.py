"""Milvus: Milvus Lite as a server, through pymilvus; and its folders, which our own reader opens."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.stores import DIMENSION, ROWS, TEXTS, TITLES, VECTORS, check_store, refusal, refused_field

pymilvus = pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

IDS = [str(100 + row) for row in range(ROWS)]


def fill(client: Any) -> None:
    """The collection docs with dynamic fields, changed and deleted rows; and one with two vectors a row."""
    client.create_collection("docs", dimension=DIMENSION, metric_type="IP")
    rows = [
        {"id": 100 + row, "vector": VECTORS[row].tolist(), "text": TEXTS[row], "meta": {"title": TITLES[row]}}
        for row in range(ROWS)
    ]
    old = [{**rows[5], "vector": VECTORS[0].tolist(), "text": "old"}, {**rows[0], "id": 7}]
    client.insert("docs", [*rows[:5], *old, *rows[6:20]])
    client.flush("docs")
    client.upsert("docs", rows[5:6])
    client.delete("docs", ids=[7])
    client.insert("docs", rows[20:])
    schema = client.create_schema()
    schema.add_field("key", pymilvus.DataType.VARCHAR, is_primary=True, max_length=40)
    schema.add_field("body", pymilvus.DataType.VARCHAR, max_length=100)
    for name in "ab":
        schema.add_field(name, pymilvus.DataType.FLOAT_VECTOR, dim=DIMENSION)
    client.create_collection("two", schema=schema)
    client.insert("two", [{"key": "k", "body": "hi", "a": VECTORS[1].tolist(), "b": VECTORS[2].tolist()}])


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses: a server; a folder as a killed program left it; one that was closed; the one that is open."""
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    base = tmp_path_factory.mktemp("milvus")
    server, database, port = start_server_in_thread(str(base / "open.db"))
    client = pymilvus.MilvusClient(f"http://127.0.0.1:{port}")
    try:
        fill(client)
        shutil.copytree(base / "open.db", base / "killed.db")
        server_of_closed, closed, _ = start_server_in_thread(
            str(shutil.copytree(base / "killed.db", base / "closed.db"))
        )
        for name in ("docs", "two"):
            closed.get_collection(name).flush()
        server_of_closed.stop(0)
        closed.close()
        yield {
            "server": f"milvus:http://127.0.0.1:{port}",
            **{name: f"milvus:{base / name}.db" for name in ("killed", "closed", "open")},
        }
    finally:
        client.close()
        server.stop(0)
        database.close()


@pytest.mark.parametrize("kind", ["server", "killed", "closed"])
def test_rows_and_texts(kind: str, stores: dict[str, str]) -> None:
    check_store(stores[kind], IDS, "docs")
    assert "which collection? give collection=<one of docs, two>" in refusal(stores[kind])
    assert "no collection dogs; did you mean docs?" in refusal(stores[kind], "dogs")
    assert "collection two has the vectors a, b; give collection=two/<one of them>" in refusal(stores[kind], "two")
    assert "did you mean body?" in refused_field(stores[kind], "bdy", "two/b")


def test_a_folder_is_only_read_and_needs_no_library(stores: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "another program has it open; end that first" in refusal(stores["open"], "docs")
    folder = Path(stores["killed"].removeprefix("milvus:"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    check_store(stores["killed"], IDS, "docs")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    check_store(stores["closed"], IDS, "docs")
    assert "needs the library pymilvus; pip install 'unembed[milvus]'" in refusal("milvus:http://127.0.0.1:9")


def test_what_is_no_folder_and_a_damaged_one(stores: dict[str, str], tmp_path: Path) -> None:
    assert "no milvus store" in refusal(f"milvus:{tmp_path}")
    (tmp_path / "old.db").write_bytes(b"SQLite format 3")
    assert "a file, as milvus-lite 2 wrote it" in refusal(f"milvus:{tmp_path / 'old.db'}")
    folder = shutil.copytree(stores["closed"].removeprefix("milvus:"), tmp_path / "mine.db")
    docs, address = folder / "collections" / "docs", f"milvus:{folder}"
    data = min(docs.glob("partitions/_default/data/*.parquet"))
    whole = data.read_bytes()
    data.write_bytes(whole[:100] + b"garbage" + whole[107:-30])
    assert "collection docs cannot be read" in refusal(address, "docs")
    data.unlink()
    assert "collection docs cannot be read: FileNotFoundError" in refusal(address, "docs")
    manifest = json.loads((docs / "manifest.json").read_text())
    manifest["partitions"]["_default"]["data_files"] = ["../../../../../other.parquet"]
    (docs / "manifest.json").write_text(json.dumps(manifest))
    assert "outside of the collection" in refusal(address, "docs")
    for content in ("[]", "{", '{"partitions": 3}', '{"partitions": {"a": {"data_files": "x"}}}'):
        (docs / "manifest.json").write_text(content)
        assert "vectors=milvus:" in refusal(address, "docs")
    data.symlink_to(tmp_path / "old.db")
    assert "is a link, and such a folder holds none" in refusal(address, "docs")


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", "root:tied-with-string")
    message = refusal("milvus:http://127.0.0.1:9")
    assert "vectors=milvus:http://127.0.0.1:9: cannot be read" in message
    assert "tied-with-string" not in message
    assert "MILVUS_TOKEN" in refusal("milvus:http://root:w0rd@127.0.0.1:9")
