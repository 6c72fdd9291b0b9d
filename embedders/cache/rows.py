"""The stored vectors of one embedder: rows in shards, and buffered rows that are not written yet.

rows.unseen(texts, keys)         # positions of the texts that have no row, shortest first
rows.add(keys[:2], vectors)      # buffered in memory
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

from unembed.core.errors import InputError
from unembed.core.temporary_map import MappedArray
from unembed.embedders.cache.index import ABSENT, Positions, Values, distinct
from unembed.embedders.cache.shards import DamagedShardError, Keys, Vectors, text_keys
from unembed.embedders.cache.store import ShardStore

_KEYS_AT_ONCE = 2**17


class CachedVectors:
    """The vectors of a fixed list of texts; vectors and their locations are read from disk when indexed."""

    def __init__(self, store: ShardStore, locations: Values) -> None:
        self._store = store
        self._locations = MappedArray(locations)

    def __len__(self) -> int:
        return len(self._locations)

    def __getitem__(self, indices: slice | Positions | Tensor | list[int]) -> Tensor:
        """Vectors at ``indices``, (m, d) float32.

        Raises:
            InputError: A file of the cache was removed or damaged while in use.
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
    """A store of shards with a buffer of rows.

    Args:
        store: The shards.
        shard_size: Rows of a shard.
        shard_seconds: Longest time that a row stays in the buffer while ``flush_if_due`` is called.
    """

    def __init__(self, store: ShardStore, shard_size: int, shard_seconds: float) -> None:
        self.store, self._shard_size, self._shard_seconds = store, shard_size, shard_seconds
        self._lock = threading.Lock()  # after a second Ctrl-C, vectors may still arrive while these are written
        self._since = 0.0
        self._places: dict[bytes, int] = {}
        self._keys: list[Keys] = []
        self._vectors: list[Vectors] = []

    def find(self, keys: Keys) -> Values:
        """For each of ``keys``, ABSENT unless it is stored or buffered, (n,)."""
        found = self.store.find(keys)
        absent = np.flatnonzero(found == ABSENT)
        found[absent] = self._waiting(keys[absent])
        return found

    def unseen(self, texts: Sequence[str], keys: Keys) -> Positions:
        """Positions of the distinct texts without a row, shortest first."""
        missing = np.flatnonzero(self.find(keys) == ABSENT)
        if len(missing):  # another process may have stored some of them, or removed others
            self.store.refresh()
            missing = np.flatnonzero(self.find(keys) == ABSENT)
        missing = missing[distinct(keys[missing])]
        lengths = [len(texts[position]) for position in missing.tolist()]
        return missing[np.lexsort((keys[missing, 0], np.array(lengths, dtype=np.int64)))]

    def read(self, keys: Keys) -> Vectors:
        """The vectors of ``keys``, (n, d).

        Raises:
            DamagedShardError: A key has no row any more; see also ``ShardStore.read``.
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
        """The vectors of ``texts`` on disk; None if one of their shards was damaged and has been set aside.

        Raises:
            ValueError: A text is not stored.
        """
        self.flush()
        locations = np.empty(len(texts), dtype=np.int64)
        for begin in range(0, len(texts), _KEYS_AT_ONCE):  # in blocks: keys take twice the memory of locations
            block = slice(begin, begin + _KEYS_AT_ONCE)
            locations[block] = self.store.find(text_keys(texts[block]))
        if (locations == ABSENT).any():
            raise ValueError(f"text {int((locations == ABSENT).argmax())} is not in the cache: call fill() first")
        return CachedVectors(self.store, locations) if self.store.check(locations) else None

    def add(self, keys: Keys, vectors: Vectors) -> None:
        """Buffer rows in memory."""
        with self._lock:
            if not self._places:
                self._since = time.monotonic()
            for key in keys:
                self._places[key.tobytes()] = len(self._places)
            self._keys.append(keys)
            self._vectors.append(vectors)

    def flush(self, rows_to_come: int = 0) -> None:
        """Write the buffered rows; ``rows_to_come`` is used in the message about a full disk.

        Raises:
            InputError: The disk is full.
        """
        with self._lock:
            if self._places:
                self.store.add(np.concatenate(self._keys), np.concatenate(self._vectors), rows_to_come)
                self._places, self._keys, self._vectors = {}, [], []

    def flush_if_due(self, rows_to_come: int) -> None:
        """Write the buffered rows if they fill a shard or have waited too long."""
        if len(self._places) >= self._shard_size or time.monotonic() - self._since > self._shard_seconds:
            self.flush(rows_to_come)

    def flush_at_exit(self) -> None:
        """Write the buffered rows; the error of a full disk is printed, since nothing can catch it at exit."""
        try:
            self.flush()
        except InputError as error:
            print(f"embedding cache: {len(self._places)} vectors are lost: {error}", file=sys.stderr)

    def _waiting(self, keys: Keys) -> Values:
        """The position of each key in the buffer, ABSENT if it is not there; (n,)."""
        if not self._places:
            return np.full(len(keys), ABSENT, dtype=np.int64)
        return np.array([self._places.get(key.tobytes(), ABSENT) for key in keys], dtype=np.int64)
