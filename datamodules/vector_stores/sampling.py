"""A random sample of the vectors in a file, or in a vector store read through its client library.

    sample = sample_store(open_store("chroma:db"), dimension=384, limit=2000, seed=0)
    sample.ids, sample.vectors                     # 2,000 of the store's own ids, (2000, 384) float32

    mine.npy, .parquet, .safetensors, .jsonl       a file, see datamodules/vector_stores/vector_files.py
    mine.faiss, faiss:mine.index                   a FAISS index
    chroma:folder, chroma:http://host:8000         Chroma, a persistent folder or a server
    qdrant:folder, qdrant:http://host:6333         Qdrant, a local folder or a server
    milvus:folder.db, milvus:http://host:19530     Milvus Lite's folder or a Milvus server
    lancedb:folder                                 LanceDB
    weaviate:http://host:8080                      Weaviate
    opensearch:https://host, elasticsearch:https://host
    pinecone:index                                 Pinecone
    postgresql://user@host/database                PostgreSQL with pgvector

A store is only read. Its ids are listed first, and only the vectors of a random sample are fetched. Passwords come from
the environment and are refused in an address (address.py); files are read in child processes (child.py), but for
those of vector_files.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError, did_you_mean
from unembed.datamodules.vector_stores.address import check_address, split_address
from unembed.datamodules.vector_stores.chroma import open_chroma
from unembed.datamodules.vector_stores.faiss_index import open_faiss
from unembed.datamodules.vector_stores.folders import address_of
from unembed.datamodules.vector_stores.lancedb_folder import open_lancedb
from unembed.datamodules.vector_stores.milvus import open_milvus
from unembed.datamodules.vector_stores.pgvector import open_pgvector
from unembed.datamodules.vector_stores.pinecone_index import open_pinecone
from unembed.datamodules.vector_stores.qdrant import open_qdrant
from unembed.datamodules.vector_stores.search_engine import open_elasticsearch, open_opensearch
from unembed.datamodules.vector_stores.vector_files import checked, read_vectors
from unembed.datamodules.vector_stores.weaviate_server import open_weaviate

if TYPE_CHECKING:
    from torch import Tensor

FETCHED_TOGETHER = 1000  # vectors asked of a store at once


class VectorStore(Protocol):
    """Vectors under ids."""

    name: str  # for messages and reports: no password in it
    ids: Sequence[str]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """The vectors of ``ids[position]`` for each position, (n, d), in the order asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of a store, in the store's order.

    Attributes:
        name: Of the store.
        size: Rows of the whole store.
        positions: Places in the store, 0-based.
        ids: What the store calls these rows.
        vectors: (n, d) float32.
    """

    name: str
    size: int
    positions: tuple[int, ...]
    ids: tuple[str, ...]
    vectors: Tensor


class ArrayStore:
    """An array of vectors, (n, d); its ids are row numbers from 0."""

    def __init__(self, name: str, vectors: NDArray[Any]) -> None:
        self.name, self._vectors = name, vectors
        self.ids: Sequence[str] = [str(row) for row in range(len(vectors))]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        return self._vectors[list(positions)]


class TextArray(ArrayStore):
    """An array of vectors and the texts of its rows, empty where they are unknown."""

    def __init__(self, name: str, vectors: NDArray[Any], texts: Sequence[str]) -> None:
        super().__init__(name, vectors)
        self._texts = texts

    def texts(self, positions: Sequence[int], field: str | None = None) -> list[dict[str, str]]:
        """See TextStore."""
        return [{"text": self._texts[position]} for position in positions]


def open_store(vectors: str, dimension: int, collection: str | None = None) -> VectorStore:
    """The store that ``vectors`` names; ``collection`` chooses within it, and may be left out where there is one only.

    Raises:
        InputError: No such file, folder, server or collection; an unknown kind; a client library that is not installed;
            an address with a password in it.
    """
    kinds: Mapping[str, Callable[[str, str | None], VectorStore]] = {
        "chroma": open_chroma,
        "faiss": open_faiss,
        "qdrant": open_qdrant,
        "milvus": open_milvus,
        "lancedb": open_lancedb,
        "weaviate": open_weaviate,
        "opensearch": open_opensearch,
        "elasticsearch": open_elasticsearch,
        "pinecone": open_pinecone,
        "postgresql": open_pgvector,
    }
    check_address(vectors)
    kind, place = split_address(vectors)
    if kind in kinds and not Path(vectors).exists():
        return kinds[kind](place, collection)
    if Path(vectors).suffix == ".faiss":
        return open_faiss(vectors, collection)
    if kind and not Path(vectors).suffix:
        raise InputError(f"vectors={vectors}: unknown kind of store {kind!r}, {did_you_mean(kind, kinds)}")
    if (address := address_of(Path(vectors).expanduser())) is not None:
        raise InputError(f"vectors={vectors}: belongs to a store; give vectors={address}")
    if collection is not None:
        raise InputError(f"collection={collection}: a file has no collections; leave it out")
    return ArrayStore(vectors, read_vectors(Path(vectors).expanduser(), dimension).numpy())


def sample_store(
    store: VectorStore, dimension: int, limit: int | None = None, seed: int = 0, wanted: Collection[int] = ()
) -> Sample:
    """All rows, or ``limit`` of them at random, taken from those ``wanted`` (positions) first.

    Raises:
        InputError: An empty store; vectors of another dimension, NaN, infinite or zero.
    """
    size = len(store.ids)
    if not size:
        raise InputError(f"vectors={store.name}: holds no vectors")
    first = set(wanted)
    order = np.random.default_rng(seed).permutation(size).tolist()
    order.sort(key=lambda place: place not in first)  # stable: random within both parts
    positions = sorted(order[:limit])
    parts = [
        store.fetch(positions[start : start + FETCHED_TOGETHER]) for start in range(0, len(positions), FETCHED_TOGETHER)
    ]
    vectors = checked(np.concatenate(parts), store.name, dimension)
    return Sample(store.name, size, tuple(positions), tuple(store.ids[place] for place in positions), vectors)
