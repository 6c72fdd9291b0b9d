"""Vectors of a Chroma collection: ``chroma:folder`` or ``chroma:http://host:8000``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from errors import InputError, did_you_mean


class ChromaStore:
    """A collection under its ids."""

    def __init__(self, name: str, collection: Any) -> None:
        self.name, self._collection = name, collection
        self.ids: Sequence[str] = collection.get(include=[])["ids"]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        wanted = [self.ids[place] for place in positions]
        answer = self._collection.get(ids=wanted, include=["embeddings"])
        rows = dict(zip(answer["ids"], answer["embeddings"], strict=True))  # not in the order that was asked for
        return np.stack([rows[one] for one in wanted])


def open_chroma(place: str, collection: str | None) -> ChromaStore:
    """Open a collection of a persistent folder or of a server.

    Raises:
        InputError: chromadb is not installed; no such folder, server or collection, or a choice of several.
    """
    try:
        import chromadb
    except ModuleNotFoundError as error:
        raise InputError(
            f"vectors=chroma:{place}: needs the library chromadb; pip install 'unembed[chroma]'"
        ) from error
    settings = chromadb.Settings(anonymized_telemetry=False)
    try:
        if "://" in place:
            server = urlsplit(place)
            client = chromadb.HttpClient(
                server.hostname or "", server.port or 8000, ssl=server.scheme == "https", settings=settings
            )
        else:
            folder = Path(place).expanduser()
            if not (folder / "chroma.sqlite3").is_file():  # the library would make an empty store here
                raise InputError(f"vectors=chroma:{place}: no Chroma folder (chroma.sqlite3 is missing)")
            client = chromadb.PersistentClient(str(folder), settings=settings)
        names = sorted(found.name for found in client.list_collections())
    except (ValueError, chromadb.errors.ChromaError) as error:
        raise InputError(f"vectors=chroma:{place}: cannot be opened: {' '.join(str(error).split())}") from error
    if collection is None and len(names) == 1:
        collection = names[0]
    if collection not in names:
        which = "which collection? " if collection is None else f"no collection {collection}; "
        hint = f"give collection=<one of {', '.join(names) or 'none'}>"
        raise InputError(
            f"vectors=chroma:{place}: {which}{hint if collection is None else did_you_mean(collection, names)}"
        )
    return ChromaStore(f"chroma:{place} ({collection})", client.get_collection(collection, embedding_function=None))
