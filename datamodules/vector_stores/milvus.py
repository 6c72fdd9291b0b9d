"""Vectors of a Milvus collection: ``milvus:folder.db`` (Milvus Lite) or ``milvus:http://host:19530`` (token, or
``user:password``, in MILVUS_TOKEN; ``http://host:19530/database``).

A collection with several fields of vectors needs ``collection=<name>/<field>``. A server reads only collections that
are loaded; loading one is left to its owner.

A folder of Milvus Lite (version 3) is read without its library. That one deletes files below the partitions that
manifest.json names, wherever they are, and prepares calls to the embedding services that schema.json names.

    folder.db/collections/docs/schema.json                   fields: names, types, the primary key
                              /manifest.json                 the files that count, by partition
                              /partitions/<name>/data/*.parquet     rows with a sequence number _seq
                              /partitions/<name>/delta/*.parquet    keys of deleted rows, with _seq
                              /wal/wal_data_*.arrow, wal_delta_*.arrow     rows not yet in these files

The newest row of a key counts, unless a later deletion has that key. Files are read in a child process (child.py);
keys first, vectors and texts of the rows that are asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.base import (
    KeyedStore,
    checked_size,
    chosen_vector,
    client_library,
    closed_on_error,
    flat_texts,
    locked,
    reading,
    store_folder,
)
from unembed.datamodules.vector_stores.child import Answer, Child, TextChildStore, Texts, limits_for

LISTED_TOGETHER = 10_000  # ids asked for at once; a server answers with 16,384 rows at most
_TIMEOUT = 20.0  # seconds
_DYNAMIC = "$meta"  # a column of JSON with the fields that the schema does not name


def open_milvus(place: str, collection: str | None) -> MilvusStore | TextChildStore:
    """Open a collection of a folder of Milvus Lite, or of a server."""
    return _open_server(place, collection) if "://" in place else _open_folder(place, collection)


# -- a server ----------------------------------------------------------------------------------------------------------


class MilvusStore(KeyedStore):
    """A collection under its primary keys."""

    def __init__(self, name: str, client: Any, collection: str, vector: str) -> None:
        from pymilvus import DataType
        from pymilvus.exceptions import MilvusException

        self._client, self._collection, self._vector = client, collection, vector
        schema = client.describe_collection(collection)
        self._types = {field["name"]: field["type"] for field in schema["fields"]}
        self._key = next(field["name"] for field in schema["fields"] if field.get("is_primary"))
        self._texts = [one for one, kind in self._types.items() if kind in (DataType.VARCHAR, DataType.JSON)]
        self._texts += [_DYNAMIC] if schema.get("enable_dynamic_field") else []
        keys: list[Any] = []
        pages = client.query_iterator(collection, batch_size=LISTED_TOGETHER, output_fields=[self._key])
        while page := pages.next():
            keys += [row[self._key] for row in page]
        pages.close()
        super().__init__(name, keys, MilvusException)

    def _vectors(self, keys: list[Any]) -> Mapping[Any, Any]:
        kind = self._types[self._vector]
        return {key: _numbers(row.get(self._vector), kind) for key, row in self._found(keys, [self._vector]).items()}

    def _payloads(self, keys: list[Any], field: str | None) -> Mapping[Any, Any]:
        first = "" if field is None else field.partition(".")[0]
        wanted = self._texts if field is None else [first] if first in self._texts else [_DYNAMIC]
        if not wanted or not set(wanted) <= set(self._texts):
            return dict.fromkeys(keys)
        return {key: {**row, self._key: None} for key, row in self._found(keys, wanted).items()}

    def _found(self, keys: list[Any], fields: Sequence[str]) -> dict[Any, Mapping[str, Any]]:
        rows = self._client.get(self._collection, keys, output_fields=[*fields, self._key], timeout=_TIMEOUT)
        return {row[self._key]: row for row in rows}


def _open_server(place: str, collection: str | None) -> MilvusStore:
    name = f"milvus:{place}"
    client_library("pymilvus", "milvus", name)
    from pymilvus import DataType, MilvusClient
    from pymilvus.exceptions import MilvusException

    dense = {DataType.FLOAT_VECTOR, DataType.FLOAT16_VECTOR, DataType.BFLOAT16_VECTOR, DataType.INT8_VECTOR}
    with reading(name, MilvusException, ValueError):
        client = MilvusClient(place, token=os.environ.get("MILVUS_TOKEN", ""), timeout=_TIMEOUT)
        with closed_on_error(client):

            def fields(one: str) -> list[str]:
                every = client.describe_collection(one)["fields"]
                return sorted(field["name"] for field in every if field["type"] in dense)

            chosen, vector = chosen_vector(name, collection, client.list_collections(), fields)
            return MilvusStore(f"{name} ({chosen})", client, chosen, vector or "")


def _numbers(value: Any, kind: int) -> Any:
    """A vector, which Milvus gives as numbers, or as bytes for types that Python lacks."""
    from pymilvus import DataType

    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], bytes):
        value = value[0]
    if not isinstance(value, bytes):
        return value
    if kind == DataType.BFLOAT16_VECTOR:
        return (np.frombuffer(value, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(value, "<f2" if kind == DataType.FLOAT16_VECTOR else np.int8)


# -- a folder ----------------------------------------------------------------------------------------------------------


def _open_folder(place: str, collection: str | None) -> TextChildStore:
    name, folder = f"milvus:{place}", Path(place).expanduser()
    if folder.is_file():
        raise InputError(
            f"vectors={name}: a file, as milvus-lite 2 wrote it, which version 3 does not read either: start "
            "milvus-lite 2 as a server and give its address, or copy the collection into a new folder"
        )
    store_folder("milvus", place)
    vectors = {path.parent.name: _vectors_of(path, name) for path in sorted(folder.glob("collections/*/schema.json"))}
    chosen, vector = chosen_vector(name, collection, vectors, vectors.__getitem__)
    size = checked_size(folder, name)
    arguments = [str(folder.resolve()), chosen, vector, name]
    child = Child(f"vectors={name}", read_collection, arguments, ["pyarrow.parquet"], limits_for(size))
    return TextChildStore(f"{name} ({chosen})", child.opened["ids"], child)


def _vectors_of(path: Path, name: str) -> list[str]:
    """The names of the fields of dense vectors in a schema."""
    fields = _json(path, name).get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise InputError(f"vectors={name}: {path} is not what Milvus Lite writes")
    return sorted(str(field.get("name")) for field in fields if field.get("dtype") == "float_vector")


def _json(path: Path, name: str) -> dict[str, Any]:
    with reading(name, InputError, OSError):
        return read_json(path)


# -- in the child ------------------------------------------------------------------------------------------------------


def read_collection(folder: str, collection: str, vector: str, name: str) -> tuple[dict[str, Any], Answer, Texts]:
    """The opener of the child: the keys of a collection, and what gives vectors and texts."""
    import pyarrow

    place = Path(folder) / "collections" / collection
    schema = _json(place / "schema.json", name)
    fields, dynamic = schema["fields"], [_DYNAMIC] if schema.get("enable_dynamic_field") else []
    lock = ExitStack()  # until the child ends: compaction would delete files
    lock.enter_context(locked(Path(folder) / "LOCK", name))
    try:
        key = next(str(field["name"]) for field in fields if field.get("is_primary"))
        data, deletions = _parts(place, name)

        @cache
        def column(one: str) -> Any:
            return pyarrow.concat_tables(part([one]) for part in data).column(0)

        deleted: dict[Any, int] = {}
        for part in deletions:
            for one, sequence in zip(*(values.to_pylist() for values in part([key, "_seq"]).columns), strict=True):
                deleted[one] = max(sequence, deleted.get(one, -1))
        keys, sequences = column(key).to_pylist() if data else [], column("_seq").to_pylist() if data else []
        newest = {keys[row]: row for row in sorted(range(len(keys)), key=sequences.__getitem__)}
        rows = sorted((row for one, row in newest.items() if sequences[row] > deleted.get(one, -1)),
                      key=sequences.__getitem__)  # fmt: skip
        if rows and any(field["name"] == vector and field.get("nullable") for field in fields):
            present = column(vector).is_valid().to_pylist()
            rows = [row for row in rows if present[row]]
    except (pyarrow.ArrowException, OSError, KeyError, StopIteration, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"vectors={name}: collection {collection} cannot be read: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
    of_json = {str(field["name"]) for field in fields if field.get("dtype") == "json"} | set(dynamic)
    columns = [str(field["name"]) for field in fields if field.get("dtype") in ("varchar", "json")] + dynamic

    def values(one: str, positions: Sequence[int]) -> Any:
        return column(one).take(pyarrow.array([rows[position] for position in positions]))

    def answer(positions: list[int], _lock: ExitStack = lock) -> NDArray[np.float32]:
        numbers: NDArray[np.float32] = values(vector, positions).combine_chunks().flatten().to_numpy()
        return numbers.reshape(len(positions), -1)

    def texts(positions: list[int], field: str | None) -> list[dict[str, str]]:
        payloads: list[dict[str, Any]] = [{} for _ in positions]
        for one in columns:
            for payload, value in zip(payloads, values(one, positions).to_pylist(), strict=True):
                payload.update(_fields(one, value, of_json))
        return [flat_texts(payload, field) for payload in payloads]

    return {"ids": [str(keys[row]) for row in rows]}, answer, texts


Part = Callable[[list[str]], Any]  # the table of some columns


def _parts(place: Path, name: str) -> tuple[list[Part], list[Part]]:
    """Where rows are, and where deletions are."""
    import pyarrow.parquet

    def file_of(path: Path) -> Part:
        return lambda columns: pyarrow.parquet.read_table(path, columns=columns, partitioning=None)

    parts: dict[str, list[Part]] = {"data_files": [], "delta_files": []}
    manifest = place / "manifest.json"
    partitions = _json(manifest, name)["partitions"] if manifest.is_file() else {}
    for partition, files in partitions.items():
        for kind, of_kind in parts.items():
            for file in files[kind]:
                path = (place / "partitions" / partition / file).resolve()
                if not path.is_relative_to(place.resolve()):
                    raise InputError(f"vectors={name}: manifest.json names {path}, outside of the collection")
                of_kind.append(file_of(path))
    for path in sorted(place.glob("wal/wal_*.arrow")):
        if (table := _log(path)) is not None:
            parts["data_files" if path.name.startswith("wal_data") else "delta_files"].append(table.select)
    return parts["data_files"], parts["delta_files"]


def _log(path: Path) -> Any:
    """The whole batches of a log, which ends anywhere if its program was killed; None if there are none."""
    import pyarrow.ipc

    batches = []
    try:
        with pyarrow.OSFile(str(path), "rb") as source:
            for batch in pyarrow.ipc.open_stream(source):
                batch.validate(full=True)
                batches.append(batch)
    except pyarrow.ArrowInvalid:
        pass
    return pyarrow.Table.from_batches(batches) if batches else None


def _fields(name: str, value: Any, of_json: set[str]) -> dict[str, Any]:
    """The fields that a column holds: one, or those of the dynamic column."""
    if name in of_json and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if name == _DYNAMIC and isinstance(value, dict) else {name: value}
