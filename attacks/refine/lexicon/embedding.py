"""Vectors of many texts, block by block, and which of them an embedder tells apart.

for block in unit_vectors(words, oracle, "lexicon", key="attack.words", why="each word is embedded once"):
    rounded(block)      # (n, d), int16
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unembed.core.errors import InputError
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder, Purpose

AT_ONCE = 4096  # texts of a block


def unit_vectors(
    texts: Sequence[str], oracle: CachedEmbedder, purpose: Purpose, *, key: str, why: str
) -> Iterator[Tensor]:
    """Unit vectors (n, d) of each block of texts.

    Args:
        texts: To embed.
        oracle: Embeds them, those that are not cached.
        purpose: Under which they are counted.
        key: The setting that asks for them, for messages.
        why: What is embedded, for messages.

    Raises:
        InputError: A limit of the embedder is reached.
    """
    for begin in range(0, len(texts), AT_ONCE):
        try:
            found = oracle.embed(texts[begin : begin + AT_ONCE], purpose)
        except QueryLimitError as error:
            raise InputError(f"{key}: {error} {why}") from error
        yield torch.nn.functional.normalize(found, dim=1)


def rounded(vectors: Tensor) -> NDArray[np.int16]:
    """Unit vectors, (n, d), in steps of which the last bits of an embedding are a small part."""
    found: NDArray[np.int16] = (vectors * 10_000).round().to(torch.int16).numpy()
    return found
