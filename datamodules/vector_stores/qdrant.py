"""Vectors of a Qdrant collection: ``qdrant:folder`` or ``qdrant:http://host:6333`` (key in QDRANT_API_KEY).

A collection with several vectors a point needs ``collection=<name>/<vector>``. A server normalises the vectors of a
collection whose distance is the cosine when they are stored: their lengths are gone. A folder holds them as they were:

    folder/meta.json                            {"collections": {"docs": {"vectors": {"size": 4, "distance": "Dot"}}}}
    folder/collection/docs/storage.sqlite       table points: id, point (a pickled PointStruct: id, vector, payload)

It is read without qdrant-client, which unpickles what it finds there: a pickle runs any code. The pickles are read as
data, nothing that a row names is imported or called. The database is opened for reading, and may do no more than list
that one table. Both are done in a child process (child.py).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.base import (
    KeyedStore,
    chosen_vector,
    client_library,
    closed_on_error,
    flat_texts,
    locked,
    reading,
    store_folder,
)
from unembed.datamodules.vector_stores.child import Answer, Child, TextChildStore, Texts, limits_for

LISTED_TOGETHER = 10_000  # ids asked for at once
META, STORAGE = "meta.json", "storage.sqlite"
_LARGEST_META = 64 << 20  # bytes
_LARGEST_ROW = 64 << 20
_MODELS = "qdrant_client.http.models.models"
# Classes of values that a payload may hold; only its texts are needed, and none of these is made.
_PAYLOAD = {
    "datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone", "decimal.Decimal",
    "uuid.SafeUUID", "uuid.UUID", "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar", "numpy._core.multiarray._reconstruct", "numpy._core.multiarray.scalar",
}  # fmt: skip
# What damaged bytes make of the unpickler and of the stand-ins.
_BROKEN = (pickle.UnpicklingError, ValueError, LookupError, TypeError, AttributeError, EOFError, OverflowError,
           MemoryError)  # fmt: skip


class QdrantStore(KeyedStore):
    """A collection under its points' ids; ``vector`` is the name of one of several vectors, None of the only one."""

    def __init__(self, name: str, client: Any, collection: str, vector: str | None, *errors: type[Exception]) -> None:
        self._client, self._collection, self._vector = client, collection, vector
        ids: list[Any] = []
        offset = None
        while True:
            points, offset = client.scroll(
                collection, limit=LISTED_TOGETHER, offset=offset, with_payload=False, with_vectors=False
            )
            ids += [point.id for point in points]
            if offset is None:
                break
        super().__init__(name, ids, *errors)

    def _vectors(self, keys: list[Any]) -> Mapping[Any, Any]:
        wanted = True if self._vector is None else [self._vector]
        points = self._client.retrieve(self._collection, keys, with_payload=False, with_vectors=wanted)
        if self._vector is None:
            return {point.id: point.vector for point in points}
        return {point.id: point.vector.get(self._vector) for point in points}

    def _payloads(self, keys: list[Any], field: str | None) -> Mapping[Any, Any]:
        wanted = True if field is None else [field]
        points = self._client.retrieve(self._collection, keys, with_payload=wanted, with_vectors=False)
        return {point.id: point.payload for point in points}


def open_qdrant(place: str, collection: str | None) -> QdrantStore | TextChildStore:
    """Open a collection of a local folder or of a server."""
    return _open_server(place, collection) if "://" in place else _open_folder(place, collection)


def _open_server(place: str, collection: str | None) -> QdrantStore:
    name = f"qdrant:{place}"
    client_library("qdrant_client", "qdrant", name)
    from qdrant_client import QdrantClient
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ApiException

    with reading(name, QdrantException, ApiException, ValueError):
        client = QdrantClient(url=place, api_key=os.environ.get("QDRANT_API_KEY"), check_compatibility=False)
        with closed_on_error(client):

            def vectors_of(one: str) -> Sequence[str] | None:
                kinds = client.get_collection(one).config.params.vectors
                return sorted(kinds) if isinstance(kinds, dict) else None

            names = [one.name for one in client.get_collections().collections]
            chosen, vector = chosen_vector(name, collection, names, vectors_of)
            return QdrantStore(f"{name} ({chosen})", client, chosen, vector, QdrantException, ApiException)


# -- a folder ----------------------------------------------------------------------------------------------------------


def _open_folder(place: str, collection: str | None) -> TextChildStore:
    folder, name = store_folder("qdrant", place), f"qdrant:{place}"
    kinds = _collections_of(folder, name)
    chosen, vector = chosen_vector(name, collection, kinds, kinds.__getitem__)
    path = folder / "collection" / chosen / STORAGE
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"vectors={name}: collection {chosen} lies outside of the folder")
    if not path.is_file():
        raise InputError(f"vectors={name}: collection {chosen} has no {STORAGE}")
    arguments = [str(path.resolve()), str(folder / ".lock"), name, vector]
    child = Child(f"vectors={name}", read_points, arguments, [], limits_for(path.stat().st_size))
    return TextChildStore(f"{name} ({chosen})", child.opened["ids"], child)


