"""Rows that a server gives in an order of its own, or not at all, put into the order in which they were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from unembed.core.errors import InputError

Key = TypeVar("Key")
Row = TypeVar("Row")


def in_order(name: str, asked: Sequence[Key], found: Mapping[Key, Row], what: str) -> list[Row]:
    """The rows of ``found`` in the order of ``asked``.

    Args:
        name: Of the store, for messages.
        asked: Keys of rows that were there when the store was listed.
        found: The rows by key.
        what: What the store calls rows, in the plural.

    Raises:
        InputError: Some are missing.
    """
    missing = sum(one not in found for one in asked)
    if missing:
        raise InputError(
            f"vectors={name}: {missing} of {len(asked)} {what} do not come back, as if deleted meanwhile; read it again"
        )
    return [found[one] for one in asked]
