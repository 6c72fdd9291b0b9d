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
from unembed.datamodules.vector_stores.address import client_library
from unembed.datamodules.vector_stores.payloads import flat_texts
from unembed.datamodules.vector_stores.rows import in_order

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


class PgvectorStore:
    """A column of vectors under the values of a key; rows without a vector are left out."""

    def __init__(self, name: str, connection: Any, schema: str, table: str, column: str) -> None:
        from psycopg import sql

        self.name, self._connection = name, connection
        keys = connection.execute(_PRIMARY_KEY, (schema, table)).fetchall()
        key, kind = (sql.Identifier(keys[0][0]), keys[0][1]) if len(keys) == 1 else (sql.SQL("ctid"), "tid")
        column_name = sql.Identifier(column)
        parts = {"key": key, "kind": sql.SQL(kind), "table": sql.Identifier(schema, table), "column": column_name}
        # Ordered by the key, which "key" without the table's name would not be: that is the text in the list.
        every = sql.SQL("select {key}::text from {table} t where {column} is not null order by t.{key}").format(**parts)
        # The key keeps its type in the comparison, so that the index of the key is used; the name of a type is SQL.
        self._rows = sql.SQL("select {key}::text, {values} from {table} where {key} = any(%s::{kind}[])")
        self._parts = parts
        self._vector = sql.SQL("{}::text").format(column_name)
        self._columns = [row[0] for row in connection.execute(_TEXTS, (schema, table)).fetchall()]
        self.ids: Sequence[str] = [row[0] for row in connection.execute(every).fetchall()]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        rows = self._read(self._vector, positions)
        return np.stack([_vector(self.name, text) for (text,) in rows])

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """See TextStore; a field within JSON is ``<column>.<key>``."""
        from psycopg import sql

        columns = [one for one in self._columns if field is None or f"{field}.".startswith(f"{one}.")]
        if not columns:
            return [{} for _ in positions]
        rows = self._read(sql.SQL(", ").join(map(sql.Identifier, columns)), positions)
        return [flat_texts(dict(zip(columns, row, strict=True)), field) for row in rows]

    def _read(self, values: Any, positions: Sequence[int]) -> list[tuple[Any, ...]]:
        import psycopg

        wanted = [self.ids[place] for place in positions]
        statement = self._rows.format(**self._parts, values=values)
        try:
            found = {row[0]: row[1:] for row in self._connection.execute(statement, (wanted,)).fetchall()}
        except psycopg.Error as error:
            raise InputError(f"vectors={self.name}: cannot be read: {' '.join(str(error).split())}") from error
        return in_order(self.name, wanted, found, "rows")


def open_pgvector(place: str, collection: str | None) -> PgvectorStore:
    """Open a column of a database; ``place`` is its address without ``postgresql:``, and holds no password.

    Raises:
        InputError: psycopg is not installed; no connection, no such column, or a choice of several.
    """
    address = f"postgresql:{place}"
    shown = address.partition("?")[0]
    psycopg = client_library("psycopg", "pgvector", shown)
    try:
        connection = psycopg.connect(address)
        connection.read_only = True
        found = {_written(row): row for row in connection.execute(_COLUMNS).fetchall()}
        chosen = [name for name, row in found.items() if collection is None or _names(collection, row)]
        if len(chosen) != 1:
            which = "no column" if not chosen else "which column"
            raise InputError(
                f"vectors={shown}: {which} of vectors{'' if collection is None else f' {collection}'}? "
                f"give collection=<one of {listed(list(found)) or 'none'}>"
            )
        schema, table, column = found[chosen[0]]
        return PgvectorStore(f"{shown} ({chosen[0]})", connection, schema, table, column)
    except psycopg.Error as error:
        raise InputError(f"vectors={shown}: cannot be read: {' '.join(str(error).split())}") from error


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
    found = np.zeros(int(dimension), np.float32)
    for entry in filter(None, entries.strip("{}").split(",")):
        number, _, value = entry.partition(":")
        found[int(number) - 1] = float(value)
    return found
