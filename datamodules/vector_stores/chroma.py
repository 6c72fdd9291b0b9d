"""Vectors of a Chroma collection: ``chroma:folder`` or ``chroma:http://host:8000``.

A server's token is in CHROMA_CLIENT_AUTH_CREDENTIALS; CHROMA_CLIENT_AUTH_PROVIDER names another way of logging in.

A folder is opened by Chroma's library in a child process (child.py): it loads an index of hnswlib, which believes what
its files say. The embedding function that a collection names, which may load a model with its code, is never built.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.address import client_library
from unembed.datamodules.vector_stores.child import Answer, Child, Limits, TextChildStore, Texts
from unembed.datamodules.vector_stores.choice import chosen_collection
from unembed.datamodules.vector_stores.folders import checked_size, store_folder
from unembed.datamodules.vector_stores.payloads import flat_texts

_TOKEN_PROVIDER = "chromadb.auth.token_authn.TokenAuthClientProvider"
_CREDENTIALS, _PROVIDER = "CHROMA_CLIENT_AUTH_CREDENTIALS", "CHROMA_CLIENT_AUTH_PROVIDER"
_DOCUMENT = "document"


class ChromaStore:
    """A collection under its ids."""

    def __init__(self, name: str, collection: Any) -> None:
        self.name, self._collection = name, collection
        self.ids: Sequence[str] = collection.get(include=[])["ids"]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        wanted = [self.ids[place] for place in positions]
        answer = self._got(wanted, ["embeddings"])
        rows = dict(zip(answer["ids"], answer["embeddings"], strict=True))  # not in the order that was asked for
        return np.stack([rows[one] for one in wanted])

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """See TextStore; the field of a document is "document"."""
        wanted = [self.ids[place] for place in positions]
        parts = [] if field == _DOCUMENT else ["metadatas"]
        answer = self._got(wanted, [*parts, "documents"])
        details = answer["metadatas"] or [None] * len(answer["ids"])
        rows = {
            one: flat_texts({**(detail or {}), _DOCUMENT: text}, field)
            for one, text, detail in zip(answer["ids"], answer["documents"], details, strict=True)
        }
        return [rows[one] for one in wanted]

    def _got(self, wanted: Sequence[str], parts: Sequence[str]) -> Any:
        import chromadb
        import httpx

        try:
            answer = self._collection.get(ids=wanted, include=parts)
        except (ValueError, httpx.HTTPError, chromadb.errors.ChromaError) as error:
            raise InputError(f"vectors={self.name}: cannot be read: {' '.join(str(error).split())}") from error
        if missing := len(wanted) - len(answer["ids"]):
            raise InputError(f"vectors={self.name}: {missing} rows were deleted meanwhile; read it again")
        return answer


def open_chroma(place: str, collection: str | None) -> ChromaStore | TextChildStore:
    """Open a collection of a persistent folder or of a server.

    Raises:
        InputError: chromadb is not installed; no such folder, server or collection, a choice of several, or a folder
            with links in it.
    """
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

    # The library would read .env of the current directory too, which may be the folder that somebody sent.
    settings = chromadb.Settings(_env_file=None, anonymized_telemetry=False)
    if os.environ.get(_CREDENTIALS) and not os.environ.get(_PROVIDER):
        settings.chroma_client_auth_provider = _TOKEN_PROVIDER
    try:
        if "://" in place:
            server = urlsplit(place)
            client = chromadb.HttpClient(
                server.hostname or "", server.port or 8000, ssl=server.scheme == "https", settings=settings
            )
        else:
            client = chromadb.PersistentClient(str(Path(place).expanduser()), settings=settings)
        names = [found.name for found in client.list_collections()]
    except (ValueError, chromadb.errors.ChromaError) as error:
        raise InputError(f"vectors=chroma:{place}: cannot be opened: {' '.join(str(error).split())}") from error
    chosen = chosen_collection(f"chroma:{place}", collection, names)
    try:
        opened = client.get_collection(chosen, embedding_function=None)  # or it would build the one that is named
        return ChromaStore(f"chroma:{place} ({chosen})", opened)
    except (ValueError, chromadb.errors.ChromaError) as error:
        raise InputError(f"vectors=chroma:{place}: cannot be read: {' '.join(str(error).split())}") from error
