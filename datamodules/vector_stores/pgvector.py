"""Vectors of a PostgreSQL table with pgvector: ``postgresql://user@host/database`` (password in PGPASSWORD or
~/.pgpass).

``collection=<table>.<column>``, or <schema>.<table>.<column>, chooses where there are several columns of vectors; a
name with a dot may stand in quotes. Ids are those of the table's primary key; a table without one has PostgreSQL's own
places of rows instead. Everything is read within one read-only transaction, so that rows which are written meanwhile do
not matter. Columns of type vector, halfvec and sparsevec are read. The columns of texts and JSON beside them are the
row's texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError, listed
from unembed.datamodules.vector_stores.base import KeyedStore, client_library, reading

_COLUMNS = """
select table_schema, table_name, column_name from information_schema.columns
where udt_name in ('vector', 'halfvec', 'sparsevec') order by 1, 2, 3
"""
_PRIMARY_KEY = """
select a.attname, format_type(a.atttypid, a.atttypmod)
from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
where i.indisprimary and i.indrelid = (quote_ident(%s) || '.' || quote_ident(%s))::regclass
"""
_TEXTS = """
select column_name from information_schema.columns
where table_schema = %s and table_name = %s and udt_name in ('text', 'varchar', 'bpchar', 'citext', 'json', 'jsonb')
order by ordinal_position
"""
_LARGEST_SPARSE = 1 << 16  # dimensions; pgvector has up to a billion


class PgvectorStore(KeyedStore):
    """A column of vectors under the values of a key; rows without a vector are left out."""

    def __init__(self, name: str, connection: Any, schema: str, table: str, column: str) -> None:
        import psycopg
        from psycopg import sql

        self._connection = connection
        keys = connection.execute(_PRIMARY_KEY, (schema, table)).fetchall()
        key, kind = (sql.Identifier(keys[0][0]), keys[0][1]) if len(keys) == 1 else (sql.SQL("ctid"), "tid")
        self._vector = sql.Identifier(column)
        self._parts = {"key": key, "kind": sql.SQL(kind), "table": sql.Identifier(schema, table)}
        self._columns = [row[0] for row in connection.execute(_TEXTS, (schema, table)).fetchall()]
        # Ordered by the key, which "key" without the table's name would not be: that is the text in the list.
        every = sql.SQL("select {key}::text from {table} t where {column} is not null order by t.{key}")
        rows = connection.execute(every.format(**self._parts, column=self._vector)).fetchall()
        super().__init__(name, [row[0] for row in rows], psycopg.Error)

    def _vectors(self, keys: list[str]) -> Mapping[str, Any]:
        from psycopg import sql

        rows = self._read(sql.SQL("{}::text").format(self._vector), keys)
        return {key: _vector(self.name, text) for key, text in rows}

    def _payloads(self, keys: list[str], field: str | None) -> Mapping[str, Any]:
        """Of the columns of texts and JSON; a field within JSON is ``<column>.<key>``."""
        from psycopg import sql

        columns = [one for one in self._columns if field is None or f"{field}.".startswith(f"{one}.")]
        if not columns:
            return dict.fromkeys(keys)
        rows = self._read(sql.SQL(", ").join(map(sql.Identifier, columns)), keys)
        return {key: dict(zip(columns, values, strict=True)) for key, *values in rows}

    def _read(self, values: Any, keys: list[str]) -> Sequence[Any]:
        from psycopg import sql

        # The key keeps its type in the comparison, so that the index of the key is used; the name of a type is SQL.
        statement = sql.SQL("select {key}::text, {values} from {table} where {key} = any(%s::{kind}[])")
        rows: Sequence[Any] = self._connection.execute(
            statement.format(**self._parts, values=values), (keys,)
        ).fetchall()
        return rows


def open_pgvector(place: str, collection: str | None) -> PgvectorStore:
    """Open a column of a database; ``place`` is its address without ``postgresql:``, and holds no password."""
    address = f"postgresql:{place}"
    shown = address.partition("?")[0]
    psycopg = client_library("psycopg", "pgvector", shown)
    with reading(shown, psycopg.Error):
        connection = psycopg.connect(address)
        connection.read_only = True
        columns = {_written(row): row for row in connection.execute(_COLUMNS).fetchall()}
        chosen = [name for name, row in columns.items() if collection is None or _names(collection, row)]
        if len(chosen) != 1:
            which = "no column" if not chosen else "which column"
            raise InputError(
                f"vectors={shown}: {which} of vectors{'' if collection is None else f' {collection}'}? "
                f"give collection=<one of {listed(list(columns)) or 'none'}>"
            )
        return PgvectorStore(f"{shown} ({chosen[0]})", connection, *columns[chosen[0]])


def _written(parts: Sequence[str]) -> str:
    """Names with dots between them; one that has a dot itself in quotes, as in SQL."""
    return ".".join(f'"{part}"' if "." in part else part for part in parts)


def _names(collection: str, row: Sequence[str]) -> bool:
    """Whether ``collection=`` names a column with its table, with or without its schema and quotes."""
    return any(collection in (_written(row[start:]), ".".join(row[start:])) for start in (0, 1, 2))


def _vector(name: str, text: str) -> NDArray[np.float32]:
    """The numbers of a vector as PostgreSQL writes it: ``[0.5,1]``, or ``{1:0.5,2:1}/2`` of a sparse one."""
    if not text.startswith("{"):
        return np.array(text.strip("[]").split(","), np.float32)
    entries, _, dimension = text.partition("/")
    if int(dimension) > _LARGEST_SPARSE:
        raise InputError(
            f"vectors={name}: sparse vectors of dimension {dimension}; up to {_LARGEST_SPARSE} are read, those of an "
            "embedder of texts"
        )
    vector = np.zeros(int(dimension), np.float32)
    for entry in filter(None, entries.strip("{}").split(",")):
        number, _, value = entry.partition(":")
        vector[int(number) - 1] = float(value)
    return vector
