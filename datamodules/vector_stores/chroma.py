"""Vectors of a Chroma collection: ``chroma:folder`` or ``chroma:http://host:8000``.

A server's token is in CHROMA_CLIENT_AUTH_CREDENTIALS; CHROMA_CLIENT_AUTH_PROVIDER names another way of logging in.

A folder is opened by Chroma's library in a child process (child.py): it loads an index of hnswlib, which believes what
its files say. The embedding function that a collection names, which may load a model with its code, is never built.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from unembed.datamodules.vector_stores.base import (
    KeyedStore,
    checked_size,
    chosen_collection,
    client_library,
    reading,
    store_folder,
)
from unembed.datamodules.vector_stores.child import Answer, Child, Limits, TextChildStore, Texts

_TOKEN_PROVIDER = "chromadb.auth.token_authn.TokenAuthClientProvider"
_CREDENTIALS, _PROVIDER = "CHROMA_CLIENT_AUTH_CREDENTIALS", "CHROMA_CLIENT_AUTH_PROVIDER"
_DOCUMENT = "document"  # the field of a document


class ChromaStore(KeyedStore):
    """A collection under its ids."""

    def __init__(self, name: str, collection: Any) -> None:
        import chromadb
        import httpx

        self._collection = collection
        errors = ValueError, httpx.HTTPError, chromadb.errors.ChromaError
        super().__init__(name, collection.get(include=[])["ids"], *errors)

    def _vectors(self, keys: list[str]) -> Mapping[str, Any]:
        answer = self._collection.get(ids=keys, include=["embeddings"])
        return dict(zip(answer["ids"], answer["embeddings"], strict=True))

    def _payloads(self, keys: list[str], field: str | None) -> Mapping[str, Any]:
        parts = [] if field == _DOCUMENT else ["metadatas"]
        answer = self._collection.get(ids=keys, include=[*parts, "documents"])
        details = answer["metadatas"] or [None] * len(answer["ids"])
        return {
            key: {**(detail or {}), _DOCUMENT: text}
            for key, text, detail in zip(answer["ids"], answer["documents"], details, strict=True)
        }


def open_chroma(place: str, collection: str | None) -> ChromaStore | TextChildStore:
    """Open a collection of a persistent folder or of a server."""
    client_library("chromadb", "chroma", f"chroma:{place}")
    if "://" in place:
        return _opened(place, collection)
    folder = store_folder("chroma", place)  # the library would make an empty store where there is none
    size = checked_size(folder, f"chroma:{place}")  # the library writes to what it opens
    limits = Limits(seconds=10 + size / 1e6, memory=(2 << 30) + 4 * size, writes=True)  # it marks the folder as opened
    child = Child(f"vectors=chroma:{place}", read_folder, [place, collection], ["chromadb"], limits)
    return TextChildStore(child.opened["name"], child.opened["ids"], child)


def read_folder(place: str, collection: str | None) -> tuple[dict[str, Any], Answer, Texts]:
    """The opener of the child: name and ids of a collection, and what gives its vectors and texts."""
    store = _opened(place, collection)
    return {"name": store.name, "ids": list(store.ids)}, store.fetch, store.texts


def _opened(place: str, collection: str | None) -> ChromaStore:
    import chromadb

    name = f"chroma:{place}"
    # The library would read .env of the current directory too, which may be the folder that somebody sent.
    settings = chromadb.Settings(_env_file=None, anonymized_telemetry=False)
    if os.environ.get(_CREDENTIALS) and not os.environ.get(_PROVIDER):
        settings.chroma_client_auth_provider = _TOKEN_PROVIDER
    with reading(name, ValueError, chromadb.errors.ChromaError):
        if "://" in place:
            server = urlsplit(place)
            client = chromadb.HttpClient(
                server.hostname or "", server.port or 8000, ssl=server.scheme == "https", settings=settings
            )
        else:
            client = chromadb.PersistentClient(str(Path(place).expanduser()), settings=settings)
        chosen = chosen_collection(name, collection, [one.name for one in client.list_collections()])
        opened = client.get_collection(chosen, embedding_function=None)  # or it would build the one that is named
        return ChromaStore(f"{name} ({chosen})", opened)
