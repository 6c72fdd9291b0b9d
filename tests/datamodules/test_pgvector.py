"""PostgreSQL with pgvector: a real server where one is installed, read by a user who may only select."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.postgres import postgres
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.sampling import open_store, sample_store, stored_texts

DIMENSION = 6
VECTORS = np.random.default_rng(0).normal(size=(30, DIMENSION)).astype(np.float32)
VECTORS[:, 2] = 0
KEYS = [f"doc-{(7 * number) % 30:02d}" for number in range(30)]  # not in the order of their names
TABLES = """
create extension vector;
create table notes (
    id text primary key, body varchar, meta jsonb, "Dense" vector(6), half halfvec(6), few sparsevec(6));
create table "Letters" (a int, b int, embedding vector(6), primary key (a, b));
create table wide (id bigint primary key, embedding sparsevec(1000000));
create table "my.notes" (id int primary key, "v.1" vector(6));
create role auditor login;
grant select on notes, "Letters", wide, "my.notes" to auditor;
"""


def written(vector: np.ndarray[Any, Any]) -> str:
    return f"[{','.join(map(repr, vector.tolist()))}]"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    psycopg = pytest.importorskip("psycopg")
    with tempfile.TemporaryDirectory(prefix="pg") as folder, postgres(Path(folder)) as server:
        with psycopg.connect(f"postgresql://owner@/?{server}") as connection:
            for statement in filter(str.strip, TABLES.split(";")):
                connection.execute(statement)
            for row, (key, vector) in enumerate(zip(KEYS, VECTORS, strict=True)):
                sparse = ",".join(f"{place + 1}:{value!r}" for place, value in enumerate(vector.tolist()) if value)
                connection.execute(
                    "insert into notes values (%s, %s, %s, %s, %s, %s)",
                    (key, f"letter {row}", f'{{"from": "Ada {row}", "n": 1}}', written(vector), written(vector),
                     f"{{{sparse}}}/6"),
                )  # fmt: skip
                connection.execute('insert into "Letters" values (%s, %s, %s)', (row, 7, written(vector)))
                connection.execute('insert into "my.notes" values (%s, %s)', (row, written(vector)))
            connection.execute("insert into notes (id) values ('without a vector')")
            connection.execute("insert into wide values (1, '{5:1}/1000000')")
        yield f"postgresql://auditor@/?{server}"


@pytest.mark.parametrize(("column", "close"), [("Dense", 1e-6), ("half", 2e-3), ("few", 1e-6)])
def test_every_type_of_vectors_is_read(column: str, close: float, address: str) -> None:
    store = open_store(address, DIMENSION, f"notes.{column}")
    assert store.name == f"postgresql://auditor@/ (public.notes.{column})"
    sample = sample_store(store, DIMENSION, limit=9, seed=1)
    assert (sample.size, len(sample.ids)) == (30, 9)
    for one, vector in zip(sample.ids, sample.vectors.numpy(), strict=True):
        assert vector == pytest.approx(VECTORS[KEYS.index(one)], abs=close)


def test_keys_and_texts_of_a_row(address: str) -> None:
    sample = sample_store(open_store(address, DIMENSION, "Letters.embedding"), DIMENSION)
    assert sample.ids[0] == "(0,1)"
    assert sample.vectors.numpy() == pytest.approx(VECTORS, abs=1e-6)
    store = open_store(address, DIMENSION, "notes.Dense")
    positions = [3, 29, 8]
    rows = [KEYS.index(store.ids[place]) for place in positions]
    expected = {place: f"letter {row}" for place, row in zip(positions, rows, strict=True)}
    assert stored_texts(store, positions, None) == ("body", expected)
    assert stored_texts(store, positions, "meta.from")[1] == {
        place: f"Ada {row}" for place, row in zip(positions, rows, strict=True)
    }


@pytest.mark.parametrize("column", ["my.notes.v.1", '"my.notes"."v.1"', 'public."my.notes"."v.1"'])
def test_names_with_a_dot(column: str, address: str) -> None:
    store = open_store(address, DIMENSION, column)
    assert store.name == 'postgresql://auditor@/ (public."my.notes"."v.1")'
    assert sample_store(store, DIMENSION).vectors.numpy() == pytest.approx(VECTORS, abs=1e-6)


def test_columns_are_chosen_and_nothing_is_written(address: str) -> None:
    import psycopg

    def refusal(collection: str | None) -> str:
        with pytest.raises(InputError) as raised:
            sample_store(open_store(address, DIMENSION, collection), DIMENSION)
        return str(raised.value)

    assert "which column of vectors? give collection=<one of public.Letters.embedding" in refusal(None)
    assert "no column of vectors notes.dense?" in refusal("notes.dense")
    assert "sparse vectors of dimension 1000000; up to 65536 are read" in refusal("wide.embedding")
    store = open_store(address, DIMENSION, "notes.Dense")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        store._connection.execute("create temporary table t ()")  # type: ignore[attr-defined]


def test_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("PGPASSWORD", "tied-with-string")
    with pytest.raises(InputError) as raised:
        open_store("postgresql://ada@127.0.0.1:9/mail?connect_timeout=2&application_name=tied-with-string", DIMENSION)
    assert str(raised.value).startswith("vectors=postgresql://ada@127.0.0.1:9/mail: cannot be read")
    assert "tied-with-string" not in str(raised.value)
