"""How fast unembed audit reads a vector store: ids listed, vectors and texts of a random sample, in rows per second.

    python benchmarks/stores.py qdrant:http://host:6333 --collection docs

The store is only read. "open" is the start of a child process, where the store is read in one, and the list of ids.
"""

from __future__ import annotations

import json
from typing import Any

from measuring import Clock, command_line

from unembed.datamodules.vector_stores.sampling import TextStore, open_store, sample_store, stored_texts


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
    parser = command_line(__doc__)
    parser.add_argument("address", help="as vectors= takes it")
    parser.add_argument("--collection", help="of an address, where it has several")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--limit", type=int, default=2000, help="rows of the sample")
    options = parser.parse_args(arguments)
    result = measured(options.address, options.collection, options.dimension, options.limit)
    for name, value in result.items():
        print(f"{name:<14} {value:>10,}")
    print(json.dumps({"store": options.address.partition(":")[0], **result}))


if __name__ == "__main__":
    main()
