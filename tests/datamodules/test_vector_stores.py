"""Samples of vector stores: each client library on a real store in a folder, and what can be wrong with one."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import math
import os
import pickle
import re
import sqlite3
import struct
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.stores import DIMENSION, TEXTS, TITLES, VECTORS, check_store, refusal, refused_field
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.base import address_error, flat_texts
from unembed.datamodules.vector_stores.child import Child, Limits
from unembed.datamodules.vector_stores.sampling import ArrayStore, open_store, sample_store, stored_texts

IDS = [f"doc-{(7 * number) % 30:02d}" for number in range(30)]  # not in the order of their names


def faiss_index(folder: Path) -> str:
    import faiss

    index = faiss.IndexFlatIP(DIMENSION)
    index.add(VECTORS)
    faiss.write_index(index, str(folder / "mine.faiss"))
    return str(folder / "mine.faiss")


def faiss_ids(folder: Path) -> str:
    import faiss

    index = faiss.IndexIDMap(faiss.IndexFlatL2(DIMENSION))
    index.add_with_ids(VECTORS, np.arange(100, 130))
    faiss.write_index(index, str(folder / "mine.index"))
    return f"faiss:{folder / 'mine.index'}"


def faiss_lists(folder: Path) -> str:
    import faiss

    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIMENSION), DIMENSION, 2)
    index.train(VECTORS)
    index.add(VECTORS)
    faiss.write_index(index, str(folder / "lists.faiss"))
    return str(folder / "lists.faiss")


def chroma(folder: Path) -> str:
    import chromadb

    client = chromadb.PersistentClient(str(folder / "chroma"), chromadb.Settings(anonymized_telemetry=False))
    details = [{"title": title, "text": "an excerpt"} for title in TITLES]
    collection = client.create_collection("docs", embedding_function=None)
    collection.add(ids=IDS, embeddings=VECTORS, documents=TEXTS, metadatas=details)
    return f"chroma:{folder / 'chroma'}"


def qdrant(folder: Path) -> str:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / "qdrant"))
    client.create_collection("docs", models.VectorParams(size=DIMENSION, distance=models.Distance.DOT))
    payloads = [{"text": text, "page": 1, "meta": {"title": title}} for text, title in zip(TEXTS, TITLES, strict=True)]
    points = [
        models.PointStruct(id=929 - row, vector=VECTORS[row].tolist(), payload=payloads[row])
        for row in range(len(VECTORS))
    ]
    client.upsert("docs", points)
    client.close()
    return f"qdrant:{folder / 'qdrant'}"


def npy(folder: Path) -> str:
    np.save(folder / "mine.npy", VECTORS)
    return str(folder / "mine.npy")


ROWS = [str(row) for row in range(30)]
STORES: dict[str, tuple[Callable[[Path], str], list[str]]] = {
    "npy": (npy, ROWS),
    "faiss": (faiss_index, ROWS),
    "faiss ids": (faiss_ids, [str(100 + row) for row in range(30)]),
    "faiss lists": (faiss_lists, ROWS),
    "chroma": (chroma, IDS),
    "qdrant": (qdrant, [str(929 - row) for row in range(30)]),
}
TEXT_FIELDS = {"chroma": ("document", "title"), "qdrant": ("text", "meta.title")}  # the first is what is chosen


@pytest.mark.parametrize("kind", STORES)
def test_every_store_gives_its_ids_and_the_vectors_under_them(kind: str, tmp_path: Path) -> None:
    make, ids = STORES[kind]
    address = make(tmp_path)
    truth = dict(zip(ids, VECTORS, strict=True))
    whole = sample_store(open_store(address, DIMENSION), DIMENSION)
    assert (whole.size, len(whole.ids), set(whole.ids)) == (30, 30, set(ids))
    assert whole.vectors.dtype == torch.float32
    for one, vector in zip(whole.ids, whole.vectors.numpy(), strict=True):
        assert vector == pytest.approx(truth[one], abs=1e-6)
    if kind in TEXT_FIELDS:
        check_store(address, ids, None, *TEXT_FIELDS[kind])


def test_a_sample_is_random_by_its_seed_and_holds_what_is_wanted(tmp_path: Path) -> None:
    store = open_store(npy(tmp_path), DIMENSION)
    one, same, other = (sample_store(store, DIMENSION, limit=8, seed=seed, wanted=[29, 3]) for seed in (0, 0, 1))
    assert one.positions == same.positions != other.positions
    assert len(one.ids) == 8
    assert {3, 29} <= set(one.positions)
    assert list(one.positions) == sorted(one.positions) != list(range(8))
    assert torch.equal(one.vectors, torch.from_numpy(VECTORS[list(one.positions)]))
    assert set(sample_store(store, DIMENSION, limit=2, wanted=[5, 6, 7]).positions) < {5, 6, 7}
    assert sample_store(store, DIMENSION, limit=99).positions == tuple(range(30))


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "no chroma store; the folder of such a store has chroma.sqlite3" in refusal(f"chroma:{tmp_path}")
    assert "no qdrant store" in refusal(f"qdrant:{tmp_path}")
    assert f"no directory {tmp_path / 'no'}" in refusal(f"chroma:{tmp_path / 'no'}")
    assert not any(tmp_path.iterdir())  # neither library made an empty store
    assert "no such file" in refusal(f"faiss:{tmp_path / 'no.index'}")
    (tmp_path / "bad.faiss").write_bytes(b"garbage")
    assert "not a FAISS index" in refusal(str(tmp_path / "bad.faiss"))
    assert "unknown kind of store 'chrome', did you mean chroma?" in refusal("chrome:db")
    assert "unknown extension '.csv'" in refusal("mine.csv")
    assert "collection=docs: a file has no collections" in refusal(npy(tmp_path), "docs")
    assert "cannot be" in refusal("qdrant:http://127.0.0.1:9")
    assert "cannot be" in refusal("chroma:http://127.0.0.1:9")


@pytest.mark.parametrize(("kind", "mark"), [("chroma", "chroma.sqlite3"), ("qdrant", "meta.json")])
def test_a_store_named_by_its_files_is_answered_with_its_address(kind: str, mark: str, tmp_path: Path) -> None:
    address = STORES[kind][0](tmp_path)
    folder = address.partition(":")[2]
    assert refusal(folder) == f"vectors={folder}: belongs to a store; give vectors={address}"
    assert refusal(f"{folder}/{mark}") == f"vectors={folder}/{mark}: belongs to a store; give vectors={address}"
    assert refusal(f"{address}/{mark}") == f"vectors={address}/{mark}: no {kind} store; give vectors={address}"
    assert refusal(f"lancedb:{folder}") == f"vectors=lancedb:{folder}: no lancedb store; give vectors={address}"


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_collections_are_chosen_by_name(kind: str, tmp_path: Path) -> None:
    address = STORES[kind][0](tmp_path)
    assert "no collection dogs; did you mean docs?" in refusal(address, "dogs")


def test_several_collections_or_vectors_need_a_choice(tmp_path: Path) -> None:
    import chromadb

    address = chroma(tmp_path)
    client = chromadb.PersistentClient(str(tmp_path / "chroma"), chromadb.Settings(anonymized_telemetry=False))
    client.create_collection("notes", embedding_function=None)
    assert "which collection? give collection=<one of docs, notes>" in refusal(address)
    assert sample_store(open_store(address, DIMENSION, "docs"), DIMENSION).size == 30
    assert "holds no vectors" in refusal(address, "notes")
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path / "named"))
    size = models.VectorParams(size=DIMENSION, distance=models.Distance.DOT)
    client.create_collection("docs", {"title": size, "body": size})
    point = {"title": VECTORS[0].tolist(), "body": VECTORS[1].tolist()}
    client.upsert("docs", [models.PointStruct(id=1, vector=point)])
    client.close()
    address = f"qdrant:{tmp_path / 'named'}"
    assert "has the vectors body, title; give collection=docs/<one of them>" in refusal(address)
    found = sample_store(open_store(address, DIMENSION, "docs/body"), DIMENSION).vectors
    assert found[0].numpy() == pytest.approx(VECTORS[1], abs=1e-6)


def test_another_width_and_rows_without_direction(tmp_path: Path) -> None:
    assert f"vectors of dimension {DIMENSION}, but this attack was trained on dimension 384" in refusal(
        STORES["chroma"][0](tmp_path), dimension=384
    )
    import faiss

    index = faiss.IndexFlatIP(DIMENSION)
    index.add(np.zeros((2, DIMENSION), np.float32))
    faiss.write_index(index, str(tmp_path / "zero.faiss"))
    assert "row 0 is all zeros" in refusal(str(tmp_path / "zero.faiss"))


@pytest.mark.parametrize(
    ("library", "address"),
    [
        ("chromadb", "chroma:x"),
        ("qdrant_client", "qdrant:http://x"),
        ("faiss", "x.faiss"),
        ("psycopg", "postgresql://h/d"),
    ],
)
def test_a_client_that_is_not_installed(library: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert "pip install 'unembed[" in refusal(address)


def test_a_folder_of_qdrant_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = qdrant(tmp_path)
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    assert sample_store(open_store(address, DIMENSION), DIMENSION).size == 30


# -- texts beside the vectors -----------------------------------------------------------------------------------------


def test_fields_that_are_not_there(tmp_path: Path) -> None:
    address = qdrant(tmp_path)
    message = refused_field(address, "txet")
    assert "texts=store:txet: " in message
    assert "did you mean text?" in message
    assert "no such text" in refused_field(address, "page")  # a number
    assert "mine.npy holds vectors alone; give a file" in refused_field(npy(tmp_path), None)


class Held(ArrayStore):
    """Vectors and texts in memory."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.name, self.rows = "held", rows
        self.ids = [str(row) for row in range(len(rows))]

    def texts(self, positions: list[int], field: str | None = None) -> list[dict[str, str]]:
        return [flat_texts(self.rows[place], field) for place in positions]


