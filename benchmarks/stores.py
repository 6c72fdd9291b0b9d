"""How fast unembed audit reads a vector store: ids listed, vectors and texts of a random sample, in rows per second.

    python benchmarks/stores.py qdrant:http://host:6333 --collection docs     # a store that is there; it is only read
    python benchmarks/stores.py --make milvus --rows 20000                    # one made of random vectors and texts

Made are those that need no server: chroma, faiss, lancedb, milvus (Milvus Lite), npy and qdrant. "open" is the start of
a child process, where the store is read in one, and the list of ids.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Clock, command_line
from numpy.typing import NDArray

from unembed.datamodules.vector_stores.sampling import TextStore, open_store, sample_store, stored_texts

TOGETHER = 5000  # rows that a client is given at once
Vectors = NDArray[np.float32]


def chroma(folder: Path, vectors: Vectors, texts: Sequence[str]) -> str:
    import chromadb

    client = chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False))
    docs = client.create_collection("docs", embedding_function=None)
    for start in range(0, len(vectors), TOGETHER):
        part = slice(start, start + TOGETHER)
        docs.add(ids=texts[part], embeddings=vectors[part], documents=texts[part])
    return f"chroma:{folder}"


def faiss(folder: Path, vectors: Vectors, texts: Sequence[str]) -> str:
    import faiss as library

    index = library.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    library.write_index(index, str(folder / "mine.faiss"))
    return str(folder / "mine.faiss")


def lancedb(folder: Path, vectors: Vectors, texts: Sequence[str]) -> str:
    import lancedb as library
    import pyarrow

    column = pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
    rows = pyarrow.table({"id": texts, "vector": column, "text": texts})
    library.connect(str(folder)).create_table("docs", rows)
    return f"lancedb:{folder}"


def milvus(folder: Path, vectors: Vectors, texts: Sequence[str]) -> str:
    from pymilvus import MilvusClient

    place = str(folder / "mine.db")
    client = MilvusClient(place)
    client.create_collection("docs", dimension=vectors.shape[1], metric_type="IP")
    for start in range(0, len(vectors), TOGETHER):
        rows = range(start, min(start + TOGETHER, len(vectors)))
        client.insert("docs", [{"id": row, "vector": vectors[row].tolist(), "text": texts[row]} for row in rows])
    client.close()
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(place)
    return f"milvus:{place}"


def npy(folder: Path, vectors: Vectors, texts: Sequence[str]) -> str:
    np.save(folder / "mine.npy", vectors)
    return str(folder / "mine.npy")


def qdrant(folder: Path, vectors: Vectors, texts: Sequence[str]) -> str:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder))
    size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection("docs", size)
    payloads = [{"text": text} for text in texts]
    client.upload_collection("docs", vectors, payloads, ids=range(len(vectors)))
    client.close()
    return f"qdrant:{folder}"


MAKERS: Mapping[str, Callable[[Path, Vectors, Sequence[str]], str]] = {
    "chroma": chroma, "faiss": faiss, "lancedb": lancedb, "milvus": milvus, "npy": npy, "qdrant": qdrant,
}  # fmt: skip


def measured(address: str, collection: str | None, dimension: int, limit: int) -> dict[str, Any]:
    """Seconds and rows per second of opening a store, and of reading a sample of it."""
    clock = Clock()
    begin = clock()
    store = open_store(address, dimension, collection)
    opened = clock()
    sample = sample_store(store, dimension, limit)
    fetched = clock()
    if isinstance(store, TextStore):
        stored_texts(store, sample.positions, None)
    ended = clock()
    rows = len(sample.ids)
    return {
        "rows": sample.size,
        "sample": rows,
        "open_s": round(opened - begin, 2),
        "ids_per_s": round(sample.size / (opened - begin)),
        "vectors_per_s": round(rows / (fetched - opened)),
        "texts_per_s": round(rows / (ended - fetched)) if isinstance(store, TextStore) else 0,
    }


def main(arguments: list[str] | None = None) -> None:
    """Make a store where one is asked for, read it, and print what it took."""
    parser = command_line(__doc__)
    parser.add_argument("address", nargs="?", help="as vectors= takes it")
    parser.add_argument("--collection", help="of an address, where it has several")
    parser.add_argument("--make", choices=sorted(MAKERS), help="make a store of this kind instead")
    parser.add_argument("--rows", type=int, default=20_000, help="of the store that is made")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--limit", type=int, default=2000, help="rows of the sample")
    options = parser.parse_args(arguments)
    if (options.address is None) == (options.make is None):
        parser.error("give an address or --make")
    with tempfile.TemporaryDirectory() as folder:
        address = options.address
        if options.make:
            drawn = np.random.default_rng(0).normal(size=(options.rows, options.dimension))
            vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
            texts = [f"the text of row {row}, which is as long as a short sentence is" for row in range(options.rows)]
            address = MAKERS[options.make](Path(folder), vectors, texts)
        found = measured(address, options.collection, options.dimension, options.limit)
    for name, value in found.items():
        print(f"{name:<14} {value:>10,}")
    print(json.dumps({"store": options.make or address.partition(":")[0], **found}))


if __name__ == "__main__":
    main()
