"""Counts of the texts requested from the cache and sent to the embedder, by purpose, in this process."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unembed.embedders.cache.shards import Keys

Purpose = Literal["training", "attack", "scoring", "lexicon"]


class Queries:
    """Counts of texts.

    Attributes:
        limit: The message of the limit that ended a call of ``CachedEmbedder.embed``; None until then.
    """

    def __init__(self) -> None:
        self.limit: str | None = None
        self._sent: dict[Purpose, int] = dict.fromkeys(get_args(Purpose), 0)
        self._asked: dict[Purpose, KeySet] = {purpose: KeySet() for purpose in get_args(Purpose)}

    @property
    def asked(self) -> dict[Purpose, int]:
        """Distinct texts asked for, cached or not."""
        return {purpose: len(keys) for purpose, keys in self._asked.items()}

    @property
    def sent(self) -> dict[Purpose, int]:
        """Texts that were sent to the embedder."""
        return dict(self._sent)

    def keys(self, purpose: Purpose) -> NDArray[np.uint64]:
        """A 64-bit key of each distinct text asked for, (n,), to count a text once over all ranks."""
        return self._asked[purpose].array()

    def count_asked(self, purpose: Purpose, keys: Keys) -> None:
        self._asked[purpose].add(keys)

    def count_sent(self, purpose: Purpose, texts: int) -> None:
        self._sent[purpose] += texts


class KeySet:
    """Counts distinct keys, by their first 64 bits (8 bytes a key; two of five million collide once in a million)."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []  # sorted, each at least twice as long as the next

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def array(self) -> NDArray[np.uint64]:
        """The first halves of the keys, (n,), unordered."""
        return np.concatenate([np.empty(0, np.uint64), *self._runs])

    def add(self, keys: Keys) -> None:
        """Add ``keys`` (n, 2), which may contain known keys."""
        new = np.unique(keys[:, 0])
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, new), len(run) - 1)
            new = new[run[places] != new]
        if not len(new):
            return
        self._runs.append(new)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            merged.sort(kind="stable")
            self._runs.append(merged)
