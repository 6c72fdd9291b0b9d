"""Vectors of a Pinecone index: ``pinecone:<index>``, or ``pinecone:https://<host of the index>`` (key in
PINECONE_API_KEY).

``collection=`` is the namespace, ``__default__`` the one without a name. Ids are listed 100 at a time, as Pinecone does
for serverless indexes; those of pods do not list theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError, did_you_mean
from unembed.datamodules.vector_stores.address import client_library
from unembed.datamodules.vector_stores.choice import chosen_collection
from unembed.datamodules.vector_stores.payloads import flat_texts
from unembed.datamodules.vector_stores.rows import in_order

FETCHED_TOGETHER = 100  # ids are part of an address, which may not be long
_DEFAULT = "__default__"


class PineconeStore:
    """A namespace under its ids."""

    def __init__(self, name: str, index: Any, namespace: str) -> None:
        self.name, self._index, self._namespace = name, index, namespace
        self.ids: Sequence[str] = [item.id for page in index.list(namespace=namespace) for item in page.vectors]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        rows = [row.values for row in self._rows(positions)]
        if not all(rows):
            raise InputError(f"vectors={self.name}: holds sparse vectors, which no attack reads")
        return np.array(rows, np.float32)

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """See TextStore."""
        return [flat_texts(row.metadata, field) for row in self._rows(positions)]

    def _rows(self, positions: Sequence[int]) -> list[Any]:
        from pinecone.errors.exceptions import PineconeError

        asked = [self.ids[place] for place in positions]
        found: dict[str, Any] = {}
        try:
            for start in range(0, len(asked), FETCHED_TOGETHER):
                part = asked[start : start + FETCHED_TOGETHER]
                found |= self._index.fetch(ids=part, namespace=self._namespace).vectors
        except PineconeError as error:
            raise _unreadable(self.name, error) from error
        return in_order(self.name, asked, found, "vectors")


def open_pinecone(place: str, collection: str | None) -> PineconeStore:
    """Open a namespace of an index.

    Raises:
        InputError: pinecone is not installed, PINECONE_API_KEY is not set; no such index or namespace, or a choice of
            several.
    """
    name = f"pinecone:{place}"
    library = client_library("pinecone", "pinecone", name)
    from pinecone.errors.exceptions import PineconeError

    if not os.environ.get("PINECONE_API_KEY"):
        raise InputError(f"vectors={name}: give the key in PINECONE_API_KEY")
    try:
        client = library.Pinecone()
        if "://" in place:
            index = client.Index(host=place)
        else:
            names = [one.name for one in client.list_indexes()]
            if place not in names:
                raise InputError(f"vectors={name}: no index {place}; {did_you_mean(place, names)}")
            index = client.Index(place)
        names = [one or _DEFAULT for one in index.describe_index_stats().namespaces] or [_DEFAULT]
        chosen = chosen_collection(name, collection, names)
        return PineconeStore(f"{name} ({chosen})", index, "" if chosen == _DEFAULT else chosen)
    except PineconeError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InputError:
    return InputError(f"vectors={name}: cannot be read: {' '.join(str(error).split())[:400]}")
