"""Vectors of a Qdrant collection: ``qdrant:folder`` or ``qdrant:http://host:6333`` (key in QDRANT_API_KEY).

A collection with several vectors a point needs ``collection=<name>/<vector>``. A server normalises the vectors of a
collection whose distance is the cosine when they are stored: their lengths are gone. A folder holds them as they were.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.address import client_library
from unembed.datamodules.vector_stores.child import Child, TextChildStore, limits_for
from unembed.datamodules.vector_stores.choice import chosen_vector
from unembed.datamodules.vector_stores.folders import store_folder
from unembed.datamodules.vector_stores.payloads import flat_texts
from unembed.datamodules.vector_stores.qdrant_folder import collections_of, read_points, storage_of

LISTED_TOGETHER = 10_000  # ids asked for at once


class QdrantStore:
    """A collection under its points' ids; ``vector`` is the name of one of several vectors, None of the only one."""

    def __init__(self, name: str, client: Any, collection: str, vector: str | None) -> None:
        self.name, self._client, self._collection, self._vector = name, client, collection, vector
        self._points: list[Any] = []
        offset = None
        while True:
            points, offset = client.scroll(
                collection, limit=LISTED_TOGETHER, offset=offset, with_payload=False, with_vectors=False
            )
            self._points += [point.id for point in points]
            if offset is None:
                break
        self.ids: Sequence[str] = [str(point) for point in self._points]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        wanted = [self._points[place] for place in positions]
        found = self._retrieved(wanted, with_payload=False, with_vectors=self._vector is None or [self._vector])
        rows = {point.id: point.vector if self._vector is None else point.vector[self._vector] for point in found}
        return np.stack([np.asarray(rows[one]) for one in wanted])

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """See TextStore."""
        wanted = [self._points[place] for place in positions]
        found = self._retrieved(wanted, with_payload=field is None or [field], with_vectors=False)
        rows = {point.id: flat_texts(point.payload, field) for point in found}
        return [rows[one] for one in wanted]

    def _retrieved(self, wanted: Sequence[Any], **parts: Any) -> list[Any]:
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ApiException

        try:
            found: list[Any] = self._client.retrieve(self._collection, wanted, **parts)
        except (QdrantException, ApiException) as error:
            raise InputError(f"vectors={self.name}: cannot be read: {' '.join(str(error).split())}") from error
        if missing := len(wanted) - len(found):
            raise InputError(f"vectors={self.name}: {missing} points were deleted meanwhile; read it again")
        return found


def open_qdrant(place: str, collection: str | None) -> QdrantStore | TextChildStore:
    """Open a collection of a local folder or of a server.

    Raises:
        InputError: qdrant-client is not installed; no such folder, server or collection, or a choice of several.
    """
    return _open_server(place, collection) if "://" in place else _open_folder(place, collection)


def _open_folder(place: str, collection: str | None) -> TextChildStore:
    folder = store_folder("qdrant", place)
    kinds = collections_of(folder, place)
    chosen, vector = chosen_vector(f"qdrant:{place}", collection, sorted(kinds), kinds.__getitem__)
    storage = storage_of(folder, place, chosen)
    arguments = [str(storage.resolve()), str(folder / ".lock"), place, vector]
    child = Child(f"vectors=qdrant:{place}", read_points, arguments, [], limits_for(storage.stat().st_size))
    return TextChildStore(f"qdrant:{place} ({chosen})", child.opened["ids"], child)


def _open_server(place: str, collection: str | None) -> QdrantStore:
    client_library("qdrant_client", "qdrant", f"qdrant:{place}")
    from qdrant_client import QdrantClient
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ApiException

    try:
        client = QdrantClient(url=place, api_key=os.environ.get("QDRANT_API_KEY"), check_compatibility=False)
        with ExitStack() as unless_opened:
            unless_opened.callback(client.close)

            def vectors_of(name: str) -> Sequence[str] | None:
                kinds = client.get_collection(name).config.params.vectors
                return sorted(kinds) if isinstance(kinds, dict) else None

            names = sorted(found.name for found in client.get_collections().collections)
            chosen, vector = chosen_vector(f"qdrant:{place}", collection, names, vectors_of)
            store = QdrantStore(f"qdrant:{place} ({chosen})", client, chosen, vector)
            unless_opened.pop_all()
        return store
    except (QdrantException, ApiException, ValueError) as error:
        raise InputError(f"vectors=qdrant:{place}: cannot be opened: {' '.join(str(error).split())}") from error
