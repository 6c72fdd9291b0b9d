"""Vectors of a Weaviate collection: ``weaviate:http://host:8080`` (key in WEAVIATE_API_KEY).

The client needs the server's gRPC port, too: WEAVIATE_GRPC_PORT, or 50051; Weaviate Cloud has its own. A collection
with several vectors an object needs ``collection=<name>/<vector>``. Collections with tenants are not read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.address import client_library
from unembed.datamodules.vector_stores.choice import chosen_vector
from unembed.datamodules.vector_stores.payloads import flat_texts
from unembed.datamodules.vector_stores.rows import in_order

LISTED_TOGETHER = 1000  # ids asked for at once
_CLOUD = (".weaviate.cloud", ".weaviate.network")
_ONLY = "default"  # what the client calls a vector without a name


class WeaviateStore:
    """A collection under the UUIDs of its objects; ``vector`` is the name of one of several vectors."""

    def __init__(self, name: str, client: Any, collection: str, vector: str | None) -> None:
        self.name, self._client, self._vector = name, client, vector
        self._collection = client.collections.use(collection)
        pages = self._collection.iterator(return_properties=False, cache_size=LISTED_TOGETHER)
        self.ids: Sequence[str] = [str(found.uuid) for found in pages]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        wanted = True if self._vector is None else [self._vector]
        rows = self._objects(positions, include_vector=wanted, return_properties=False)
        try:
            return np.array([row.vector[self._vector or _ONLY] for row in rows], np.float32)
        except (KeyError, ValueError) as error:
            raise InputError(f"vectors={self.name}: an object has no vector, or one of another dimension") from error

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """See TextStore."""
        return [flat_texts(row.properties, field) for row in self._objects(positions)]

    def _objects(self, positions: Sequence[int], **wanted: Any) -> list[Any]:
        from weaviate.classes.query import Filter
        from weaviate.exceptions import WeaviateBaseError

        asked = [self.ids[place] for place in positions]
        try:
            among = Filter.by_id().contains_any(asked)  # fetch_objects_by_ids sends a condition for each
            answer = self._collection.query.fetch_objects(filters=among, limit=len(asked), **wanted)
        except WeaviateBaseError as error:
            raise _unreadable(self.name, error) from error
        found = {str(one.uuid): one for one in answer.objects}
        return in_order(self.name, asked, found, "objects")


def open_weaviate(place: str, collection: str | None) -> WeaviateStore:
    """Open a collection of a server.

    Raises:
        InputError: weaviate-client is not installed; no such server or collection, or a choice of several.
    """
    name = f"weaviate:{place}"
    library = client_library("weaviate", "weaviate", name)
    from weaviate.exceptions import WeaviateBaseError

    server = urlsplit(place)
    host, secure = server.hostname or "", server.scheme.lower() == "https"
    cloud = host.endswith(_CLOUD)
    key = os.environ.get("WEAVIATE_API_KEY")
    try:
        # Without its checks, one of which asks PyPI for the newest client.
        client = library.connect_to_custom(
            http_host=host, http_port=server.port or (443 if secure else 8080), http_secure=secure,
            grpc_host=f"grpc-{host}" if cloud else host, grpc_secure=secure,
            grpc_port=443 if cloud else int(os.environ.get("WEAVIATE_GRPC_PORT", "50051")),
            auth_credentials=library.auth.AuthApiKey(key) if key else None, skip_init_checks=True,
        )  # fmt: skip
        with ExitStack() as unless_opened:
            unless_opened.callback(client.close)
            kinds = client.collections.list_all(simple=False)

            def vectors_of(one: str) -> Sequence[str] | None:
                return sorted(kinds[one].vector_config) if kinds[one].vector_config else None

            chosen, vector = chosen_vector(name, collection, list(kinds), vectors_of)
            store = WeaviateStore(f"{name} ({chosen})", client, chosen, vector)
            unless_opened.pop_all()
        return store
    except (WeaviateBaseError, ValueError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InputError:
    return InputError(f"vectors={name}: cannot be read: {' '.join(str(error).split())[:400]}")