def test_which_field_holds_the_text() -> None:
    assert stored_texts(Held([{"note": "hi", "n": 1}]), [0], None) == ("note", {0: "hi"})
    assert stored_texts(Held([{"content": "b", "text": "a"}]), [0], None) == ("text", {0: "a"})
    assert stored_texts(Held([{"text": "a"}, {"text": " "}, {}]), [0, 1, 2], None) == ("text", {0: "a"})
    for rows, message in (
        ([{"x": "a", "y": "b"}], "held has several texts; give texts=store:<one of x, y>"),
        ([{"x": 1}], "held has no texts beside its vectors; give a file"),
        ([{"text": ""}], "texts=store:text: held has no text in any of 1 rows"),
    ):
        with pytest.raises(InputError, match=message):
            stored_texts(Held(rows), [0], None)
    deep: dict[str, object] = {"a": "end"}
    for _ in range(100):
        deep = {"in": deep}
    assert flat_texts({"a": 1, "b": {"c": "hi", "d": ["x"]}, "deep": deep, "e": None}) == {"b.c": "hi"}
    assert flat_texts(None) == {}


# -- passwords: none in an address, whatever its spelling --------------------------------------------------------------

SPELLINGS = [
    "{}", "%zz{}", "a/{}", "a#{}", "a?{}", "a@{}", "a {}", "a:{}", "a'{}", 'a"{}', "%2f{}", "a\n{}", "5432{}",
]  # fmt: skip
ADDRESSES = [
    "postgresql://ada:{}@host/mail", "POSTGRESQL://ada:{}@host/mail", "postgres://ada:{}",
    "postgresql:ada:{}@host/mail",
    "postgresql://host/mail?password={}", "postgresql://host/mail?pass%77ord={}",
    "postgresql://ada:{}@one:1,two:2/mail",
    "postgresql:host=host password={}", "host=host password='{}'", "ada:{}@host/mail", "//ada:{}@host/mail",
    "qdrant:http://ada:{}@host:6333", "qdrant:HTTPS://{}@host", "qdrant:{}@host:6333", "qdrant:https://host?api_key={}",
    "chroma:https://ada:{}@host", "chroma:https://host/#{}", "mysql://ada:{}@host/mail",
    "milvus:http://root:{}@host:19530", "weaviate:https://{}@host", "opensearch:https://ada:{}@host:9200",
    "elasticsearch:https://host?api_key={}", "pinecone:https://host?key={}", "lancedb:s3://ada:{}@bucket/db",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_password_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    for spelling in SPELLINGS:
        message = refusal(address.format(spelling.format("w0rdOfHonour")))
        assert "w0rdOfHonour" not in message
        assert re.search("[A-Z]_(API_KEY|TOKEN|PASSWORD)|PGPASSWORD|CHROMA_CLIENT|needs none", message)


def test_addresses_without_a_password_are_taken() -> None:
    for address in (
        "postgresql://ada@host:5432/mail", "postgres://%2Fvar%2Frun/mail", "postgresql:///mail",
        "postgresql://ada@[::1]:5432/mail?sslmode=require&host=/tmp", "qdrant:https://x-y.cloud.example:6333/",
        "chroma:http://localhost:8000", "qdrant:some folder", "/data/mine.npy",
    ):  # fmt: skip
        assert address_error(address) is None


# -- files of somebody who means harm ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flat", "ids", "lists", "graph", "product"])
def test_a_faiss_file_with_changed_bytes_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    import faiss

    lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIMENSION), DIMENSION, 2)
    index = {
        "flat": faiss.IndexFlatIP(DIMENSION), "ids": faiss.IndexIDMap(faiss.IndexFlatL2(DIMENSION)), "lists": lists,
        "graph": faiss.IndexHNSWFlat(DIMENSION, 4), "product": faiss.IndexPQ(DIMENSION, 2, 4),
    }[kind]  # fmt: skip
    index.train(VECTORS)
    index.add_with_ids(VECTORS, np.arange(30)) if kind == "ids" else index.add(VECTORS)
    path = tmp_path / "mine.faiss"
    faiss.write_index(index, str(path))
    whole = path.read_bytes()
    assert sample_store(open_store(str(path), DIMENSION), DIMENSION).size == 30
    changing, refused = np.random.default_rng(7), 0
    for _ in range(4):
        content = np.frombuffer(whole, np.uint8).copy()
        places = changing.integers(4, min(len(content), 400), size=3)  # where lengths and kinds stand
        content[places] = changing.integers(0, 256, size=3)
        path.write_bytes(content.tobytes())
        try:
            sample_store(open_store(str(path), DIMENSION), DIMENSION)
        except InputError:
            refused += 1
    assert refused


@pytest.mark.parametrize("kind", ["PCA4,IVF2,Flat", "IVF2,PQ2x4", "IDMap2,SQ8", "Flat,RFlat"])
def test_faiss_gives_back_what_it_stored(kind: str, tmp_path: Path) -> None:
    import faiss

    index = faiss.index_factory(DIMENSION, kind)
    index.train(VECTORS)
    index.add_with_ids(VECTORS, np.arange(7, 37)) if "IDMap" in kind else index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "mine.faiss"))
    sample = sample_store(open_store(str(tmp_path / "mine.faiss"), DIMENSION), DIMENSION)
    assert sample.ids[0] == ("7" if "IDMap" in kind else "0")
    cosines = torch.nn.functional.cosine_similarity(sample.vectors, torch.from_numpy(VECTORS))
    assert cosines.median() > 0.7


def test_faiss_headers_and_indexes_whose_vectors_cannot_be_read(tmp_path: Path) -> None:
    path = Path(faiss_index(tmp_path))
    whole = path.read_bytes()
    for place, form, value in ((4, "<i", -1), (4, "<i", 2**31 - 1), (8, "<q", -1), (8, "<q", 2**40)):
        path.write_bytes(whole[:place] + struct.pack(form, value) + whole[place + struct.calcsize(form) :])
        assert f"{value} " in refusal(str(path)) or f"dimension {value} " in refusal(str(path))
    path.write_bytes(whole[:20])
    assert "not a FAISS index" in refusal(str(path))
    import faiss

    index = faiss.index_factory(DIMENSION, "IVF2,PQ2x4fs")
    index.train(VECTORS)
    index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "mine.faiss"))
    assert "does not give the vectors of fast-scan lists" in refusal(str(tmp_path / "mine.faiss"))

    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIMENSION), DIMENSION, 2)
    index.train(VECTORS)
    elsewhere = faiss.OnDiskInvertedLists(2, index.code_size, str(tmp_path / "elsewhere"))
    index.replace_invlists(elsewhere)
    index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "lists.faiss"))
    assert "its vectors lie in another file" in refusal(str(tmp_path / "lists.faiss"))


IDLE = """
import signal, threading, time
from pathlib import Path

def watch(stopped):
    while signal.getitimer(signal.ITIMER_REAL)[0] or signal.getitimer(signal.ITIMER_PROF)[0]:
        time.sleep(0.01)
    Path(stopped).touch()

def opened(stopped):
    threading.Thread(target=watch, args=[stopped], daemon=True).start()
    return 0, lambda rows: [[0.5]] * len(rows)
"""


def test_a_child_is_not_timed_while_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit loads models between opening a store and asking for vectors."""
    (tmp_path / "idle_store.py").write_text(IDLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    opener = importlib.import_module("idle_store").opened
    child = Child("x.index", opener, [str(tmp_path / "stopped")], [], Limits(5.0, 256 << 20))
    end = time.monotonic() + 20
    while not (tmp_path / "stopped").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert child.ask([1, 2]).tolist() == [[0.5], [0.5]]


def test_a_child_ends_at_its_limits_and_sees_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(opener: Any, *arguments: Any, seconds: float = 5.0) -> str:
        with pytest.raises(InputError) as raised:
            Child("x.index", opener, arguments, [], Limits(seconds, 256 << 20))
        assert str(raised.value).startswith("x.index: damaged, or made to do harm: ")
        return str(raised.value)

    monkeypatch.setenv("PGPASSWORD", "tied-with-string")
    assert Child("x.index", divmod, [7, 2], [], Limits(5.0, 256 << 20)).opened == 3
    assert "seconds of the processor" in reason(math.factorial, 10**8, seconds=0.3)
    assert "more than 256 MB of memory" in reason(bytearray, 2**33)
    assert "crashed (SIGABRT)" in reason(os.abort)
    assert "its reader failed: json.decoder.JSONDecodeError" in reason(json.loads, "{")
    assert "its reader failed: []" in reason(os.execvp, "sh", ["sh", "-c", "echo [$PGPASSWORD] >&2; exit 3"])


class Harm:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


def stored(folder: Path) -> Path:
    return folder / "qdrant" / "collection" / "docs" / "storage.sqlite"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "holds no point: it names posix.system; nothing of it was run"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "it names builtins.eval"),
        (b"cqdrant_client.http.models.models\nos.system\n(S'touch x'\ntR.", "holds no point"),
        (b"\x80\x04Nr\xff\xff\xff\xff.", "holds no point"),
        (b"\x80\x04]" + b"2" * 1000 + b".", "holds no point"),
        (b"\x80\x04NNa.", "holds no point: damaged"),
        (b"\x80\x04e.", "damaged"),
        (b"\x80\x04.", "holds no point"),
        ("text", "holds no point"),
        (pickle.dumps([[1.0]]), "holds no point"),
        (b"\x80\x02cqdrant_client.http.models.models\nPointStruct\n}b.", "holds no point"),  # a state for a class
        (b"\x80\x02Vx\nQ.", "holds no point: damaged"),  # an object from elsewhere
        (b"\x80\x02\x82\x01.", "holds no point: damaged"),  # of the registry of extensions
    ],
)
def test_a_qdrant_folder_runs_no_code(content: bytes | str | None, expected: str, tmp_path: Path) -> None:
    address, harmed = qdrant(tmp_path), tmp_path / "harmed"
    with contextlib.closing(sqlite3.connect(stored(tmp_path))) as database, database:
        database.execute("insert into points values ('x', ?)", (content or pickle.dumps(Harm(harmed)),))
    assert expected in refusal(address)
    assert not harmed.exists()


def test_a_qdrant_database_lists_points_and_does_nothing_else(tmp_path: Path) -> None:
    address = qdrant(tmp_path)
    with contextlib.closing(sqlite3.connect(stored(tmp_path))) as database, database:
        database.execute("alter table points rename to others")
        database.execute(
            "create view points as with recursive more(rowid) as (select 1 union all select rowid + 1 from more) "
            "select rowid, zeroblob(9) as point from more"
        )
    assert "storage.sqlite cannot be read" in refusal(address)
    stored(tmp_path).write_bytes(b"no database")
    assert "storage.sqlite cannot be read" in refusal(address)
    stored(tmp_path).unlink()
    os.mkfifo(stored(tmp_path))
    assert "has no storage.sqlite" in refusal(address)
    meta = tmp_path / "qdrant" / "meta.json"
    (tmp_path / "storage.sqlite").touch()
    meta.write_text('{"collections": {"../..": {"vectors": {"size": 6}}}, "aliases": {}}')
    assert "collection ../.. lies outside of the folder" in refusal(address)
    assert "no collection .." in refusal(address, "../..")
    meta.write_text('{"collections": {"..": {"vectors": {"size": 6}}}, "aliases": {}}')
    assert "has no storage.sqlite" in refusal(address)
    for content in ("[" * 100_000, "[]", '{"collections": [1]}', '{"collections": {"a": {"vectors": 3}}}'):
        meta.write_text(content)
        assert "meta.json is not what Qdrant writes" in refusal(address)


def test_points_as_the_client_of_qdrant_leaves_them(tmp_path: Path) -> None:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path / "q"))
    size = models.VectorParams(size=DIMENSION, distance=models.Distance.DOT)
    client.create_collection("docs", size)
    client.create_collection("named", {"a": size}, sparse_vectors_config={"s": models.SparseVectorParams()})
    name = "6f1e3b2a-0000-4000-8000-000000000001"
    payload = {"when": datetime.datetime.now(datetime.UTC), "id": uuid.uuid4(), "deep": [{"a": None}]}
    client.upsert("docs", [models.PointStruct(id=1, vector=VECTORS[0].tolist(), payload=payload)])
    client.upsert("docs", models.Batch(ids=[2, name, 4], vectors=VECTORS[1:4].tolist()))
    client.upsert("docs", [models.PointStruct(id=1, vector=VECTORS[9].tolist())])
    client.delete("docs", [4])
    sparse = models.SparseVector(indices=[1], values=[2.0])
    client.upsert("named", [models.PointStruct(id=5, vector={"a": VECTORS[5].tolist(), "s": sparse})])
    client.upsert("named", [models.PointStruct(id=6, vector={"s": sparse})])
    assert "another program has it open" in refusal(f"qdrant:{tmp_path / 'q'}", "docs")
    client.close()
    sample = sample_store(open_store(f"qdrant:{tmp_path / 'q'}", DIMENSION, "docs"), DIMENSION)
    found = dict(zip(sample.ids, sample.vectors.numpy(), strict=True))
    assert set(found) == {"1", "2", name}
    for one, row in (("1", 9), ("2", 1), (name, 2)):
        assert found[one] == pytest.approx(VECTORS[row], abs=1e-6)
    named = sample_store(open_store(f"qdrant:{tmp_path / 'q'}", DIMENSION, "named"), DIMENSION)
    assert named.ids == ("5",)
    assert named.vectors[0].numpy() == pytest.approx(VECTORS[5], abs=1e-6)


def test_a_chroma_folder_leads_to_no_other_database(tmp_path: Path) -> None:
    """The library writes its own tables into what it opens."""
    (tmp_path / "mine.db").write_bytes(b"")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "chroma.sqlite3").symlink_to(tmp_path / "mine.db")
    assert "chroma.sqlite3 is a link, and such a folder holds none" in refusal(f"chroma:{tmp_path / 'sent'}")
    assert (tmp_path / "mine.db").read_bytes() == b""


def test_a_chroma_folder_builds_and_runs_nothing_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import chromadb

    client = chromadb.PersistentClient(str(tmp_path / "chroma"), chromadb.Settings(anonymized_telemetry=False))
    settings = {"hnsw": {"sync_threshold": 10, "batch_size": 5}}
    client.create_collection("docs", embedding_function=None, configuration=settings).add(ids=IDS, embeddings=VECTORS)
    address, harmed = f"chroma:{tmp_path / 'chroma'}", tmp_path / "harmed"
    with contextlib.closing(sqlite3.connect(tmp_path / "chroma" / "chroma.sqlite3")) as database, database:
        written = json.loads(database.execute("select config_json_str from collections").fetchone()[0])
        named = {"type": "known", "name": "sentence_transformer", "config": {"model_name": str(harmed)}}
        written["embedding_function"] = named
        database.execute("update collections set config_json_str = ?", (json.dumps(written),))
    (tmp_path / ".env").write_text("CHROMA_API_IMPL=nowhere.Api\n")
    monkeypatch.chdir(tmp_path)
    assert sample_store(open_store(address, DIMENSION), DIMENSION).size == 30
    (pickled,) = tmp_path.glob("chroma/*/index_metadata.pickle")
    pickled.write_bytes(pickle.dumps(Harm(harmed)))
    with contextlib.suppress(InputError):
        sample_store(open_store(address, DIMENSION), DIMENSION)
    assert not harmed.exists()
