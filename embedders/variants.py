"""The embedder with another pooling, without normalisation, or with a prefix: to tell what made unknown vectors.

for variant in variants(MiniLM()):
    variant.title, variant.embedder.embed(["hello"])     # "pooling=cls instead of mean", (1, 384)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unembed.embedders.base import Embedder
from unembed.embedders.transformer import TransformerEmbedder

POOLINGS = ("mean", "cls", "last")
PREFIXES = ("query: ", "passage: ", "search_query: ", "search_document: ")  # of E5, BGE and Nomic


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed embedder: its pooling or prefix has another value."""

    key: str
    value: str
    instead_of: str
    embedder: Embedder

    @property
    def title(self) -> str:
        """What distinguishes it, such as "pooling=cls instead of mean"."""
        return f"{self.key}={shown(self.value)} instead of {shown(self.instead_of)}"


def shown(value: str) -> str:
    """``value``, in quotes unless it is one word."""
    return value if value.isidentifier() else repr(value)


def variants(embedder: Embedder, *, prefixes: bool = False) -> list[Variant]:
    """Variants of an embedder that share its weights; none of an embedder other than a transformer run here.

    Args:
        embedder: The embedder.
        prefixes: Whether to include other prefixes, which change vectors little.
    """
    if not isinstance(embedder, TransformerEmbedder):
        return []
    poolings = [("pooling", one, embedder.pooling) for one in POOLINGS]
    added = [("prefix", one, embedder.prefix) for one in PREFIXES if prefixes]
    return [
        Variant(key, value, own, _changed(embedder, {key: value}))
        for key, value, own in [*poolings, *added]
        if value != own
    ]


def _changed(embedder: TransformerEmbedder, values: Mapping[str, Any]) -> TransformerEmbedder:
    changed = copy.copy(embedder)  # with the loaded weights
    changed.__dict__.pop("fingerprint", None)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed
