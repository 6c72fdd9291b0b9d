"""Vectors of a Milvus collection: ``milvus:folder.db`` (Milvus Lite) or ``milvus:http://host:19530`` (token, or
``user:password``, in MILVUS_TOKEN; ``http://host:19530/database``).

A collection with several fields of vectors needs ``collection=<name>/<field>``. A server reads only collections that
are loaded; loading one is left to its owner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.address import client_library
from unembed.datamodules.vector_stores.child import Child, TextChildStore, limits_for
from unembed.datamodules.vector_stores.choice import chosen_vector
from unembed.datamodules.vector_stores.folders import checked_size, store_folder
from unembed.datamodules.vector_stores.milvus_folder import collections_of, read_collection, vectors_of
from unembed.datamodules.vector_stores.payloads import flat_texts
from unembed.datamodules.vector_stores.rows import in_order

LISTED_TOGETHER = 10_000  # ids asked for at once; a server answers with 16,384 rows at most
_TIMEOUT = 20.0  # seconds


class MilvusStore:
    """A collection under its primary keys."""

    def __init__(self, name: str, client: Any, collection: str, vector: str, schema: Mapping[str, Any]) -> None:
        from pymilvus import DataType

        self.name, self._client, self._collection, self._vector = name, client, collection, vector
        self._schema = {field["name"]: field for field in schema["fields"]}
        self._key = next(field["name"] for field in schema["fields"] if field.get("is_primary"))
        self._texts = [
            field["name"] for field in schema["fields"] if field["type"] in (DataType.VARCHAR, DataType.JSON)
        ] + (["$meta"] if schema.get("enable_dynamic_field") else [])
        self._keys: list[Any] = []
        pages = client.query_iterator(collection, batch_size=LISTED_TOGETHER, output_fields=[self._key])
        while page := pages.next():
            self._keys += [row[self._key] for row in page]
        pages.close()
        self.ids: Sequence[str] = [str(key) for key in self._keys]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        rows = self._rows(positions, [self._vector])
        kind = self._schema[self._vector]["type"]
        try:
            return np.stack([_numbers(row[self._vector], kind) for row in rows])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"vectors={self.name}: a row has no vector in {self._vector}") from error

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """See TextStore."""
        first = "" if field is None else field.partition(".")[0]
        wanted = self._texts if field is None else [first] if first in self._texts else ["$meta"]
        if not set(wanted) <= set(self._texts) or not wanted:
            return [{} for _ in positions]
        return [flat_texts({**row, self._key: None}, field) for row in self._rows(positions, wanted)]

    def _rows(self, positions: Sequence[int], fields: Sequence[str]) -> list[Mapping[str, Any]]:
        from pymilvus.exceptions import MilvusException

        wanted = [self._keys[place] for place in positions]
        try:
            found = self._client.get(self._collection, wanted, output_fields=[*fields, self._key], timeout=_TIMEOUT)
        except MilvusException as error:
            raise _unreadable(self.name, error) from error
        return in_order(self.name, wanted, {row[self._key]: row for row in found}, "rows")


def open_milvus(place: str, collection: str | None) -> MilvusStore | TextChildStore:
    """Open a collection of a folder of Milvus Lite, or of a server.

    Raises:
        InputError: pymilvus is not installed; no such folder, server or collection, or a choice of several.
    """
    return _open_server(place, collection) if "://" in place else _open_folder(place, collection)


def _open_folder(place: str, collection: str | None) -> TextChildStore:
    name, folder = f"milvus:{place}", Path(place).expanduser()
    if not folder.is_file():  # which milvus-lite 2 wrote
        store_folder("milvus", place)
    schemas = collections_of(folder, name)
    chosen, vector = chosen_vector(name, collection, list(schemas), lambda one: vectors_of(schemas[one]))
    size = checked_size(folder, name)
    arguments = [str(folder.resolve()), chosen, vector, name]
    child = Child(f"vectors={name}", read_collection, arguments, ["pyarrow.parquet"], limits_for(size))
    return TextChildStore(f"{name} ({chosen})", child.opened["ids"], child)


def _open_server(place: str, collection: str | None) -> MilvusStore:
    name = f"milvus:{place}"
    client_library("pymilvus", "milvus", name)
    from pymilvus import DataType, MilvusClient
    from pymilvus.exceptions import MilvusException

    dense = {DataType.FLOAT_VECTOR, DataType.FLOAT16_VECTOR, DataType.BFLOAT16_VECTOR, DataType.INT8_VECTOR}
    try:
        client = MilvusClient(place, token=os.environ.get("MILVUS_TOKEN", ""), timeout=_TIMEOUT)
        with ExitStack() as unless_opened:
            unless_opened.callback(client.close)

            def fields(one: str) -> list[str]:
                found = client.describe_collection(one)["fields"]
                return sorted(field["name"] for field in found if field["type"] in dense)

            chosen, vector = chosen_vector(name, collection, client.list_collections(), fields)
            store = MilvusStore(
                f"{name} ({chosen})", client, chosen, vector or "", client.describe_collection(chosen)
            )  # fmt: skip
            unless_opened.pop_all()
        return store
    except (MilvusException, ValueError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InputError:
    said = " ".join(str(error).split())
    hint = "; load the collection first" if "not loaded" in said else ""
    return InputError(f"vectors={name}: cannot be read: {said}{hint}")


def _numbers(value: Any, kind: int) -> NDArray[np.float32]:
    """A vector, which Milvus gives as numbers, or as bytes for types that Python lacks."""
    from pymilvus import DataType

    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], bytes):
        value = value[0]
    if not isinstance(value, bytes):
        return np.asarray(value, np.float32)
    if kind == DataType.BFLOAT16_VECTOR:
        return (np.frombuffer(value, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(value, "<f2" if kind == DataType.FLOAT16_VECTOR else np.int8).astype(np.float32)
