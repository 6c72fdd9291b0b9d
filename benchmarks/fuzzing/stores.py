"""Vector stores in files and folders, as unembed audit reads them: FAISS, Qdrant, Milvus Lite and Chroma."""

from __future__ import annotations

import functools
import io
import json
import pickle
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet as parquet
from hypothesis import strategies as st

from unembed.datamodules.vector_stores.qdrant import point_of
from unembed.datamodules.vector_stores.sampling import open_store, sample_store

from .broken import Inputs, Reader, changed, hostile, inputs, json_of, json_values, replaced, weighted, written

DIMENSION = 6
VECTORS = np.random.default_rng(0).normal(size=(40, DIMENSION)).astype(np.float32)
MILVUS_SCHEMA, MILVUS_MANIFEST = "collections/docs/schema.json", "collections/docs/manifest.json"
META, STORAGE, CHROMA = "meta.json", "collection/docs/storage.sqlite", "chroma.sqlite3"


def readers() -> dict[str, Reader]:
    """By the kind of the store."""
    kinds = {
        kind: functools.partial(_faiss, kind) for kind in ("Flat", "IDMap,Flat", "IVF2,Flat", "PQ2x4", "SQ8", "HNSW4")
    }
    found = {f"FAISS {kind}": Reader(_index, good, _index_inputs, 0.08) for kind, good in kinds.items()}
    # Stores are opened in processes of their own, each of which takes a tenth of a second and more to start.
    found["Qdrant folder"] = Reader(_folder("qdrant"), _qdrant, _qdrant_inputs, 0.1)
    found["Qdrant point"] = Reader(_point, _qdrant_point, hostile, 2.0)
    found["Milvus folder"] = Reader(_folder("milvus"), _milvus, _milvus_inputs, 0.1)
    found["Chroma folder"] = Reader(_folder("chroma"), _chroma, _chroma_inputs, 0.05)
    return found


# -- FAISS ------------------------------------------------------------------------------------------------------------


def _faiss(kind: str) -> bytes:
    import faiss

    index = faiss.index_factory(DIMENSION, kind)
    index.train(VECTORS)
    if kind.startswith("IDMap"):
        index.add_with_ids(VECTORS, np.arange(100, 100 + len(VECTORS)))
    else:
        index.add(VECTORS)
    return faiss.serialize_index(index).tobytes()


def _index(folder: Path, content: bytes) -> object:
    return sample_store(open_store(f"faiss:{written(folder / 'mine.index', content)}", DIMENSION), DIMENSION, limit=10)


def _index_inputs(whole: bytes) -> Inputs:
    def made(place: int, number: int) -> bytes:
        return whole[:place] + number.to_bytes(8, "little") + whole[place + 8 :]

    places = st.sampled_from(range(0, min(len(whole), 160), 4))  # counts and kinds stand at the beginning
    numbers = [0, 1, 2, 0x7FFFFFFF, 0xFFFFFFFF, 10**6, 10**9, 10**12, 2**40, 2**62, 2**63 - 1]
    return inputs(whole, (100, st.builds(made, places, st.sampled_from(numbers))))


# -- folders, packed into one input -----------------------------------------------------------------------------------


def packed(files: dict[str, bytes]) -> bytes:
    """Files as one input: a line that says how long each is, then their content."""
    sizes = {name: len(content) for name, content in files.items()}
    return json.dumps(sizes).encode() + b"\n" + b"".join(files.values())


def unpacked(content: bytes) -> dict[str, bytes]:
    """What was packed."""
    head, _, rest = content.partition(b"\n")
    files = {}
    for name, size in json.loads(head).items():
        files[name], rest = rest[:size], rest[size:]
    return files


def _folder(kind: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, content: bytes) -> object:
        place = Path(tempfile.mkdtemp(dir=folder))  # another one each time: libraries know folders that they had open
        try:
            for name, part in unpacked(content).items():
                written(place / name, part)
            return sample_store(open_store(f"{kind}:{place}", DIMENSION), DIMENSION, limit=10)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    return read


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _qdrant() -> bytes:
    from qdrant_client import QdrantClient, models

    with tempfile.TemporaryDirectory() as folder:
        client = QdrantClient(path=folder)
        client.create_collection("docs", models.VectorParams(size=DIMENSION, distance=models.Distance.DOT))
        points = [
            models.PointStruct(id=row, vector=vector.tolist(), payload={"text": "a"})
            for row, vector in enumerate(VECTORS[:8])
        ]
        client.upsert("docs", points)
        client.close()
        return packed({name: content for name, content in _files(Path(folder)).items() if name != ".lock"})


