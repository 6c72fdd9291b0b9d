"""Samples of vector stores: each client library on a real store in a folder, and what can be wrong with one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules.store_pgvector import without_password
from datamodules.vector_stores import draw, open_store
from errors import InputError

WIDTH = 6
VECTORS = np.random.default_rng(0).normal(size=(30, WIDTH)).astype(np.float32)
IDS = [f"doc-{(7 * number) % 30:02d}" for number in range(30)]  # not in the order of their names


def faiss_index(folder: Path) -> str:
    import faiss

    index = faiss.IndexFlatIP(WIDTH)
    index.add(VECTORS)
    faiss.write_index(index, str(folder / "mine.faiss"))
    return str(folder / "mine.faiss")


def faiss_ids(folder: Path) -> str:
    import faiss

    index = faiss.IndexIDMap(faiss.IndexFlatL2(WIDTH))
    index.add_with_ids(VECTORS, np.arange(100, 130))
    faiss.write_index(index, str(folder / "mine.index"))
    return f"faiss:{folder / 'mine.index'}"


def faiss_lists(folder: Path) -> str:
    import faiss

    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(WIDTH), WIDTH, 2)
    index.train(VECTORS)
    index.add(VECTORS)
    faiss.write_index(index, str(folder / "lists.faiss"))
    return str(folder / "lists.faiss")


def chroma(folder: Path) -> str:
    import chromadb

    client = chromadb.PersistentClient(str(folder / "chroma"), chromadb.Settings(anonymized_telemetry=False))
    client.create_collection("docs", embedding_function=None).add(ids=IDS, embeddings=VECTORS)
    return f"chroma:{folder / 'chroma'}"


def qdrant(folder: Path) -> str:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / "qdrant"))
    client.create_collection("docs", models.VectorParams(size=WIDTH, distance=models.Distance.DOT))
    client.upsert(
        "docs", [models.PointStruct(id=900 + row, vector=VECTORS[row].tolist()) for row in range(len(VECTORS))]
    )
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
    "qdrant": (qdrant, [str(900 + row) for row in range(30)]),
}


@pytest.mark.parametrize("kind", STORES)
def test_every_store_gives_its_ids_and_the_vectors_under_them(kind: str, tmp_path: Path) -> None:
    make, ids = STORES[kind]
    address = make(tmp_path)
    truth = dict(zip(ids, VECTORS, strict=True))
    whole = draw(open_store(address, WIDTH), WIDTH)
    assert (whole.size, len(whole.ids), set(whole.ids)) == (30, 30, set(ids))
    assert whole.vectors.dtype == torch.float32
    for one, vector in zip(whole.ids, whole.vectors.numpy(), strict=True):
        assert vector == pytest.approx(truth[one], abs=1e-6)


def test_a_sample_is_drawn_at_random_by_its_seed_and_holds_what_is_wanted(tmp_path: Path) -> None:
    store = open_store(npy(tmp_path), WIDTH)
    one, same, other = (draw(store, WIDTH, limit=8, seed=seed, wanted=[29, 3]) for seed in (0, 0, 1))
    assert one.positions == same.positions != other.positions
    assert len(one.ids) == 8
    assert {3, 29} <= set(one.positions)
    assert list(one.positions) == sorted(one.positions) != list(range(8))
    assert torch.equal(one.vectors, torch.from_numpy(VECTORS[list(one.positions)]))
    assert set(draw(store, WIDTH, limit=2, wanted=[5, 6, 7]).positions) < {5, 6, 7}
    assert draw(store, WIDTH, limit=99).positions == tuple(range(30))


def refusal(vectors: str, collection: str | None = None, width: int = WIDTH) -> str:
    with pytest.raises(InputError) as raised:
        draw(open_store(vectors, width, collection), width)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "no Chroma folder" in refusal(f"chroma:{tmp_path}")
    assert "no local Qdrant folder" in refusal(f"qdrant:{tmp_path}")
    assert not any(tmp_path.iterdir())  # neither library made an empty store
    assert "no such file" in refusal(f"faiss:{tmp_path / 'no.index'}")
    (tmp_path / "bad.faiss").write_bytes(b"garbage")
    assert "not a FAISS index" in refusal(str(tmp_path / "bad.faiss"))
    assert "unknown kind of store 'chrome', did you mean chroma?" in refusal("chrome:db")
    assert "unknown extension '.csv'" in refusal("mine.csv")
    assert "collection=docs: a file has no collections" in refusal(npy(tmp_path), "docs")
    assert "cannot be" in refusal("qdrant:http://127.0.0.1:9")
    assert "cannot be" in refusal("chroma:http://127.0.0.1:9")


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_collections_are_chosen_by_name(kind: str, tmp_path: Path) -> None:
    address = STORES[kind][0](tmp_path)
    assert "no collection dogs; did you mean docs?" in refusal(address, "dogs")


def test_several_collections_need_a_choice(tmp_path: Path) -> None:
    import chromadb

    address = chroma(tmp_path)
    client = chromadb.PersistentClient(str(tmp_path / "chroma"), chromadb.Settings(anonymized_telemetry=False))
    client.create_collection("notes", embedding_function=None)
    assert "which collection? give collection=<one of docs, notes>" in refusal(address)
    assert draw(open_store(address, WIDTH, "docs"), WIDTH).size == 30
    assert "holds no vectors" in refusal(address, "notes")


def test_qdrant_points_with_several_vectors(tmp_path: Path) -> None:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path / "named"))
    size = models.VectorParams(size=WIDTH, distance=models.Distance.DOT)
    client.create_collection("docs", {"title": size, "body": size})
    point = {"title": VECTORS[0].tolist(), "body": VECTORS[1].tolist()}
    client.upsert("docs", [models.PointStruct(id=1, vector=point)])
    client.close()
    address = f"qdrant:{tmp_path / 'named'}"
    assert "has the vectors body, title; give collection=docs/<one of them>" in refusal(address)
    found = draw(open_store(address, WIDTH, "docs/body"), WIDTH).vectors
    assert found[0].numpy() == pytest.approx(VECTORS[1], abs=1e-6)


def test_another_width_and_rows_without_direction(tmp_path: Path) -> None:
    assert f"vectors of width {WIDTH}, but this attack was trained on width 384" in refusal(
        STORES["chroma"][0](tmp_path), width=384
    )
    import faiss

    index = faiss.IndexFlatIP(WIDTH)
    index.add(np.zeros((2, WIDTH), np.float32))
    faiss.write_index(index, str(tmp_path / "zero.faiss"))
    assert "row 0 is all zeros" in refusal(str(tmp_path / "zero.faiss"))


@pytest.mark.parametrize(
    ("library", "address"),
    [("chromadb", "chroma:x"), ("qdrant_client", "qdrant:x"), ("faiss", "x.faiss"), ("psycopg", "postgresql://h/d")],
)
def test_a_client_that_is_not_installed(library: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert "pip install 'unembed[" in refusal(address)


# -- PostgreSQL: a cursor that answers as the server does; what the statements do there is not seen here ---------------


class Answer:
    def __init__(self, rows: list[tuple[str, ...]]) -> None:
        self.rows = rows

    def fetchall(self) -> list[tuple[str, ...]]:
        return self.rows


class Server:
    """Knows one table of vectors, and which statement asks for what."""

    def __init__(self, columns: list[tuple[str, str, str]], keys: list[str]) -> None:
        self.columns, self.keys, self.read_only, self.asked = columns, keys, False, 0

    def execute(self, statement: Any, parameters: Any = ()) -> Answer:
        text = statement if isinstance(statement, str) else statement.as_string(None)
        if "information_schema" in text:
            return Answer(list(self.columns))
        if "indisprimary" in text:
            return Answer([(key,) for key in self.keys])
        assert '"public"."notes"' in text
        key = '"id"' if len(self.keys) == 1 else "ctid"
        assert text.startswith(f"select {key}::text")
        if "any(" not in text:
            return Answer([(one,) for one in IDS])
        self.asked += 1
        (wanted,) = parameters
        return Answer([(one, f"[{','.join(map(repr, VECTORS[IDS.index(one)].tolist()))}]") for one in sorted(wanted)])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    import psycopg

    def start(columns: list[tuple[str, str, str]], keys: list[str]) -> Server:
        made = Server(columns, keys)
        monkeypatch.setattr(psycopg, "connect", lambda address: made)
        return made

    return start


@pytest.mark.parametrize("keys", [["id"], [], ["a", "b"]])
def test_pgvector_rows_under_their_key(server: Callable[..., Server], keys: list[str]) -> None:
    there = server([("public", "notes", "embedding")], keys)
    store = open_store("postgresql://ada:secret@host:5432/mail?password=secret", WIDTH)
    assert store.name == "postgresql://ada@host:5432/mail (public.notes.embedding)"
    assert there.read_only
    sample = draw(store, WIDTH, limit=4, seed=2)
    assert there.asked == 1
    for one, vector in zip(sample.ids, sample.vectors.numpy(), strict=True):
        assert vector == pytest.approx(VECTORS[IDS.index(one)], abs=1e-6)


def test_pgvector_columns_are_chosen_and_passwords_never_shown(server: Callable[..., Server]) -> None:
    server([("public", "notes", "embedding"), ("public", "notes", "title")], ["id"])
    message = refusal("postgresql://ada:secret@host/mail")
    assert "which column of vectors? give collection=<one of public.notes.embedding, public.notes.title>" in message
    assert "secret" not in message
    assert "no column of vectors notes.body?" in refusal("postgresql://host/mail", "notes.body")
    assert draw(open_store("postgresql://host/mail", WIDTH, "notes.title"), WIDTH).size == 30
    assert without_password("postgresql://host/mail") == "postgresql://host/mail"


def test_pgvector_without_a_server() -> None:
    assert "cannot be read" in refusal("postgresql://ada:secret@127.0.0.1:9/mail?connect_timeout=2")
