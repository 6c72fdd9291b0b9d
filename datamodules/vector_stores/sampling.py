"""A random sample of the vectors in a file, or in a vector store read through its client library; and its texts.

    store = open_store("chroma:db", dimension=384)
    sample = sample_store(store, dimension=384, limit=2000, seed=0)
    sample.ids, sample.vectors                     # 2,000 of the store's own ids, (2000, 384) float32
    stored_texts(store, [0, 7], "body")            # "body", {0: "I am Ada.", 7: "See you at noon."}

base.py lists the addresses of stores, vector_files.py the kinds of files. A store is only read. Its ids are listed
first, and only the vectors of a random sample are fetched. Passwords come from the environment and are refused in an
address; files are read in child processes (child.py), but for those of vector_files.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError, did_you_mean, listed
from unembed.datamodules.vector_stores.base import address_of, check_address, split_address
from unembed.datamodules.vector_stores.chroma import open_chroma
from unembed.datamodules.vector_stores.faiss_index import open_faiss
from unembed.datamodules.vector_stores.lancedb_folder import open_lancedb
from unembed.datamodules.vector_stores.milvus import open_milvus
from unembed.datamodules.vector_stores.pgvector import open_pgvector
from unembed.datamodules.vector_stores.qdrant import open_qdrant
from unembed.datamodules.vector_stores.search_engine import open_elasticsearch, open_opensearch
from unembed.datamodules.vector_stores.servers import open_pinecone, open_weaviate
from unembed.datamodules.vector_stores.vector_files import checked, read_vectors

if TYPE_CHECKING:
    from torch import Tensor

FETCHED_TOGETHER = 1000  # vectors asked of a store at once
STORE = "store"  # texts=store, texts=store:<field>
# What client libraries and frameworks call the text of a row.
FIELDS = ("document", "text", "page_content", "content", "chunk_text", "chunk", "passage", "body")
LOOKED_AT = 20  # rows whose fields are known before one is chosen


class VectorStore(Protocol):
    """Vectors under ids."""

    name: str  # for messages and reports: no password in it
    ids: Sequence[str]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """The vectors of ``ids[position]`` for each position, (n, d), in the order asked for."""
        ...


@runtime_checkable
class TextStore(VectorStore, Protocol):
    """A store that holds texts, too."""

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """Text fields of ``ids[position]`` for each position, by name; only ``field``, where one is given."""
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
    """The store at ``vectors``; ``collection`` chooses within it, and may be left out if there is only one.

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


def sample_of(vectors: str, dimension: int | None, collection: str | None, limit: int) -> Tensor:
    """Up to ``limit`` vectors of the store at ``vectors``, (n, d), whose dimension may be unknown."""
    store = open_store(vectors, dimension or 0, collection)
    return sample_store(store, dimension or store.fetch([0]).shape[1], limit).vectors


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
    vectors = checked(np.concatenate([store.fetch(part) for part in _parts(positions)]), store.name, dimension)
    return Sample(store.name, size, tuple(positions), tuple(store.ids[place] for place in positions), vectors)


def _parts(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    return (positions[start : start + FETCHED_TOGETHER] for start in range(0, len(positions), FETCHED_TOGETHER))


def held_by_store(texts: str | None) -> bool:
    """Whether ``texts`` is ``store`` or ``store:<field>``: the true texts are those beside the vectors."""
    return texts is not None and texts.partition(":")[0] == STORE and not Path(texts).exists()


def stored_texts(store: VectorStore, positions: Sequence[int], field: str | None) -> tuple[str, dict[int, str]]:
    """The field that was read, and the texts by position, without blank ones.

    Without a field the first of ``FIELDS`` that the rows have is taken, or the only text of each row.

    Raises:
        InputError: The store holds vectors alone; no such field, none that can be chosen, or no text in it.
    """
    if not isinstance(store, TextStore):
        raise InputError(f"texts=store: {store.name} holds vectors alone; give a file with the texts")
    known = sorted({name for texts in store.texts(positions[:LOOKED_AT]) for name in texts})
    if field is None:
        if not known:
            raise InputError(f"texts=store: {store.name} has no texts beside its vectors; give a file with the texts")
        field = next((name for name in FIELDS if name in known), known[0] if len(known) == 1 else None)
        if field is None:
            raise InputError(f"texts=store: {store.name} has several texts; give texts=store:<one of {listed(known)}>")
    by_position: dict[int, str] = {}
    for part in _parts(positions):
        for place, texts in zip(part, store.texts(part, field), strict=True):
            if (text := str(texts.get(field, ""))).strip():
                by_position[place] = text
    if not by_position:
        problem = f"no such text; {did_you_mean(field, known) if known else 'it holds no texts beside its vectors'}"
        if field in known:
            problem = f"no text in any of {len(positions)} rows"
        raise InputError(f"texts=store:{field}: {store.name} has {problem}")
    return field, by_position
