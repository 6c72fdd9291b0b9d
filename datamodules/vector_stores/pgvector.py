"""Vectors of a PostgreSQL table with pgvector: ``postgresql://user@host/database`` (password in PGPASSWORD or
~/.pgpass).

``collection=<table>.<column>``, or <schema>.<table>.<column>, chooses where there are several columns of vectors. Ids
are those of the table's primary key; a table without one has PostgreSQL's own places of rows instead. Everything is
read within one read-only transaction, so that rows which are written meanwhile do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.vector_stores.address import client_library
from errors import InputError, listed

_COLUMNS = """
select table_schema, table_name, column_name from information_schema.columns
where udt_name in ('vector', 'halfvec') order by 1, 2, 3
"""
_PRIMARY_KEY = """
select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
where i.indisprimary and i.indrelid = (quote_ident(%s) || '.' || quote_ident(%s))::regclass
"""


class PgvectorStore:
    """A column of vectors under the values of a key; rows without a vector are left out."""

    def __init__(self, name: str, connection: Any, schema: str, table: str, column: str) -> None:
        from psycopg import sql

        self.name, self._connection = name, connection
        keys = [row[0] for row in connection.execute(_PRIMARY_KEY, (schema, table)).fetchall()]
        key = sql.Identifier(keys[0]) if len(keys) == 1 else sql.SQL("ctid")
        parts = {"key": key, "table": sql.Identifier(schema, table), "column": sql.Identifier(column)}
        listed = sql.SQL("select {key}::text from {table} where {column} is not null order by {key}").format(**parts)
        self._rows = sql.SQL("select {key}::text, {column}::text from {table} where {key}::text = any(%s)").format(
            **parts
        )
        self.ids: Sequence[str] = [row[0] for row in connection.execute(listed).fetchall()]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        wanted = [self.ids[place] for place in positions]
        rows = dict(self._connection.execute(self._rows, (wanted,)).fetchall())
        return np.stack([np.fromstring(rows[one].strip("[]"), np.float32, sep=",") for one in wanted])


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
        found = [".".join(row) for row in connection.execute(_COLUMNS).fetchall()]
        chosen = [name for name in found if collection is None or f".{name}".endswith(f".{collection}")]
        if len(chosen) != 1:
            which = "no column" if not chosen else "which column"
            raise InputError(
                f"vectors={shown}: {which} of vectors{'' if collection is None else f' {collection}'}? "
                f"give collection=<one of {listed(found) or 'none'}>"
            )
        schema, table, column = chosen[0].split(".")
        return PgvectorStore(f"{shown} ({chosen[0]})", connection, schema, table, column)
    except psycopg.Error as error:
        raise InputError(f"vectors={shown}: cannot be read: {' '.join(str(error).split())}") from error
