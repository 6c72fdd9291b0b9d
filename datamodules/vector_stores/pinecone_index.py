"""Vectors of a Pinecone index: ``pinecone:<index>``, or ``pinecone:https://<host of the index>`` (key in
PINECONE_API_KEY).

``collection=`` is the namespace, ``__default__`` the one without a name. Ids are listed 100 at a time, as Pinecone does
for serverless indexes; those of pods do not list theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from unembed.core.errors import InputError, did_you_mean
from unembed.datamodules.vector_stores.base import KeyedStore, chosen_collection, client_library, reading

FETCHED_TOGETHER = 100  # ids are part of an address, which may not be long
_DEFAULT = "__default__"


class PineconeStore(KeyedStore):
    """A namespace under its ids."""

    def __init__(self, name: str, index: Any, namespace: str) -> None:
        from pinecone.errors.exceptions import PineconeError

        self._index, self._namespace = index, namespace
        keys = [item.id for page in index.list(namespace=namespace) for item in page.vectors]
        super().__init__(name, keys, PineconeError)

    def _vectors(self, keys: list[str]) -> Mapping[str, Any]:
        return {key: row.values for key, row in self._found(keys).items()}

    def _payloads(self, keys: list[str], field: str | None) -> Mapping[str, Any]:
        return {key: row.metadata for key, row in self._found(keys).items()}

    def _found(self, keys: list[str]) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for start in range(0, len(keys), FETCHED_TOGETHER):
            part = keys[start : start + FETCHED_TOGETHER]
            rows |= self._index.fetch(ids=part, namespace=self._namespace).vectors
        return rows


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
    with reading(name, PineconeError):
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