def _qdrant_point() -> bytes:
    """The pickle of one row."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(unpacked(_qdrant())[STORAGE])
        point: bytes = connection.execute("select point from points").fetchone()[0]
    return point


def _point(_: Path, content: bytes) -> object:
    return point_of(content, "row 1", None)


def _chroma() -> bytes:
    import chromadb

    with tempfile.TemporaryDirectory() as folder:
        client = chromadb.PersistentClient(folder, chromadb.Settings(anonymized_telemetry=False))
        collection = client.create_collection("docs", embedding_function=None, metadata={"a": 1})
        collection.add(ids=[f"d{row}" for row in range(8)], embeddings=VECTORS[:8], documents=["a"] * 8)
        return packed(_files(Path(folder)))


def _milvus() -> bytes:
    """As Milvus Lite leaves a collection: a file of rows, one of deletions, and a log."""

    def table(begin: int, end: int, **more: Any) -> pyarrow.Table:
        column = pyarrow.FixedSizeListArray.from_arrays(VECTORS[begin:end].ravel(), DIMENSION)
        numbers = list(range(begin, end))
        return pyarrow.table({"_seq": pyarrow.array(numbers, "uint64"), "id": numbers, "vector": column,
                              "$meta": ['{"text": "a"}'] * (end - begin), **more})  # fmt: skip

    def file(rows: pyarrow.Table) -> bytes:
        sink = io.BytesIO()
        parquet.write_table(rows, sink)
        return sink.getvalue()

    log = io.BytesIO()
    rows = table(6, 8, _partition=["_default"] * 2)
    with pyarrow.ipc.new_stream(log, rows.schema) as writer:
        writer.write_table(rows)
    fields = [{"name": "id", "dtype": "int64", "is_primary": True}, {"name": "vector", "dtype": "float_vector"}]
    parts = {"_default": {"data_files": ["data/a.parquet"], "delta_files": ["delta/b.parquet"]}}
    deletion = pyarrow.table({"id": [2], "_seq": pyarrow.array([5], "uint64")})
    return packed({
        MILVUS_SCHEMA: json_of({"fields": fields, "enable_dynamic_field": True}),
        MILVUS_MANIFEST: json_of({"partitions": parts}),
        "collections/docs/partitions/_default/data/a.parquet": file(table(0, 6)),
        "collections/docs/partitions/_default/delta/b.parquet": file(deletion),
        "collections/docs/wal/wal_data_000001.arrow": log.getvalue(),
    })  # fmt: skip


# -- broken ones ------------------------------------------------------------------------------------------------------


def _amended(database: bytes, statements: str, *values: object) -> bytes:
    """A SQLite file after statements (a line each; the values are the last one's), or as it was where one fails."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(database)
        connection.execute("PRAGMA writable_schema = 1")
        *others, last = statements.splitlines()
        try:
            for statement in others:
                connection.execute(statement)
            connection.execute(last, values)
            connection.commit()
        except sqlite3.Error:
            return database
        return connection.serialize()


def _view(selected: str) -> str:
    """Statements that put a view in the place of Qdrant's table: it makes up rows when it is read."""
    return f"""delete from sqlite_master where name like 'sqlite_autoindex%'
update sqlite_master set type = 'view', rootpage = 0, sql = 'create view points as {selected}'"""


def _texts() -> st.SearchStrategy[str]:
    """Texts that SQLite can store: without lone surrogates."""
    return st.text(max_size=9).map(lambda text: text.encode("utf-8", "replace").decode())


def _one_file(files: dict[str, bytes], name: str) -> Callable[[bytes], bytes]:
    return lambda content: packed({**files, name: content})


def _any_file(files: dict[str, bytes]) -> Inputs:
    """One of the files with bytes changed, shortened, or missing."""

    def broken(name: str) -> Inputs:
        content = changed(files[name]) | changed(files[name]) | inputs(files[name])
        missing = packed({other: content for other, content in files.items() if other != name})
        return content.map(_one_file(files, name)) | st.just(missing)

    return st.sampled_from(sorted(files)).flatmap(broken)


def _qdrant_inputs(whole: bytes) -> Inputs:
    files = unpacked(whole)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(files[STORAGE])
        row = connection.execute("select point from points").fetchone()[0]
    meta = json.loads(files[META])
    point = pickle.loads(row)

    def other(vector: Any, key: Any) -> bytes:
        return pickle.dumps(point.model_copy(update={"vector": vector, "id": key}))

    vectors = json_values() | st.lists(st.floats() | st.integers() | st.none(), min_size=DIMENSION, max_size=DIMENSION)
    vectors = vectors | st.sampled_from(
        [[0.0] * 10**6, {"": [0.5] * DIMENSION}, [[0.5] * DIMENSION] * 3, np.ones(DIMENSION), b"a" * 24]
    )
    points = st.builds(other, vectors, st.sampled_from([0, 1, -1, "a", None, 2**70, (1,), "\ud800"]))
    amended = functools.partial(_amended, files[STORAGE])
    rows = (hostile(row) | hostile(row) | points).map(lambda blob: amended("update points set point = ?", blob))
    names = hostile(pickle.dumps(1)).map(lambda blob: blob.hex()) | _texts()
    ids = names.map(lambda name: amended("update points set id = ? where rowid = 1", name))
    rows_without_end = "with recursive n(id) as (select 1 union all select id + 1 from n)"
    odd = st.sampled_from(
        ["update points set point = zeroblob(100000) where rowid = 1", "update points set point = 'text'",
         "update points set point = null", "delete from points", "drop table points",
         "update sqlite_master set sql = 'create table points (id, point, other)'", _view("select 1 as id, 2 as point"),
         _view("select 1 as id, zeroblob(900000000) as point"),
         _view(f"{rows_without_end} select id, id as point from n")]
    )  # fmt: skip
    storage = weighted((12, rows), (3, ids), (1, odd.map(amended))).map(_one_file(files, STORAGE))
    described = replaced(meta, json_values()).map(json_of).map(_one_file(files, META))
    return weighted((2, storage), (1, described), (1, _any_file(files)))


def _milvus_inputs(whole: bytes) -> Inputs:
    files = unpacked(whole)
    described = st.sampled_from([MILVUS_SCHEMA, MILVUS_MANIFEST]).flatmap(
        lambda name: replaced(json.loads(files[name]), json_values()).map(json_of).map(_one_file(files, name))
    )
    return weighted((1, described), (1, _any_file(files)))


def _chroma_inputs(whole: bytes) -> Inputs:
    files = unpacked(whole)
    segment = next(name.rpartition("/")[0] for name in files if "/" in name)
    texts = _texts() | st.sampled_from(["", "{}", "[]", "null", "-1"])
    columns = st.sampled_from(
        [("collections", "name"), ("collections", "config_json_str"), ("collections", "dimension"),
         ("collections", "id"), ("segments", "type"), ("segments", "scope"), ("segments", "id"),
         ("embeddings", "embedding_id"),
         ("embeddings_queue", "vector"), ("embeddings_queue", "encoding"), ("embeddings_queue", "metadata"),
         ("embeddings_queue", "operation"), ("embeddings_queue", "id"), ("embeddings", "seq_id"), ("tenants", "id"),
         ("databases", "name"), ("migrations", "hash"), ("max_seq_id", "seq_id"), ("collection_metadata", "key")]
    )  # fmt: skip
    values = texts | st.binary(max_size=30) | st.sampled_from([0, -1, 2**31, 2**62, 0.5, None, b"\0" * 24])
    updates = st.builds(
        lambda column, value: _amended(files[CHROMA], f"update or ignore {column[0]} set {column[1]} = ?", value),
        columns, values,
    )  # fmt: skip
    metadata = hostile(pickle.dumps({"dimensionality": DIMENSION, "id_to_label": {"d0": 1}, "max_seq_id": 1}))
    return weighted(
        (2, updates.map(_one_file(files, CHROMA))),
        (1, metadata.map(_one_file(files, f"{segment}/index_metadata.pickle"))),
        (2, _any_file(files)),
    )
