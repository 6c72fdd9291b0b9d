"""A local Qdrant folder, read without qdrant-client, which unpickles what it finds there: a pickle runs any code.

    folder/meta.json                            {"collections": {"docs": {"vectors": {"size": 4, "distance": "Dot"}}}}
    folder/collection/docs/storage.sqlite       table points: id, point (a pickled PointStruct: id, vector, payload)

The pickles are read as data (pickled_data.py): nothing that a row names is imported or called. The database is opened
for reading, and may do no more than list that one table. Both are done in a child process (child.py).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.child import Answer, Texts
from unembed.datamodules.vector_stores.folders import locked
from unembed.datamodules.vector_stores.payloads import flat_texts
from unembed.datamodules.vector_stores.pickled_data import PickledDataError, Stored, pickled_data

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


def collections_of(folder: Path, place: str) -> dict[str, list[str] | None]:
    """Of each collection the names of its vectors, or None where the only one has none.

    Raises:
        InputError: meta.json is not what Qdrant writes.
    """
    path = folder / META
    if path.stat().st_size > _LARGEST_META:
        raise InputError(f"vectors=qdrant:{place}: meta.json is larger than {_LARGEST_META >> 20} MB")
    try:
        found = json.loads(path.read_bytes())["collections"]
        return {str(name): _vectors(config) for name, config in found.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"vectors=qdrant:{place}: meta.json is not what Qdrant writes") from error


def _vectors(config: Mapping[str, Any]) -> list[str] | None:
    vectors = config.get("vectors") or {}
    return None if isinstance(vectors.get("size"), int) else [str(name) for name in vectors]


def storage_of(folder: Path, place: str, collection: str) -> Path:
    """The file of a collection's points.

    Raises:
        InputError: It is not there, or not within the folder.
    """
    path = folder / "collection" / collection / STORAGE
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"vectors=qdrant:{place}: collection {collection} lies outside of the folder")
    if not path.is_file():
        raise InputError(f"vectors=qdrant:{place}: collection {collection} has no {STORAGE}")
    return path


# -- in the child ------------------------------------------------------------------------------------------------------


def read_points(path: str, lock: str, place: str, vector: str | None) -> tuple[dict[str, Any], Answer, Texts]:
    """The opener of the child: the points' ids, and what gives their vectors and texts.

    Args:
        path: storage.sqlite.
        lock: The file that a client which has the folder open has locked.
        place: For messages.
        vector: Which of several vectors; None for the only one.

    Raises:
        InputError: The folder is in use; no such table; a row that is no point, or whose vector is no list of numbers.
    """
    ids: list[int | str] = []
    rows: list[NDArray[np.float32]] = []
    payloads: list[dict[str, str]] = []
    with locked(Path(lock), f"qdrant:{place}"):
        seen = set()
        for number, content in _contents(path, place):
            one, values, payload = point_of(content, f"vectors=qdrant:{place}, {STORAGE}, row {number}", vector)
            if one not in seen and values is not None:  # the newest is first; a point may lack one of several vectors
                ids.append(one)
                rows.append(values)
                payloads.append(payload)
            seen.add(one)
    ids.reverse()
    rows.reverse()
    payloads.reverse()

    def answer(positions: list[int]) -> NDArray[np.float32]:
        asked = [rows[position] for position in positions]
        if len(dimensions := {len(row) for row in asked}) > 1:
            raise InputError(f"vectors=qdrant:{place}: holds vectors of dimensions {', '.join(map(str, dimensions))}")
        return np.stack(asked)

    def texts(positions: list[int], field: str | None) -> list[dict[str, str]]:
        return [flat_texts(payloads[position], field) for position in positions]

    return {"ids": ids}, answer, texts


def _contents(path: str, place: str) -> Iterator[tuple[int, bytes]]:
    """Number and pickle of each row, the newest first."""
    try:
        database = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
        database.execute("pragma trusted_schema = off")
        database.set_authorizer(_authorized)  # the schema may hold views and expressions of any kind
        for number, content in database.execute("select rowid, point from points order by rowid desc"):
            if not isinstance(content, bytes):
                raise InputError(f"vectors=qdrant:{place}, {STORAGE}, row {number}: holds no point")
            yield number, content
    except sqlite3.Error as error:
        raise InputError(f"vectors=qdrant:{place}: {STORAGE} cannot be read: {error}") from error


def _authorized(action: int, table: str | None, *_: object) -> int:
    reads = action == sqlite3.SQLITE_READ and table == "points"
    return sqlite3.SQLITE_OK if action == sqlite3.SQLITE_SELECT or reads else sqlite3.SQLITE_DENY


def _is_stored(module: str, name: str) -> bool:
    """Whether a client of Qdrant writes points with this class in them."""
    return module == _MODELS or f"{module}.{name}" in _PAYLOAD


def point_of(
    content: bytes, where: str, vector: str | None
) -> tuple[int | str, NDArray[np.float32] | None, dict[str, str]]:
    """Id, vector and texts of a pickled point; the vector is None where it lacks that one of several.

    Raises:
        InputError: It is no point of Qdrant's.
    """
    try:
        point = pickled_data(content, _is_stored)
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
