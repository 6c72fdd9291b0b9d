"""The rows of one embedder that need not be embedded again: those in shards, and those that wait to be written.

rows.unseen(texts, keys)         # positions of the texts that have no row, shortest first
rows.add(keys[:2], vectors)      # in memory, and found from now on
rows.flush()                     # on the disk
rows.view(texts)[[5, 7]]         # (2, d), read from the disk
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embedders.cache.index import ABSENT, Positions, Values, distinct
from embedders.cache.shards import DamagedShardError, Keys, Vectors, text_keys
from embedders.cache.store import ShardStore
from errors import InputError
from temporary_map import MappedArray

_KEYS_AT_ONCE = 2**17


class CachedVectors:
    """The vectors of a fixed list of texts, read from the disk when they are indexed, as their places are."""

    def __init__(self, store: ShardStore, locations: Values) -> None:
        self._store = store
        self._locations = MappedArray(locations)

    def __len__(self) -> int:
        return len(self._locations)

    def __getitem__(self, indices: slice | Positions | Tensor | list[int]) -> Tensor:
        """Vectors at ``indices``, (m, d) float32.

        Raises:
            InputError: A file of the cache went away or was damaged while it was in use.
        """
        chosen = indices.numpy() if isinstance(indices, Tensor) else indices
        try:
            return torch.from_numpy(self._store.read(np.atleast_1d(self._locations[chosen])))
        except (DamagedShardError, FileNotFoundError) as error:
            raise InputError(
                f"the embedding cache {self._store.folder} changed while it was in use: {error}; "
                "run the command again, and what is missing is embedded again"
            ) from error


class Rows:
    """A store of shards, and the rows that wait for a shard to be worth writing.

    Args:
        store: Where rows are written.
        shard_size: Rows of a shard.
        shard_seconds: Longest wait of a row while ``flush_if_due`` is called.
    """

    def __init__(self, store: ShardStore, shard_size: int, shard_seconds: float) -> None:
        self.store, self._shard_size, self._shard_seconds = store, shard_size, shard_seconds
        self._lock = threading.Lock()  # after a second Ctrl-C, vectors may still arrive while these are written
        self._since = 0.0
        self._places: dict[bytes, int] = {}
        self._keys: list[Keys] = []
        self._vectors: list[Vectors] = []

    def find(self, keys: Keys) -> Values:
        """Anything but ABSENT for each of ``keys`` that is stored or waits, (n,)."""
        found = self.store.find(keys)
        absent = np.flatnonzero(found == ABSENT)
        found[absent] = self._waiting(keys[absent])
        return found

    def unseen(self, texts: Sequence[str], keys: Keys) -> Positions:
        """Positions of the distinct texts without a row, shortest first."""
        missing = np.flatnonzero(self.find(keys) == ABSENT)
        if len(missing):  # perhaps another process has stored them meanwhile, or removed others
            self.store.refresh()
            missing = np.flatnonzero(self.find(keys) == ABSENT)
        missing = missing[distinct(keys[missing])]
        lengths = [len(texts[position]) for position in missing.tolist()]
        return missing[np.lexsort((keys[missing, 0], np.array(lengths, dtype=np.int64)))]

    def read(self, keys: Keys) -> Vectors:
        """The vectors of ``keys``, (n, d).

        Raises:
            DamagedShardError: One of them has no row any more; or see ``ShardStore.read``.
        """
        locations = self.store.find(keys)
        stored = locations != ABSENT
        if stored.all():
            return self.store.read(locations)
        vectors = np.empty((len(keys), self.store.dimension), dtype=np.float32)
        vectors[stored] = self.store.read(locations[stored])
        places = self._waiting(keys[~stored])
        if (places == ABSENT).any():
            raise DamagedShardError(f"a shard of {self.store.folder} has been removed")
        self._vectors = [np.concatenate(self._vectors)]
        vectors[~stored] = self._vectors[0][places]
        return vectors

    def view(self, texts: Sequence[str]) -> CachedVectors | None:
        """The vectors of ``texts`` on the disk; None where a shard of theirs was damaged and has been set aside.

        Raises:
            ValueError: A text is not stored.
        """
        self.flush()
        locations = np.empty(len(texts), dtype=np.int64)
        for begin in range(0, len(texts), _KEYS_AT_ONCE):  # in blocks, since keys take twice the memory of locations
            block = slice(begin, begin + _KEYS_AT_ONCE)
            locations[block] = self.store.find(text_keys(texts[block]))
        if (locations == ABSENT).any():
            raise ValueError(f"text {int((locations == ABSENT).argmax())} is not in the cache: call fill() first")
        return CachedVectors(self.store, locations) if self.store.check(locations) else None

    def add(self, keys: Keys, vectors: Vectors) -> None:
        """Have rows wait in memory."""
        with self._lock:
            if not self._places:
                self._since = time.monotonic()
            for key in keys:
                self._places[key.tobytes()] = len(self._places)
            self._keys.append(keys)
            self._vectors.append(vectors)

    def flush(self, rows_to_come: int = 0) -> None:
        """Write what waits; ``rows_to_come`` are counted in the message about a full disk.

        Raises:
            InputError: The disk is full.
        """
        with self._lock:
            if self._places:
                self.store.add(np.concatenate(self._keys), np.concatenate(self._vectors), rows_to_come)
                self._places, self._keys, self._vectors = {}, [], []

    def flush_if_due(self, rows_to_come: int) -> None:
        """Write what waits where it fills a shard, or waits too long."""
        if len(self._places) >= self._shard_size or time.monotonic() - self._since > self._shard_seconds:
            self.flush(rows_to_come)

    def flush_at_exit(self) -> None:
        """Write what waits; a full disk is printed, since nobody is left to catch it."""
        try:
            self.flush()
        except InputError as error:
            print(f"embedding cache: {len(self._places)} vectors are lost: {error}", file=sys.stderr)

    def _waiting(self, keys: Keys) -> Values:
        """The place of each key among those that wait, ABSENT where it does not; (n,)."""
        if not self._places:
            return np.full(len(keys), ABSENT, dtype=np.int64)
        return np.array([self._places.get(key.tobytes(), ABSENT) for key in keys], dtype=np.int64)
