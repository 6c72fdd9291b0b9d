"""Texts beside the vectors of a store: which field is taken, and that each belongs to its vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.base import flat_texts
from unembed.datamodules.vector_stores.sampling import ArrayStore, open_store, stored_texts

DIMENSION = 6
VECTORS = np.random.default_rng(0).normal(size=(12, DIMENSION)).astype(np.float32)
TEXTS = [f"Ada wrote letter {row}" for row in range(12)]
PAYLOADS = [{"text": text, "page": row, "meta": {"title": f"T{row}"}} for row, text in enumerate(TEXTS)]


def chroma(folder: Path) -> str:
    import chromadb

    client = chromadb.PersistentClient(str(folder / "chroma"), chromadb.Settings(anonymized_telemetry=False))
    made = client.create_collection("docs", embedding_function=None)
    details = [{"title": f"T{row}", "text": "an excerpt"} for row in range(12)]
    made.add(ids=[f"{11 - row:02d}" for row in range(12)], embeddings=VECTORS, documents=TEXTS, metadatas=details)
    return f"chroma:{folder / 'chroma'}"


def qdrant(folder: Path) -> str:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / "qdrant"))
    client.create_collection("docs", models.VectorParams(size=DIMENSION, distance=models.Distance.DOT))
    points = [models.PointStruct(id=50 - row, vector=VECTORS[row].tolist(), payload=PAYLOADS[row]) for row in range(12)]
    client.upsert("docs", points)
    client.close()
    return f"qdrant:{folder / 'qdrant'}"


@pytest.mark.parametrize(("make", "field", "title"), [(chroma, "document", "title"), (qdrant, "text", "meta.title")])
def test_each_text_is_that_of_its_vector(make: Callable[[Path], str], field: str, title: str, tmp_path: Path) -> None:
    store = open_store(make(tmp_path), DIMENSION)
    positions = [7, 2, 11]
    chosen, found = stored_texts(store, positions, None)
    rows = [int(np.abs(VECTORS - vector).sum(1).argmin()) for vector in store.fetch(positions)]
    assert chosen == field
    assert found == {place: TEXTS[row] for place, row in zip(positions, rows, strict=True)}
    assert stored_texts(store, positions, title)[1] == {
        place: f"T{row}" for place, row in zip(positions, rows, strict=True)
    }


def refusal(address: str, field: str | None) -> str:
    with pytest.raises(InputError) as raised:
        stored_texts(open_store(address, DIMENSION), range(12), field)
    return str(raised.value)


def test_fields_that_are_not_there(tmp_path: Path) -> None:
    address = qdrant(tmp_path)
    assert "texts=store:txet: " in refusal(address, "txet")
    assert "did you mean text?" in refusal(address, "txet")
    assert "no such text" in refusal(address, "page")  # a number
    np.save(tmp_path / "mine.npy", VECTORS)
    assert "mine.npy holds vectors alone; give a file" in refusal(str(tmp_path / "mine.npy"), None)


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


def test_texts_of_a_payload() -> None:
    deep: dict[str, object] = {"a": "end"}
    for _ in range(100):
        deep = {"in": deep}
    assert flat_texts({"a": 1, "b": {"c": "hi", "d": ["x"]}, "deep": deep, "e": None}) == {"b.c": "hi"}
    assert flat_texts(None) == {}
