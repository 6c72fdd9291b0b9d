"""Vectors of servers that have no folders: Weaviate and Pinecone.

``weaviate:http://host:8080`` (key in WEAVIATE_API_KEY): the client needs the server's gRPC port, too, which is
WEAVIATE_GRPC_PORT, or 50051; Weaviate Cloud has its own. A collection with several vectors an object needs
``collection=<name>/<vector>``. Collections with tenants are not read.

``pinecone:<index>``, or ``pinecone:https://<host of the index>`` (key in PINECONE_API_KEY): ``collection=`` is the
namespace, ``__default__`` the one without a name. Ids are listed 100 at a time, as Pinecone does for serverless
indexes; those of pods do not list theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from unembed.core.errors import InputError, did_you_mean
from unembed.datamodules.vector_stores.base import (
    KeyedStore,
    chosen_collection,
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
    """Open a collection of a server."""
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
    """Open a namespace of an index."""
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
