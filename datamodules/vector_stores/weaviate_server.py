"""Vectors of a Weaviate collection: ``weaviate:http://host:8080`` (key in WEAVIATE_API_KEY).

The client needs the server's gRPC port, too: WEAVIATE_GRPC_PORT, or 50051; Weaviate Cloud has its own. A collection
with several vectors an object needs ``collection=<name>/<vector>``. Collections with tenants are not read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from unembed.datamodules.vector_stores.base import (
    KeyedStore,
    chosen_vector,
    client_library,
    closed_on_error,
    reading,
)

LISTED_TOGETHER = 1000  # ids asked for at once
_CLOUD = (".weaviate.cloud", ".weaviate.network")
_ONLY = "default"  # what the client calls a vector without a name


class WeaviateStore(KeyedStore):
    """A collection under the UUIDs of its objects; ``vector`` is the name of one of several vectors."""

    def __init__(self, name: str, client: Any, collection: str, vector: str | None) -> None:
        from weaviate.exceptions import WeaviateBaseError

        self._client, self._vector = client, vector
        self._collection = client.collections.use(collection)
        pages = self._collection.iterator(return_properties=False, cache_size=LISTED_TOGETHER)
        super().__init__(name, [str(one.uuid) for one in pages], WeaviateBaseError)

    def _vectors(self, keys: list[str]) -> Mapping[str, Any]:
        wanted = True if self._vector is None else [self._vector]
        rows = self._objects(keys, include_vector=wanted, return_properties=False)
        return {str(row.uuid): row.vector.get(self._vector or _ONLY) for row in rows}

    def _payloads(self, keys: list[str], field: str | None) -> Mapping[str, Any]:
        return {str(row.uuid): row.properties for row in self._objects(keys)}

    def _objects(self, keys: list[str], **wanted: Any) -> list[Any]:
        from weaviate.classes.query import Filter

        among = Filter.by_id().contains_any(keys)  # fetch_objects_by_ids sends a condition for each
        objects: list[Any] = self._collection.query.fetch_objects(filters=among, limit=len(keys), **wanted).objects
        return objects


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
    with reading(name, WeaviateBaseError, ValueError):
        # Without its checks, one of which asks PyPI for the newest client.
        client = library.connect_to_custom(
            http_host=host, http_port=server.port or (443 if secure else 8080), http_secure=secure,
            grpc_host=f"grpc-{host}" if cloud else host, grpc_secure=secure,
            grpc_port=443 if cloud else int(os.environ.get("WEAVIATE_GRPC_PORT", "50051")),
            auth_credentials=library.auth.AuthApiKey(key) if key else None, skip_init_checks=True,
        )  # fmt: skip
        with closed_on_error(client):
            kinds = client.collections.list_all(simple=False)

            def vectors_of(one: str) -> Sequence[str] | None:
                return sorted(kinds[one].vector_config) if kinds[one].vector_config else None

            chosen, vector = chosen_vector(name, collection, kinds, vectors_of)
            return WeaviateStore(f"{name} ({chosen})", client, chosen, vector)
