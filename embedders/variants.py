"""The embedder with another pooling, without normalisation, or with a prefix: to tell what made unknown vectors.

for variant in variants(MiniLM()):
    variant.title, variant.embedder.embed(["hello"])     # "pooling=cls instead of mean", (1, 384)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embedders.base import Embedder
from embedders.transformer import TransformerEmbedder

POOLINGS = ("mean", "cls", "last")
PREFIXES = ("query: ", "passage: ", "search_query: ", "search_document: ")  # of E5, BGE and Nomic


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed embedder and what distinguishes it."""

    title: str
    embedder: Embedder


def variants(embedder: Embedder, *, prefixes: bool = False) -> list[Variant]:
    """Variants of an embedder that share its weights; none of an embedder other than a transformer run here.

    Args:
        embedder: The embedder.
        prefixes: Whether to include other prefixes, which change vectors little.
    """
    if not isinstance(embedder, TransformerEmbedder):
        return []
    own = embedder.pooling
    found = [
        Variant(f"pooling={pooling} instead of {own}", _changed(embedder, {"pooling": pooling}))
        for pooling in POOLINGS
        if pooling != own
    ]
    for prefix in PREFIXES if prefixes else ():
        if prefix != embedder.prefix:
            found.append(
                Variant(f"prefix={prefix!r} instead of {embedder.prefix!r}", _changed(embedder, {"prefix": prefix}))
            )
    return found


def _changed(embedder: TransformerEmbedder, values: Mapping[str, Any]) -> TransformerEmbedder:
    changed = copy.copy(embedder)  # with the loaded weights
    changed.__dict__.pop("fingerprint", None)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed
