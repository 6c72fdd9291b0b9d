"""Vectors and texts of the stores that LangChain and LlamaIndex keep in memory, for ``unembed.audit_vectors(store)``.

    in_memory(InMemoryVectorStore(...))        # LangChain
    in_memory(SimpleVectorStore(...))          # LlamaIndex: vectors alone
    in_memory(VectorStoreIndex(...))           # LlamaIndex, with the texts of its nodes

Neither library is imported: a store is known by its attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError


def in_memory(store: Any) -> tuple[NDArray[Any], list[str | None]] | None:
    """Vectors (n, d) and their texts, None where one is unknown; None for what is no such store.

    Raises:
        InputError: The store is empty.
    """
    rows: Mapping[str, tuple[Any, str | None]]
    if isinstance(inside := getattr(store, "store", None), Mapping):  # LangChain
        rows = {name: (row["vector"], row["text"]) for name, row in inside.items()}
    else:
        held, texts = getattr(store, "vector_store", store), getattr(getattr(store, "docstore", None), "docs", {})
        embeddings = getattr(getattr(held, "data", None), "embedding_dict", None)
        if not isinstance(embeddings, Mapping):
            return None
        rows = {name: (vector, getattr(texts.get(name), "text", None)) for name, vector in embeddings.items()}
    if not rows:
        raise InputError(f"vectors={type(store).__name__}: holds no vectors")
    return np.array([vector for vector, _ in rows.values()]), [text for _, text in rows.values()]
