"""A folder of Milvus Lite (version 3), read without its library, which deletes and writes files when it opens one.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core import limits
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.child import Answer, Texts
from unembed.datamodules.vector_stores.folders import locked
from unembed.datamodules.vector_stores.payloads import flat_texts

_TEXTS = ("varchar", "json")
_DYNAMIC = "$meta"  # a column of JSON with the fields that the schema does not name


def collections_of(folder: Path, name: str) -> dict[str, Mapping[str, Any]]:
    """The schema of each collection.

    Raises:
        InputError: A file, or a schema is not what Milvus Lite writes.
    """
    if folder.is_file():
        raise InputError(
            f"vectors={name}: a file, as milvus-lite 2 wrote it, which version 3 does not read either: start "
            "milvus-lite 2 as a server and give its address, or copy the collection into a new folder"
        )
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted(folder.glob("collections/*/schema.json")):
        schema = _json(path, name)
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise InputError(f"vectors={name}: {path} is not what Milvus Lite writes")
        found[path.parent.name] = schema
    return found


def vectors_of(schema: Mapping[str, Any]) -> list[str]:
    """The names of the fields of dense vectors."""
    return sorted(str(field.get("name")) for field in schema["fields"] if field.get("dtype") == "float_vector")


# -- in the child ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a parquet file, or those of a log, which are in memory.

    Attributes:
        path: The parquet file; None for a log.
        table: The rows of a log.
    """

    path: Path | None
    table: Any = None

    def columns(self, names: Sequence[str]) -> Any:
        """A table of these columns."""
        import pyarrow.parquet

        if self.path is None:
            return self.table.select(names)
        return pyarrow.parquet.read_table(self.path, columns=list(names), partitioning=None)


def read_collection(folder: str, collection: str, vector: str, name: str) -> tuple[dict[str, Any], Answer, Texts]:
    """The opener of the child: the keys of a collection, and what gives vectors and texts.

    Raises:
        InputError: Another program has the folder open; a file is missing, or is not what Milvus Lite writes.
    """
    import pyarrow

    place = Path(folder) / "collections" / collection
    schema = _json(place / "schema.json", name)
    held = ExitStack()  # until the child ends: compaction would delete files
    held.enter_context(locked(Path(folder) / "LOCK", name))
    try:
        key = next(str(field["name"]) for field in schema["fields"] if field.get("is_primary"))
        parts, deleted = _parts(place, key, name)
        nullable = any(field["name"] == vector and field.get("nullable") for field in schema["fields"])
        rows = _living(parts, deleted, key, vector if nullable else None)
    except (pyarrow.ArrowException, OSError, KeyError, StopIteration, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"vectors={name}: collection {collection} cannot be read: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
    columns = [str(field["name"]) for field in schema["fields"] if field.get("dtype") in _TEXTS]
    json_columns = {str(field["name"]) for field in schema["fields"] if field.get("dtype") == "json"} | {_DYNAMIC}
    if schema.get("enable_dynamic_field"):
        columns.append(_DYNAMIC)

    loaded: dict[tuple[int, str], Any] = {}  # a column of a part, which is one piece in its file

    def column(part: int, one: str) -> Any:
        if (part, one) not in loaded:
            loaded[part, one] = parts[part].columns([one]).column(0).combine_chunks()
        return loaded[part, one]

    def taken(positions: Sequence[int], one: str) -> Iterator[tuple[list[int], Any]]:
        """For each part the places in the request, and the values of a column there."""
        by_part: dict[int, list[int]] = {}
        for number, position in enumerate(positions):
            by_part.setdefault(rows[position][1], []).append(number)
        for part, numbers in by_part.items():
            yield numbers, column(part, one).take(pyarrow.array([rows[positions[number]][2] for number in numbers]))

    def answer(positions: list[int], _held: ExitStack = held) -> NDArray[np.float32]:
        found: list[Any] = [None] * len(positions)
        for numbers, values in taken(positions, vector):
            vectors = values.flatten().to_numpy(zero_copy_only=False).reshape(len(numbers), -1)
            for number, one in zip(numbers, vectors, strict=True):
                found[number] = one
        return np.stack(found)

    def texts(positions: list[int], field: str | None) -> list[dict[str, str]]:
        found: list[dict[str, Any]] = [{} for _ in positions]
        for name_of in columns:
            for numbers, values in taken(positions, name_of):
                for number, value in zip(numbers, values.to_pylist(), strict=True):
                    found[number].update(_fields(name_of, value, json_columns))
        return [flat_texts(row, field) for row in found]

    return {"ids": [str(row[0]) for row in rows]}, answer, texts


def _parts(place: Path, key: str, name: str) -> tuple[list[_Part], dict[Any, int]]:
    """Where rows are, and the last deletion of each key that was deleted."""
    import pyarrow
    import pyarrow.parquet

    deleted: dict[Any, int] = {}
    parts = []
    manifest = place / "manifest.json"
    partitions = _json(manifest, name)["partitions"] if manifest.is_file() else {}
    for partition, files in partitions.items():
        for kind in ("data_files", "delta_files"):
            for file in files[kind]:
                path = (place / "partitions" / partition / file).resolve()
                if not path.is_relative_to(place.resolve()):
                    raise InputError(f"vectors={name}: manifest.json names {path}, outside of the collection")
                if kind == "data_files":
                    parts.append(_Part(path))
                else:
                    _delete(deleted, pyarrow.parquet.read_table(path, columns=[key, "_seq"], partitioning=None))
    for path in sorted(place.glob("wal/wal_*.arrow")):
        if (table := _log(path)) is not None:
            if path.name.startswith("wal_data"):
                parts.append(_Part(None, table))
            else:
                _delete(deleted, table.select([key, "_seq"]))
    return parts, deleted


def _delete(deleted: dict[Any, int], table: Any) -> None:
    for one, sequence in zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True):
        deleted[one] = max(sequence, deleted.get(one, -1))


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


def _living(
    parts: Sequence[_Part], deleted: Mapping[Any, int], key: str, vector: str | None
) -> list[tuple[Any, int, int]]:
    """Key, part and row of all that count, as they were written; without those that lack the ``vector``."""
    newest: dict[Any, tuple[int, int, int]] = {}
    for number, part in enumerate(parts):
        table = part.columns([key, "_seq"])
        present = [True] * len(table) if vector is None else part.columns([vector]).column(0).is_valid().to_pylist()
        columns = (table.column(0).to_pylist(), table.column(1).to_pylist(), present)
        for row, (one, sequence, there) in enumerate(zip(*columns, strict=True)):
            if sequence > newest.get(one, (-1,))[0]:
                newest[one] = (sequence, number, row if there else -1)
    found = [
        (sequence, one, part, row)
        for one, (sequence, part, row) in newest.items()
        if row >= 0 and sequence > deleted.get(one, -1)
    ]
    return [(one, part, row) for _, one, part, row in sorted(found, key=lambda entry: entry[0])]


def _fields(name: str, value: Any, of_json: set[str]) -> dict[str, Any]:
    """The fields that a column holds: one, or those of the dynamic column."""
    if name in of_json and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if name == _DYNAMIC and isinstance(value, dict) else {name: value}


def _json(path: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(limits.text(path, limits.LARGEST_JSON))
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"vectors={name}: {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"vectors={name}: {path} is not what Milvus Lite writes")
    return found