def _collections_of(folder: Path, name: str) -> dict[str, list[str] | None]:
    """Of each collection the names of its vectors, or None where the only one has none."""
    path = folder / META
    if path.stat().st_size > _LARGEST_META:
        raise InputError(f"vectors={name}: meta.json is larger than {_LARGEST_META >> 20} MB")
    try:
        collections = json.loads(path.read_bytes())["collections"]
        return {str(one): _vectors_of(config) for one, config in collections.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"vectors={name}: meta.json is not what Qdrant writes") from error


def _vectors_of(config: Mapping[str, Any]) -> list[str] | None:
    vectors = config.get("vectors") or {}
    return None if isinstance(vectors.get("size"), int) else [str(name) for name in vectors]


# -- in the child ------------------------------------------------------------------------------------------------------


def read_points(path: str, lock: str, name: str, vector: str | None) -> tuple[dict[str, Any], Answer, Texts]:
    """The opener of the child: the points' ids, and what gives their vectors and texts."""
    points: dict[int | str, tuple[NDArray[np.float32] | None, dict[str, str]]] = {}
    with locked(Path(lock), name):
        for number, content in _contents(path, name):
            one, values, payload = point_of(content, f"vectors={name}, {STORAGE}, row {number}", vector)
            points.setdefault(one, (values, payload))  # the newest is first
    # A point may lack one of several vectors.
    rows = [(one, values, texts) for one, (values, texts) in reversed(points.items()) if values is not None]

    def answer(positions: list[int]) -> NDArray[np.float32]:
        vectors = [rows[position][1] for position in positions]
        if len(dimensions := {len(row) for row in vectors}) > 1:
            raise InputError(f"vectors={name}: holds vectors of dimensions {', '.join(map(str, dimensions))}")
        return np.stack(vectors)

    def texts(positions: list[int], field: str | None) -> list[dict[str, str]]:
        return [flat_texts(rows[position][2], field) for position in positions]

    return {"ids": [one for one, _, _ in rows]}, answer, texts


def _contents(path: str, name: str) -> Iterator[tuple[int, bytes]]:
    """Number and pickle of each row, the newest first."""
    try:
        database = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
        database.execute("pragma trusted_schema = off")
        database.set_authorizer(_authorized)  # the schema may hold views and expressions of any kind
        for number, content in database.execute("select rowid, point from points order by rowid desc"):
            if not isinstance(content, bytes):
                raise InputError(f"vectors={name}, {STORAGE}, row {number}: holds no point")
            yield number, content
    except sqlite3.Error as error:
        raise InputError(f"vectors={name}: {STORAGE} cannot be read: {error}") from error


def _authorized(action: int, table: str | None, *_: object) -> int:
    reads = action == sqlite3.SQLITE_READ and table == "points"
    return sqlite3.SQLITE_OK if action == sqlite3.SQLITE_SELECT or reads else sqlite3.SQLITE_DENY


def point_of(
    content: bytes, where: str, vector: str | None
) -> tuple[int | str, NDArray[np.float32] | None, dict[str, str]]:
    """Id, vector and texts of a pickled point; the vector is None where it lacks that one of several."""
    try:
        point = pickled_data(content)
        if not isinstance(point, Stored) or point.name != f"{_MODELS}.PointStruct":
            raise InputError(f"{where}: holds no point")
        fields = point.state["__dict__"]
        one, values, payload = fields["id"], fields["vector"], fields.get("payload")
    except (PickledDataError, TypeError, KeyError) as error:
        raise InputError(f"{where}: holds no point: {error}") from error
    if type(one) not in (int, str):
        raise InputError(f"{where}: its id is neither a number nor text")
    if isinstance(values, dict):
        values = values.get(vector or "")
        if values is None:
            return one, None, {}
    if not isinstance(values, list) or not all(type(value) in (float, int) for value in values):
        raise InputError(f"{where}: its vector is no list of numbers")
    try:
        return one, np.array(values, np.float32), flat_texts(payload if isinstance(payload, dict) else None)
    except OverflowError as error:
        raise InputError(f"{where}: {error}") from error


class PickledDataError(Exception):
    """A damaged pickle, or one that names a class which no client of Qdrant writes."""


class Stored:
    """Placeholder of an object of any class, with the name of that and the pickled state."""

    name = ""
    state: Any = None

    def __new__(cls, *arguments: object, **named: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *arguments: object, **named: object) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """Python's own unpickler, restricted as its documentation says ("Restricting Globals")."""

    def find_class(self, module: str, name: str) -> type[Stored]:
        if module != _MODELS and f"{module}.{name}" not in _PAYLOAD:
            raise PickledDataError(f"it names {module}.{name}; nothing of it was run")
        return _stand_in(f"{module}.{name}")


@lru_cache(maxsize=256)
def _stand_in(name: str) -> type[Stored]:
    return type("Stored", (Stored,), {"name": name})


def pickled_data(content: bytes) -> Any:
    """The data of a pickle: every class becomes a placeholder, so nothing is imported or executed.

    Raises:
        PickledDataError: It is damaged, or names a class that is not allowed.
    """
    try:
        return _Reader(io.BytesIO(content)).load()
    except _BROKEN as error:
        raise PickledDataError(f"damaged: {' '.join(str(error).split())}") from error
