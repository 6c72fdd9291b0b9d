"""Vectors of a LanceDB table: ``lancedb:folder``, which holds <table>.lance.

Ids are those of a column "id" whose values differ, else row numbers from 0. A table with several columns of vectors
needs ``collection=<table>/<column>``.

The folder is read by LanceDB's library in a child process (child.py). A version of a table may name other places of its
files, on this machine or elsewhere: such a table is refused before the library sees it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unembed.core import limits
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.base import (
    KeyedStore,
    checked_size,
    chosen_vector,
    client_library,
    reading,
    store_folder,
)
from unembed.datamodules.vector_stores.child import Answer, Child, Limits, TextChildStore, Texts

_FOOTER = struct.Struct("<qHH4s")  # place of the manifest, version of the format, "LANC"
_BASE_PATHS = 18  # the field of a manifest that names other places
_ERRORS = RuntimeError, OSError, ValueError


def open_lancedb(place: str, collection: str | None) -> TextChildStore:
    """Open a table of a folder."""
    name = f"lancedb:{place}"
    client_library("lancedb", "lancedb", name)  # for the child
    folder = store_folder("lancedb", place)  # the library would make an empty store where there is none
    size = checked_size(folder, name)
    limits_ = Limits(seconds=10 + size / 1e6, memory=(2 << 30) + 4 * size)
    imports = ["lancedb", "google.protobuf.unknown_fields"]
    child = Child(f"vectors={name}", read_table, [str(folder), collection, name], imports, limits_)
    return TextChildStore(child.opened["name"], child.opened["ids"], child)


# -- in the child ------------------------------------------------------------------------------------------------------


class LanceTable(KeyedStore):
    """A table under LanceDB's own numbers of the rows that have a vector."""

    def __init__(self, name: str, table: Any, vector: str) -> None:
        self._table, self._vector = table, vector
        self._columns = [field.name for field in table.schema if _holds_text(field.type)]
        named = ["id"] if "id" in table.schema.names else []
        query = table.search().where(f"`{vector}` is not null").select(named).with_row_id(True)
        rows = query.limit(table.count_rows()).to_arrow()
        super().__init__(name, rows.column("_rowid").to_pylist(), *_ERRORS)
        ids = list(map(str, rows.column("id").to_pylist())) if named else []
        unique = named and len(set(ids)) == len(ids)
        self.ids = ids if unique else [str(number) for number in range(len(rows))]

    def _vectors(self, keys: list[int]) -> Mapping[int, Any]:
        return {key: row[self._vector] for key, row in self._taken(keys, [self._vector]).items()}

    def _payloads(self, keys: list[int], field: str | None) -> Mapping[int, Any]:
        columns = [one for one in self._columns if field is None or f"{field}.".startswith(f"{one}.")]
        return self._taken(keys, columns) if columns else dict.fromkeys(keys)

    def _taken(self, keys: list[int], columns: list[str]) -> dict[int, dict[str, Any]]:
        rows = self._table.take_row_ids(keys).select(columns).with_row_id().to_arrow().to_pylist()
        return {row.pop("_rowid"): row for row in rows}


def read_table(folder: str, collection: str | None, name: str) -> tuple[dict[str, Any], Answer, Texts]:
    """The opener of the child: name and ids of a table, and what gives its vectors and texts."""
    import lancedb

    for manifest in Path(folder).glob("*.lance/**/_versions/*.manifest"):
        _check_manifest(manifest, name)
    with reading(name, *_ERRORS):
        database = lancedb.connect(folder)
        names = [path.name.removesuffix(".lance") for path in Path(folder).glob("*.lance")]
        chosen, vector = chosen_vector(name, collection, names, lambda one: _vectors_of(database.open_table(one)))
        store = LanceTable(f"{name} ({chosen})", database.open_table(chosen), vector or "")
    return {"name": store.name, "ids": list(store.ids)}, store.fetch, store.texts


def _check_manifest(path: Path, name: str) -> None:
    """Refuse a version of a table that names other places of its files."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    content = limits.content(path, limits.LARGEST_JSON)
    try:
        place, _, _, mark = _FOOTER.unpack(content[-_FOOTER.size :])
        (size,) = struct.unpack_from("<I", content, place)
        fields = {one.field_number for one in UnknownFieldSet(Empty.FromString(content[place + 4 : place + 4 + size]))}
    except (struct.error, DecodeError) as error:
        raise InputError(f"vectors={name}: {path} is damaged") from error
    if mark != b"LANC":
        raise InputError(f"vectors={name}: {path} is damaged")
    if _BASE_PATHS in fields:
        raise InputError(f"vectors={name}: {path} names other places of its files, which are not read; copy the table")


def _vectors_of(table: Any) -> list[str]:
    """The columns of lists of numbers."""
    from pyarrow import types

    def is_vector(kind: Any) -> bool:
        lists = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
        return bool(lists and (types.is_floating(kind.value_type) or types.is_int8(kind.value_type)))

    return sorted(field.name for field in table.schema if is_vector(field.type))


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_struct(kind))
