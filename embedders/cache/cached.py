"""The cache that stands between everything and an embedder: no stored text is ever sent again.

    cached = CachedEmbedder(MiniLM(), Path("~/.cache/unembed/embeddings").expanduser())
    cached.fill(training_texts, "training")      # once, with a progress bar; resumable
    vectors = cached.view(training_texts)        # vectors[[5, 7]] -> (2, d), read from the disk
    cached.embed(["a hypothesis"])               # (1, d), asking the embedder only if the text is new

The key of a vector is the embedder's fingerprint and the exact characters of the text, so all data sets, splits, runs
and processes share one cache. ``kill -9`` loses at most the shard that is being written.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from embedders.base import Embedder, Observed, QueryLimitError, Remote, UnfinishedError
from embedders.cache.claims import claiming
from embedders.cache.description import describe, dimension_known
from embedders.cache.index import ABSENT, KeySet, Positions, Values, distinct
from embedders.cache.progress import Progress
from embedders.cache.shards import DamagedShardError, Keys, Vectors, text_keys
from embedders.cache.soundness import flaw, sound
from embedders.cache.store import ShardStore, full_disk_explained
from errors import InputError

log = logging.getLogger(__name__)

Purpose = Literal["training", "attack", "scoring"]

_TEXTS_AT_ONCE = 256
# Rows as wide as a language model's logits are asked for and written in smaller pieces: 64 MB, 256 MB
_NUMBERS_AT_ONCE, _NUMBERS_OF_A_SHARD = 2**24, 2**26
_KEYS_AT_ONCE = 2**17
_SHOWN_CHARACTERS = 40  # of a text in an error message
# Waits for texts that another process sends: for the next look, and in all without a new vector (a server may ask for
# ten minutes, and a shard be written a minute later)
_LOOK_SECONDS, _CLAIM_SECONDS = 1.0, 900.0
_APPEARANCE_SECONDS = (0.1, 0.4, 1.5, 6.0, 20.0)  # waits for other ranks' shards to appear on a network disk


class Queries:
    """What was asked of the cache and what of the embedder, by purpose, in this process.

    Attributes:
        limit: What was said when a limit of the embedder ended a call of ``CachedEmbedder.embed``; None until then.
    """

    def __init__(self) -> None:
        self.limit: str | None = None
        self._asked = {purpose: KeySet() for purpose in get_args(Purpose)}
        self._sent = dict.fromkeys(get_args(Purpose), 0)

    @property
    def asked(self) -> dict[Purpose, int]:
        """Distinct texts asked for, cached or not."""
        return {purpose: len(keys) for purpose, keys in self._asked.items()}

    def keys(self, purpose: Purpose) -> NDArray[np.uint64]:
        """A 64-bit key of each distinct text asked for, (n,): the union over ranks counts a text once."""
        return self._asked[purpose].array()

    @property
    def sent(self) -> dict[Purpose, int]:
        """Texts that were really sent to the embedder."""
        return dict(self._sent)

    def count_asked(self, purpose: Purpose, keys: Keys) -> None:
        self._asked[purpose].add(keys)

    def count_sent(self, purpose: Purpose, texts: int) -> None:
        self._sent[purpose] += texts


class CachedVectors:
    """The vectors of a fixed list of texts, read from the disk when they are indexed; 8 bytes of memory a text."""

    def __init__(self, store: ShardStore, locations: Values) -> None:
        self._store = store
        self._locations = locations

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


class _Pending:
    """Rows that wait for a shard to be worth writing; found by look-ups like stored ones."""

    def __init__(self, store: ShardStore) -> None:
        self.store = store
        self._lock = threading.Lock()  # after Ctrl-C is pressed twice, vectors may still arrive while this is written
        self.since = 0.0
        self._rows: dict[bytes, int] = {}
        self._keys: list[Keys] = []
        self._vectors: list[Vectors] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, keys: Keys, vectors: Vectors) -> None:
        with self._lock:
            if not self._rows:
                self.since = time.monotonic()
            for key in keys:
                self._rows[key.tobytes()] = len(self._rows)
            self._keys.append(keys)
            self._vectors.append(vectors)

    def find(self, keys: Keys) -> Values:
        """Row of each key, ABSENT where it does not wait; (n,)."""
        if not self._rows:
            return np.full(len(keys), ABSENT, dtype=np.int64)
        return np.array([self._rows.get(key.tobytes(), ABSENT) for key in keys], dtype=np.int64)

    def read(self, rows: Values) -> Vectors:
        self._vectors = [np.concatenate(self._vectors)]
        return self._vectors[0][rows]

    def flush(self, rows_to_come: int = 0) -> None:
        with self._lock:
            if self._rows:
                self.store.add(np.concatenate(self._keys), np.concatenate(self._vectors), rows_to_come)
                self._rows, self._keys, self._vectors = {}, [], []

    def flush_at_exit(self) -> None:
        try:
            self.flush()
        except InputError as error:  # at exit nobody is left to catch it
            print(f"embedding cache: {len(self)} vectors are lost: {error}", file=sys.stderr)


class CachedEmbedder:
    """An embedder that remembers, and counts what it was asked.

    Small calls are pooled: their vectors reach the disk when ``shard_size`` of them wait, at the first call later than
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
        """Nothing is read or written before the first call.

        Args:
            directory: Where all embedders' vectors lie, each in a folder of its own; made (0700) where missing.
            batch_size: Texts sent to the embedder at a time; None takes 256, fewer where their rows are very wide, or
                what a ``Remote`` one asks for.
            shard_size: Rows of a file; fewer where they are very wide.
            shard_seconds: Longest wait of a vector in memory while calls arrive.
        """
        self._embedder = embedder
        self._directory = directory
        self._given_batch_size = batch_size
        self._shard_size = shard_size
        self._shard_seconds = shard_seconds
        self.queries = Queries()

    @property
    def embedder(self) -> Embedder:
        """The embedder itself, for an attack that is given more than a black box; what it is asked is not counted."""
        return self._embedder

    @property
    def source(self) -> CachedEmbedder:
        """The cache that gives the embedder's own vectors: this one, unless it stands behind a defense."""
        return self

    @property
    def dimension(self) -> int:
        """Dimension of a vector; a server is asked for it where the cache does not know it."""
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
            QueryLimitError: A limit of the embedder is reached; it holds the texts that have a vector, and only these
                count as asked for.
            InputError: The embedder gave a wrong number of vectors, another dimension, or a vector that is not sound
                (``embedders.cache.soundness``): the others that arrived are stored. Or the disk is full.
        """
        keys = text_keys(texts)
        while True:
            try:
                self._send(texts, keys, self._unseen(texts, keys), purpose)
                vectors = torch.from_numpy(self._read(keys))
                self.queries.count_asked(purpose, keys)
                return vectors
            except (DamagedShardError, FileNotFoundError):
                self._store.refresh(force=True)  # a damaged shard is set aside by now: its texts count as unseen
            except QueryLimitError as error:
                self.queries.limit = str(error)
                done = np.flatnonzero(self._find(keys) != ABSENT)
                self.queries.count_asked(purpose, keys[done])
                raise QueryLimitError(str(error), done.tolist(), torch.from_numpy(self._read(keys[done]))) from error

    def fill(
        self,
        texts: Sequence[str],
        purpose: Purpose,
        *,
        rank: int = 0,
        world_size: int = 1,
        barrier: Callable[[], None] = lambda: None,
    ) -> None:
        """Make sure that all ``texts`` are stored and sound; every rank calls this with the same texts.

        Unseen texts are cut into batches by length first, and the batches are dealt to the ranks, so that their
        composition, and with it the last bit of a vector, does not depend on ``world_size``; nor does it on a call that
        was killed half-way, because shards hold whole batches.

        Raises:
            InputError: As ``embed``; what was embedded before is kept.
        """
        keys = text_keys(texts)
        self.queries.count_asked(purpose, keys)
        self.flush()
        barrier()  # what the other ranks had in memory is stored
        self._store.refresh(force=True)
        locations = self._store.find(keys)
        self._store.check(locations, lambda name: crc32(os.fsencode(name)) % world_size == rank)
        barrier()  # all shards are verified, each by one rank
        self._store.refresh(force=True)
        self._store.trust(self._store.find(keys))
        unseen = self._unseen(texts, keys)
        barrier()  # all ranks have seen the same; from here on there are new shards
        if rank == 0 and isinstance(self._embedder, Remote):
            self._embedder.announce(texts[position] for position in unseen.tolist())
        if world_size == 1 and isinstance(self._embedder, Remote):
            self._send_unclaimed(texts, keys, unseen, purpose)
        else:
            self._send(texts, keys, unseen, purpose, rank, world_size)
        self.flush()
        barrier()
        for seconds in _APPEARANCE_SECONDS if world_size > 1 else ():
            self._store.refresh(force=True)
            if not len(self._unseen(texts, keys)):
                break
            time.sleep(seconds)
        # Nothing is left, but where a rank has died or keeps its shards on a disk of its own.
        self._send(texts, keys, self._unseen(texts, keys), purpose)
        self.flush()

    def view(self, texts: Sequence[str]) -> CachedVectors:
        """The vectors of ``texts`` as an array on the disk.

        A damaged shard that ``fill`` has not met is found here, and its texts are embedded again.

        Raises:
            ValueError: A text is not stored: call ``fill`` first.
        """
        self.flush()
        locations = self._locations(texts)
        if (locations == ABSENT).any():
            raise ValueError(f"text {int((locations == ABSENT).argmax())} is not in the cache: call fill() first")
        while not self._store.check(locations):
            keys = text_keys(texts)
            self._send(texts, keys, self._unseen(texts, keys), "training")
            self.flush()
            locations = self._locations(texts)
        return CachedVectors(self._store, locations)

    def flush(self) -> None:
        """Write what waits in memory.

        Raises:
            InputError: The disk is full.
        """
        self._pending.flush()

    @cached_property
    def _rows_of_a_shard(self) -> int:
        return max(1, min(self._shard_size, _NUMBERS_OF_A_SHARD // self.dimension))

    @cached_property
    def _batch_size(self) -> int:
        if self._given_batch_size is not None:
            return self._given_batch_size
        if isinstance(self._embedder, Remote):
            return self._embedder.texts_at_once
        return max(1, min(_TEXTS_AT_ONCE, _NUMBERS_AT_ONCE // self.dimension))

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
    def _store(self) -> ShardStore:
        describe(self._folder, self._embedder, self.dimension)
        return ShardStore(self._folder, self.dimension, zeros=isinstance(self._embedder, Observed))

    @cached_property
    def _pending(self) -> _Pending:
        pending = _Pending(self._store)
        weakref.finalize(self, pending.flush_at_exit)  # runs when the object goes or the interpreter ends
        return pending

    def _locations(self, texts: Sequence[str]) -> Values:
        """Where each text is stored, ABSENT where it is not, (n,); block by block, since keys take twice the memory."""
        locations = np.empty(len(texts), dtype=np.int64)
        for begin in range(0, len(texts), _KEYS_AT_ONCE):
            block = slice(begin, begin + _KEYS_AT_ONCE)
            locations[block] = self._store.find(text_keys(texts[block]))
        return locations

    def _unseen(self, texts: Sequence[str], keys: Keys) -> Positions:
        """Positions of the distinct texts that are neither stored nor waiting, shortest first."""
        missing = np.flatnonzero(self._find(keys) == ABSENT)
        if len(missing):  # perhaps another process has stored them meanwhile
            self._store.refresh()
            missing = missing[self._find(keys[missing]) == ABSENT]
        missing = missing[distinct(keys[missing])]
        lengths = [len(texts[position]) for position in missing.tolist()]
        return missing[np.lexsort((keys[missing, 0], np.array(lengths, dtype=np.int64)))]

    def _find(self, keys: Keys) -> Values:
        """Anything but ABSENT for a key that is stored or waiting."""
        found = self._store.find(keys)
        absent = np.flatnonzero(found == ABSENT)
        found[absent] = self._pending.find(keys[absent])
        return found

    def _read(self, keys: Keys) -> Vectors:
        locations = self._store.find(keys)
        stored = locations != ABSENT
        if stored.all():
            return self._store.read(locations)
        vectors = np.empty((len(keys), self.dimension), dtype=np.float32)
        vectors[stored] = self._store.read(locations[stored])
        vectors[~stored] = self._pending.read(self._pending.find(keys[~stored]))
        return vectors

    def _send(
        self, texts: Sequence[str], keys: Keys, unseen: Positions, purpose: Purpose, rank: int = 0, world_size: int = 1
    ) -> None:
        """Embed this rank's batches of the texts at ``unseen``, and put them with what waits."""
        if not len(unseen):
            return
        batches = [unseen[start : start + self._batch_size] for start in range(0, len(unseen), self._batch_size)]
        # In no order of length: every rank gets as much work, and the time left can be told from the time past.
        order = np.random.default_rng(0).permutation(len(batches))[rank::world_size]
        rows_to_come = sum(len(batches[number]) for number in order)
        with Progress(rows_to_come, shown=rank == 0) as progress:
            for number in order:
                batch = batches[number]
                try:
                    self._ask([texts[position] for position in batch.tolist()], keys[batch], batch, purpose)
                except BaseException:  # Ctrl-C too: what has arrived is stored before anything else
                    self._pending.flush()
                    raise
                rows_to_come -= len(batch)
                waited = time.monotonic() - self._pending.since
                if len(self._pending) >= self._rows_of_a_shard or waited > self._shard_seconds:
                    self._pending.flush(rows_to_come)
                progress.advance(len(batch))

    def _send_unclaimed(self, texts: Sequence[str], keys: Keys, unseen: Positions, purpose: Purpose) -> None:
        """Embed those of the texts at ``unseen`` that no other process is about to pay for, and wait for the rest.

        What a process leaves that died, or met its limit, is embedded here. One that brings nothing for a long time is
        no longer waited for.
        """
        waiting_since = None
        while len(unseen):
            with full_disk_explained(self._folder, 8 * len(unseen)), claiming(self._folder, keys[unseen]) as mine:
                self._store.refresh(force=True)  # others may have stored some before they let them go
                free = unseen[mine]
                self._send(texts, keys, free[self._find(keys[free]) == ABSENT], purpose)
                self.flush()
            left = unseen[self._find(keys[unseen]) == ABSENT]
            if len(left) < len(unseen):
                waiting_since = None
            elif waiting_since is None:
                waiting_since = time.monotonic()
                log.info("%s: %d texts are being embedded by another process; waiting", self._folder, len(left))
            elif time.monotonic() - waiting_since > _CLAIM_SECONDS:
                return
            unseen = left
            if len(unseen):
                time.sleep(_LOOK_SECONDS)

    def _ask(self, texts: list[str], keys: Keys, positions: Positions, purpose: Purpose) -> None:
        """Put the vectors of one batch with what waits, as they arrive."""

        one_at_a_time = threading.Lock()  # they arrive in several threads

        def keep(rows: Sequence[int], vectors: Tensor) -> None:
            chosen = list(rows)
            with one_at_a_time:
                self.queries.count_sent(purpose, len(chosen))
                self._keep([texts[row] for row in chosen], keys[chosen], positions[chosen], vectors)

        if isinstance(self._embedder, Remote):
            self._embedder.deliver(texts, keep, self.dimension)
            return
        try:
            vectors = self._embedder.embed(texts)
        except UnfinishedError as error:
            if len(error.done):
                keep(error.done, error.vectors)
            raise
        keep(range(len(texts)), vectors)

    def _keep(self, texts: list[str], keys: Keys, positions: Positions, given: Tensor) -> None:
        """Put vectors with what waits, all but those that are not sound."""
        vectors = given.detach().to("cpu", torch.float32).numpy()
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise InputError(
                f"the embedder gave an array of shape {tuple(vectors.shape)} for {len(texts)} texts, "
                f"the first of them {_named(texts[0], positions[0])}"
            )
        if vectors.shape[1] != self.dimension:
            raise InputError(
                f"the embedder gave vectors of dimension {vectors.shape[1]} instead of {self.dimension}, the first of "
                f"them for {_named(texts[0], positions[0])}; where another model has its name now, it needs another "
                f"cache_dir than {self._directory}"
            )
        good = sound(vectors, zeros=self._store.zeros)
        if good.all():
            self._pending.add(keys, vectors)
            return
        self._pending.add(keys[good], vectors[good])
        bad = int(good.argmin())
        more = f", and for {int((~good).sum()) - 1} of the {len(good)} that came with it" if (~good).sum() > 1 else ""
        raise InputError(
            f"the embedder gave {flaw(vectors[bad])} for {_named(texts[bad], positions[bad])}{more}: it is not stored"
        )


def _named(text: str, position: int) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"text {position} ({shown!r})"
