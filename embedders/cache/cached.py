"""The cached embedder: no stored text is ever sent to the embedder again.

    cached = CachedEmbedder(MiniLM(), Path("~/.cache/unembed/embeddings").expanduser())
    cached.fill(training_texts, "training")      # once, with a progress bar; resumable
    vectors = cached.view(training_texts)        # vectors[[5, 7]] -> (2, d), read from the disk
    cached.embed(["a hypothesis"])               # (1, d); calls the embedder only if the text is new

The key of a vector is the embedder's fingerprint and the exact characters of the text, so all data sets, splits, runs
and processes share one cache. ``kill -9`` loses at most the shard that is being written.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from unembed.embedders.base import Embedder, Observed, QueryLimitError, Remote
from unembed.embedders.cache.description import describe, dimension_known
from unembed.embedders.cache.index import ABSENT
from unembed.embedders.cache.queries import Purpose, Queries
from unembed.embedders.cache.rows import CachedVectors, Rows
from unembed.embedders.cache.sending import Sender
from unembed.embedders.cache.shards import DamagedShardError, text_keys
from unembed.embedders.cache.store import ShardStore

_NUMBERS_OF_A_SHARD = 2**26  # 256 MB of rows
_APPEARANCE_SECONDS = (0.1, 0.4, 1.5, 6.0, 20.0)  # waits for other ranks' shards to appear on a network disk


class CachedEmbedder:
    """An embedder with a cache on disk that counts queries.

    Vectors of small calls are buffered. They are written when ``shard_size`` of them wait, at the first call more than
    ``shard_seconds`` after the oldest, on ``flush`` and when the program ends.
    """

    def __init__(
        self,
        embedder: Embedder,
        directory: Path,
        *,
        batch_size: PositiveInt | None = None,
        shard_size: PositiveInt = 4096,
        shard_seconds: PositiveFloat = 60.0,
    ) -> None:
        """The cache is opened on first use.

        Args:
            directory: Cache with one folder for each embedder; created (0700) if missing.
            batch_size: Texts sent to the embedder at a time; None uses 256, fewer for a very large dimension, or
                ``Remote.texts_at_once``.
            shard_size: Rows of a file; fewer for a very large dimension.
            shard_seconds: Longest time that a vector stays in memory only while calls arrive.
        """
        self._embedder = embedder
        self._directory = directory
        self._batch_size = batch_size
        self._shard_size = shard_size
        self._shard_seconds = shard_seconds
        self.queries = Queries()

    @property
    def embedder(self) -> Embedder:
        """The embedder itself, for white-box attacks; direct calls to it are not counted as queries."""
        return self._embedder

    @property
    def source(self) -> CachedEmbedder:
        """The cache of undefended vectors: this object, unless a defense wraps it."""
        return self

    @property
    def dimension(self) -> int:
        """Dimension of a vector; requested from a server if the cache does not have it."""
        return self._dimension

    @property
    def max_tokens(self) -> int:
        return self._embedder.max_tokens

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    def embed(self, texts: Sequence[str], purpose: Purpose = "attack") -> Tensor:
        """Vectors of ``texts``, (n, d) float32; the embedder is asked for each unseen text once.

        Raises:
            QueryLimitError: A limit of the embedder is reached; the error holds the texts that have a vector, and only
                these count as asked for.
            InputError: The disk is full; or the embedder returned a wrong number of vectors, another dimension, or an
                unsound vector (``unembed.embedders.cache.soundness``): the other vectors are stored.
        """
        keys = text_keys(texts)
        while True:
            try:
                self._sender.send(texts, keys, self._rows.unseen(texts, keys), self._count(purpose))
                vectors = torch.from_numpy(self._rows.read(keys))
                self.queries.count_asked(purpose, keys)
                return vectors
            except (DamagedShardError, FileNotFoundError):
                self._rows.store.refresh(force=True)  # a damaged shard is set aside by now: its texts count as unseen
            except QueryLimitError as error:
                self.queries.limit = str(error)
                done = np.flatnonzero(self._rows.find(keys) != ABSENT)
                self.queries.count_asked(purpose, keys[done])
                vectors = torch.from_numpy(self._rows.read(keys[done]))
                raise QueryLimitError(str(error), done.tolist(), vectors) from error

    def missing(self, texts: Sequence[str]) -> list[str]:
        """The distinct texts without a stored vector."""
        return [texts[position] for position in self._rows.unseen(texts, text_keys(texts)).tolist()]

    def fill(
        self,
        texts: Sequence[str],
        purpose: Purpose,
        *,
        rank: int = 0,
        world_size: int = 1,
        barrier: Callable[[], None] = lambda: None,
    ) -> None:
        """Store the vectors of all ``texts``; every rank calls this with the same texts.

        Unseen texts are batched by length before the batches are distributed over the ranks. So the composition of a
        batch, and with it the last bits of a vector, does not depend on ``world_size``. It does not depend on an
        interrupted earlier call either, because shards hold whole batches.

        Raises:
            InputError: As ``embed``; vectors embedded before the error are stored.
        """
        keys = text_keys(texts)
        self.queries.count_asked(purpose, keys)
        rows, store, sender, count = self._rows, self._rows.store, self._sender, self._count(purpose)
        rows.flush()
        barrier()  # the buffers of all ranks are stored
        store.refresh(force=True)
        store.check(store.find(keys), lambda name: crc32(os.fsencode(name)) % world_size == rank)
        barrier()  # all shards are verified, each by one rank
        store.refresh(force=True)
        store.trust(store.find(keys))
        unseen = rows.unseen(texts, keys)
        barrier()  # all ranks have the same unseen texts; new shards are written from here on
        if rank == 0 and isinstance(self._embedder, Remote):
            self._embedder.announce(texts[position] for position in unseen.tolist())
        if world_size == 1 and isinstance(self._embedder, Remote):
            sender.send_unclaimed(texts, keys, unseen, count)
        else:
            sender.send(texts, keys, unseen, count, rank, world_size)
        rows.flush()
        barrier()
        for seconds in _APPEARANCE_SECONDS if world_size > 1 else ():
            store.refresh(force=True)
            if not len(rows.unseen(texts, keys)):
                break
            time.sleep(seconds)
        # Nothing is left, unless a rank has died or writes its shards to a local disk.
        sender.send(texts, keys, rows.unseen(texts, keys), count)
        rows.flush()

    def view(self, texts: Sequence[str]) -> CachedVectors:
        """The vectors of ``texts`` as an array on disk.

        If a shard is damaged since ``fill``, its texts are embedded again.

        Raises:
            ValueError: A text is not stored: call ``fill`` first.
        """
        while (vectors := self._rows.view(texts)) is None:
            keys = text_keys(texts)
            self._sender.send(texts, keys, self._rows.unseen(texts, keys), self._count("training"))
        return vectors

    def flush(self) -> None:
        """Write buffered vectors to disk.

        Raises:
            InputError: The disk is full.
        """
        self._rows.flush()

    @cached_property
    def _folder(self) -> Path:
        return self._directory / self.fingerprint[:16]

    @cached_property
    def _dimension(self) -> int:
        if not isinstance(self._embedder, Remote):
            return self._embedder.dimension
        known = dimension_known(self._folder, self._embedder)
        if known is not None:
            return known
        dimension = self._embedder.dimension
        describe(self._folder, self._embedder, dimension)  # at once: it may have cost a query
        return dimension

    @cached_property
    def _rows(self) -> Rows:
        describe(self._folder, self._embedder, self.dimension)
        store = ShardStore(self._folder, self.dimension, zeros=isinstance(self._embedder, Observed))
        rows = Rows(store, max(1, min(self._shard_size, _NUMBERS_OF_A_SHARD // self.dimension)), self._shard_seconds)
        weakref.finalize(self, rows.flush_at_exit)  # runs when the object goes or the interpreter ends
        return rows

    @cached_property
    def _sender(self) -> Sender:
        return Sender(self._embedder, self._rows, self._batch_size)

    def _count(self, purpose: Purpose) -> Callable[[int], None]:
        return lambda texts: self.queries.count_sent(purpose, texts)
