"""Vectors of a LanceDB table: ``lancedb:folder``, which holds <table>.lance.

Ids are those of a column "id" whose values differ, else row numbers from 0. A table with several columns of vectors
needs ``collection=<table>/<column>``.

The folder is read by LanceDB's library in a child process (child.py). A version of a table may name other places of its
files, on this machine or elsewhere: such a table is refused before the library sees it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core import limits
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.address import client_library
from unembed.datamodules.vector_stores.child import Answer, Child, Limits, TextChildStore, Texts
from unembed.datamodules.vector_stores.choice import chosen_vector
from unembed.datamodules.vector_stores.folders import checked_size, store_folder
from unembed.datamodules.vector_stores.payloads import flat_texts

_FOOTER = struct.Struct("<qHH4s")  # place of the manifest, version of the format, "LANC"
_BASE_PATHS = 18  # the field of a manifest that names other places
_BATCH = 10_000  # ids listed at once


def open_lancedb(place: str, collection: str | None) -> TextChildStore:
    """Open a table of a folder.

    Raises:
        InputError: lancedb is not installed; no such folder, table or column of vectors, or a choice of several; a
            table whose files lie elsewhere.
    """
    name = f"lancedb:{place}"
    client_library("lancedb", "lancedb", name)  # for the child
    folder = store_folder("lancedb", place)  # the library would make an empty store where there is none
    size = checked_size(folder, name)
    for manifest in folder.glob("*.lance/**/_versions/*.manifest"):
        _check_manifest(manifest, name)
    limits_ = Limits(seconds=10 + size / 1e6, memory=(2 << 30) + 4 * size)
    child = Child(f"vectors={name}", read_table, [str(folder), collection, name], ["lancedb"], limits_)
    return TextChildStore(child.opened["name"], child.opened["ids"], child)


def _check_manifest(path: Path, name: str) -> None:
    """Refuse a version of a table that names other places of its files.

    Raises:
        InputError: It does, or is damaged.
    """
    content = limits.content(path, limits.LARGEST_JSON)
    try:
        place, _, _, mark = _FOOTER.unpack(content[-_FOOTER.size :])
        (size,) = struct.unpack_from("<I", content, place)
        fields = list(_fields(content[place + 4 : place + 4 + size]))
    except (struct.error, ValueError, IndexError) as error:
        raise InputError(f"vectors={name}: {path} is damaged") from error
    if mark != b"LANC":
        raise InputError(f"vectors={name}: {path} is damaged")
    if _BASE_PATHS in fields:
        raise InputError(f"vectors={name}: {path} names other places of its files, which are not read; copy the table")


def _fields(message: bytes) -> Iterator[int]:
    """The numbers of the fields of a protocol buffer's message.

    Raises:
        IndexError, ValueError: It is damaged.
    """
    place = 0

    def number() -> int:
        nonlocal place
        found = shift = 0
        while True:
            byte = message[place]
            place += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    while place < len(message):
        tag = number()
        yield tag >> 3
        match tag & 7:
            case 0:
                number()
            case 1:
                place += 8
            case 2:
                length = number()  # which moves the place, too
                place += length
            case 5:
                place += 4
            case _:
                raise ValueError("no such kind of field")


# -- in the child ------------------------------------------------------------------------------------------------------


def read_table(folder: str, collection: str | None, name: str) -> tuple[dict[str, Any], Answer, Texts]:
    """The opener of the child: name and ids of a table, and what gives its vectors and texts.

    Raises:
        InputError: No such table or column, or a choice of several; LanceDB cannot read it.
    """
    import lancedb

    try:
        database = lancedb.connect(folder)
        names = sorted(path.name.removesuffix(".lance") for path in Path(folder).glob("*.lance"))
        chosen, found = chosen_vector(name, collection, names, lambda one: _vectors_of(database.open_table(one).schema))
        vector = found or ""
        table = database.open_table(chosen)
        rows, ids = _listed(table, vector)
    except (RuntimeError, OSError, ValueError) as error:
        raise InputError(f"vectors={name}: cannot be read: {' '.join(str(error).split())}") from error
    columns = [field.name for field in table.schema if _holds_text(field.type)]

    def taken(positions: Sequence[int], wanted: Sequence[str]) -> list[dict[str, Any]]:
        asked = [rows[position] for position in positions]
        try:
            found = table.take_row_ids(asked).select([*wanted]).with_row_id().to_arrow().to_pylist()
        except (RuntimeError, OSError, ValueError) as error:
            raise InputError(f"vectors={name}: cannot be read: {' '.join(str(error).split())}") from error
        by_row = {row.pop("_rowid"): row for row in found}
        return [by_row[row] for row in asked]

    def answer(positions: list[int]) -> NDArray[np.float32]:
        vectors = [row[vector] for row in taken(positions, [vector])]
        if len(dimensions := {len(one) for one in vectors}) > 1:
            raise InputError(f"vectors={name}: holds vectors of dimensions {', '.join(map(str, sorted(dimensions)))}")
        return np.array(vectors, np.float32)

    def texts(positions: list[int], field: str | None) -> Sequence[Mapping[str, str]]:
        wanted = [one for one in columns if field is None or f"{field}.".startswith(f"{one}.")]
        if not wanted:
            return [{} for _ in positions]
        return [flat_texts(row, field) for row in taken(positions, wanted)]

    return {"name": f"{name} ({chosen})", "ids": ids}, answer, texts


def _listed(table: Any, vector: str) -> tuple[list[int], list[str]]:
    """LanceDB's own numbers of the rows that have a vector, and their ids."""
    named = ["id"] if "id" in table.schema.names else []
    query = table.search().where(f"`{vector}` is not null").select(named).with_row_id(True).limit(table.count_rows())
    rows: list[int] = []
    ids: list[str] = []
    for batch in query.to_batches(_BATCH):
        rows += batch.column("_rowid").to_pylist()
        if named:
            ids += map(str, batch.column("id").to_pylist())
    return rows, ids if named and len(set(ids)) == len(rows) else [str(number) for number in range(len(rows))]


def _vectors_of(schema: Any) -> list[str]:
    """The columns of lists of numbers."""
    from pyarrow import types

    def is_vector(kind: Any) -> bool:
        lists = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
        return bool(lists and (types.is_floating(kind.value_type) or types.is_int8(kind.value_type)))

    return sorted(field.name for field in schema if is_vector(field.type))


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_struct(kind))
