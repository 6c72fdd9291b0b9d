"""The cached embedder: no stored text is ever sent to the embedder again.

    cached = CachedEmbedder(MiniLM(), Path("~/.cache/unembed/embeddings").expanduser())
    cached.fill(training_texts, "training")      # once, with a progress bar; resumable
    vectors = cached.view(training_texts)        # vectors[[5, 7]] -> (2, d), read from the disk
    cached.embed(["a hypothesis"])               # (1, d); calls the embedder only if the text is new
    cached.queries.asked["attack"]               # 1

The key of a vector is the embedder's fingerprint and the exact characters of the text, so all data sets, splits, runs
and processes share one cache. ``kill -9`` loses at most the shard that is being written.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.core.progress import Progress
from unembed.embedders.base import (
    Embedder,
    LogitsEmbedder,
    QueryLimitError,
    Remote,
    UnfinishedError,
    describe_invalid,
    estimated_tokens,
    valid_vectors,
)
from unembed.embedders.cache.shards import (
    ABSENT,
    DamagedShardError,
    Keys,
    Positions,
    ShardStore,
    distinct,
    make_private_folder,
    text_keys,
)

log = logging.getLogger(__name__)

Purpose = Literal["training", "attack", "scoring", "lexicon"]

_TEXTS_AT_ONCE = 256
_NUMBERS_AT_ONCE = 2**24  # 64 MB of rows: rows of logits are long
_NUMBERS_OF_A_SHARD = 2**26
_APPEARANCE_SECONDS = (0.1, 0.4, 1.5, 6.0, 20.0)  # waits for other ranks' shards to appear on a network disk
_LARGE_JOB = 10_000  # texts that are announced before they are embedded on this machine
_CALLS = 64  # whose keys are counted together
_SHOWN_CHARACTERS = 40  # of a text in an error message


class Queries:
    """Counts of texts, by purpose, in this process.

    Attributes:
        sent: Texts that were sent to the embedder.
        limit: The message of the limit that ended a call of ``CachedEmbedder.embed``; None until then.
    """

    def __init__(self) -> None:
        self.limit: str | None = None
        self.sent: dict[Purpose, int] = dict.fromkeys(get_args(Purpose), 0)
        self._keys: dict[Purpose, list[NDArray[np.uint64]]] = {purpose: [] for purpose in get_args(Purpose)}

    @property
    def asked(self) -> dict[Purpose, int]:
        """Distinct texts asked for, cached or not."""
        return {purpose: len(self.keys(purpose)) for purpose in self._keys}

    def keys(self, purpose: Purpose) -> NDArray[np.uint64]:
        """A 64-bit key of each distinct text asked for, (n,), to count a text once over all ranks.

        Two of five million texts share a key once in a million times.
        """
        self._keys[purpose] = [np.unique(np.concatenate([np.empty(0, np.uint64), *self._keys[purpose]]))]
        return self._keys[purpose][0]

    def count_asked(self, purpose: Purpose, keys: NDArray[np.uint64]) -> None:
        self._keys[purpose].append(keys)
        if len(self._keys[purpose]) > _CALLS:
            self.keys(purpose)


class CachedVectors:
    """The vectors of a fixed list of texts, read from disk when indexed."""

    def __init__(self, store: ShardStore, locations: Positions) -> None:
        self._store, self._locations = store, locations

    def __len__(self) -> int:
        return len(self._locations)

    def __getitem__(self, indices: slice | Positions | Tensor | list[int]) -> Tensor:
        """Vectors at ``indices``, (m, d) float32."""
        chosen = indices.numpy() if isinstance(indices, Tensor) else indices
        try:
            return torch.from_numpy(self._store.read(np.atleast_1d(self._locations[chosen])))
        except DamagedShardError as error:
            raise InputError(
                f"the embedding cache {self._store.folder} changed while it was in use: {error}; "
                "run the command again, and what is missing is embedded again"
            ) from error


class CachedEmbedder:
    """An embedder with a cache on disk that counts queries.

    Vectors of small calls are buffered. They are written when ``shard_size`` of them wait, at the first call more than
    ``shard_seconds`` after the oldest, on ``flush`` and when the program ends.

    Attributes:
        embedder: The embedder itself, for white-box attacks; direct calls to it are not counted as queries.
        queries: Counts of texts.
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
        self.embedder, self._directory = embedder, directory
        self._batch_size, self._most_rows, self._shard_seconds = batch_size, shard_size, shard_seconds
        self.queries = Queries()

    @property
    def source(self) -> CachedEmbedder:
        """The cache of undefended vectors: this object, unless a defense wraps it."""
        return self

    @cached_property
    def dimension(self) -> int:
        """Dimension of a vector; a server is asked for it once per cache."""
        if not isinstance(self.embedder, Remote):
            return self.embedder.dimension
        with contextlib.suppress(FileNotFoundError, InputError):
            if type(dimension := read_json(self._folder / "embedder.json").get("dimension")) is int:
                return dimension
        self._describe(self.embedder.dimension)  # at once: it may have cost a query
        return self.embedder.dimension

    @property
    def max_tokens(self) -> int:
        return self.embedder.max_tokens

    @property
    def fingerprint(self) -> str:
        return self.embedder.fingerprint

    def embed(self, texts: Sequence[str], purpose: Purpose = "attack") -> Tensor:
        """Vectors of ``texts``, (n, d) float32; the embedder is asked for each unseen text once.

        Raises:
            QueryLimitError: A limit of the embedder is reached; the error holds the texts that have a vector, and only
                these count as asked for.
            InputError: The embedder returned a wrong number of vectors, another dimension, or an invalid vector
                (``valid_vectors``): the other vectors are stored.
            OSError: The disk is full.
        """
        keys, store = text_keys(texts), self._store
        while True:
            try:
                self._send(texts, keys, self._unseen(texts, keys), purpose)
                vectors = torch.from_numpy(store.read(store.find(keys)))
                self.queries.count_asked(purpose, _halves(keys))
                return vectors
            except DamagedShardError:
                store.refresh(force=True)  # the shard is set aside by now: its texts count as unseen
            except QueryLimitError as error:
                self.queries.limit = str(error)
                done = np.flatnonzero(store.find(keys) != ABSENT)
                self.queries.count_asked(purpose, _halves(keys[done]))
                vectors = torch.from_numpy(store.read(store.find(keys[done])))
                raise QueryLimitError(str(error), done.tolist(), vectors) from error

    def missing(self, texts: Sequence[str]) -> list[str]:
        """The distinct texts without a stored vector."""
        return [texts[position] for position in self._unseen(texts, text_keys(texts)).tolist()]

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

        Errors are those of ``embed``; vectors embedded before the error are stored.
        """
        keys, store = text_keys(texts), self._store
        self.queries.count_asked(purpose, _halves(keys))
        store.flush()
        barrier()  # the buffers of all ranks are stored
        store.refresh(force=True)
        store.verify(store.find(keys))
        barrier()  # damaged shards are set aside
        store.refresh(force=True)
        unseen = self._unseen(texts, keys)
        barrier()  # all ranks have the same unseen texts; new shards are written from here on
        if rank == 0:
            self._log_cost([texts[position] for position in unseen.tolist()])
        in_turns = world_size == 1 and isinstance(self.embedder, Remote)
        self._send(texts, keys, unseen, purpose, rank, world_size, in_turns)
        store.flush()
        barrier()
        for seconds in _APPEARANCE_SECONDS if world_size > 1 else ():
            store.refresh(force=True)
            if not len(self._unseen(texts, keys)):
                break
            time.sleep(seconds)
        # Nothing is left, unless a rank has died or writes its shards to a local disk.
        self._send(texts, keys, self._unseen(texts, keys), purpose)
        store.flush()

    def _log_cost(self, texts: Sequence[str]) -> None:
        """Say how much there is to embed; ``Progress`` then says how long it takes."""
        if isinstance(self.embedder, Remote):
            self.embedder.log_cost(texts)
        elif len(texts) >= _LARGE_JOB:
            number, tokens = f"{len(texts):,}", f"{estimated_tokens(texts):,}"
            log.info("%s texts to embed, about %s tokens, on this machine", number, tokens)

    def view(self, texts: Sequence[str]) -> CachedVectors:
        """The vectors of ``texts``, which ``fill`` has stored; texts of a shard damaged since are embedded again."""
        keys, store = text_keys(texts), self._store
        store.flush()
        if (store.find(keys) == ABSENT).any():
            raise ValueError("a text is not in the cache: call fill() first")
        while not store.verify(locations := store.find(keys)):
            self._send(texts, keys, self._unseen(texts, keys), "training")
        return CachedVectors(store, locations)

    def flush(self) -> None:
        """Write buffered vectors to disk."""
        self._store.flush()

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """Inside, vectors that are computed here, and counts, are kept in memory until the end of the block alone.

        For millions of texts that nobody asks for again. Vectors that cost a server's time are stored as ever.
        """
        limit, seconds, counts = self._most_rows, self._shard_seconds, self.queries
        if not isinstance(self.embedder, Remote):
            self._store.flush()
            self._most_rows, self._shard_seconds = _NUMBERS_OF_A_SHARD, math.inf
        self.queries = Queries()
        try:
            yield
        finally:
            if not isinstance(self.embedder, Remote):
                self._store.drop()
            counts.limit = self.queries.limit or counts.limit
            self._most_rows, self._shard_seconds, self.queries = limit, seconds, counts

    @property
    def _folder(self) -> Path:
        return self._directory / self.fingerprint[:16]

    def _describe(self, dimension: int) -> None:
        make_private_folder(self._folder)
        described = {"fingerprint": self.fingerprint, "dimension": dimension, "max_tokens": self.max_tokens}
        write_json(self._folder / "embedder.json", described)

    @cached_property
    def _store(self) -> ShardStore:
        store = ShardStore(self._folder, self.dimension)
        if not (self._folder / "embedder.json").is_file():
            self._describe(self.dimension)
        weakref.finalize(self, _flush_at_exit, store)  # runs when the object goes or the interpreter ends
        return store

    def _unseen(self, texts: Sequence[str], keys: Keys) -> Positions:
        """Positions of the distinct texts without a vector, shortest first."""
        unseen = np.flatnonzero(self._store.find(keys) == ABSENT)
        if len(unseen):  # another process may have stored some of them, or removed others
            self._store.refresh()
            unseen = np.flatnonzero(self._store.find(keys) == ABSENT)
        unseen = unseen[distinct(keys[unseen])]
        lengths = np.array([len(texts[position]) for position in unseen.tolist()], dtype=np.int64)
        return unseen[np.lexsort((_halves(keys[unseen]), lengths))]

    def _send(
        self,
        texts: Sequence[str],
        keys: Keys,
        unseen: Positions,
        purpose: Purpose,
        rank: int = 0,
        world_size: int = 1,
        in_turns: bool = False,
    ) -> None:
        """Embed this rank's batches of the texts at ``unseen``."""
        if not len(unseen):
            return
        usual = max(1, min(_TEXTS_AT_ONCE, _NUMBERS_AT_ONCE // self.dimension))
        size = self._batch_size or (self.embedder.texts_at_once if isinstance(self.embedder, Remote) else usual)
        most_rows = max(1, min(self._most_rows, _NUMBERS_OF_A_SHARD // self.dimension))
        batches = [unseen[start : start + size] for start in range(0, len(unseen), size)]
        # In random order, so that all ranks get equal work and progress can be extrapolated.
        order = np.random.default_rng(0).permutation(len(batches))[rank::world_size].tolist()
        together = max(1, most_rows // size)
        with Progress(sum(len(batches[number]) for number in order), shown=rank == 0) as progress:
            for begin in range(0, len(order), together):
                with self._turn() if in_turns else contextlib.nullcontext():
                    for batch in (batches[number] for number in order[begin : begin + together]):
                        new = batch[self._store.find(keys[batch]) == ABSENT] if in_turns else batch
                        if len(new):
                            self._ask([texts[position] for position in new.tolist()], keys[new], new, purpose)
                        self._store.flush(most_rows, self._shard_seconds)
                        progress.advance(len(batch))

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time pays for the texts of a shard; the others then find them stored."""
        with (self._folder / "turn.lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s: another process is embedding for this cache; waiting for its shard", self._folder)
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # a disk without locks
                pass
            self._store.refresh(force=True)
            yield
            self._store.flush()
        time.sleep(0.01)  # whoever waits is next

    def _ask(self, texts: list[str], keys: Keys, positions: Positions, purpose: Purpose) -> None:
        """Buffer the vectors of one batch as they arrive."""

        def on_vectors(rows: Sequence[int], vectors: Tensor) -> None:
            chosen = list(rows)
            with self._store.lock:
                self.queries.sent[purpose] += len(chosen)
                self._add([texts[row] for row in chosen], keys[chosen], positions[chosen], vectors)

        try:
            if isinstance(self.embedder, Remote):
                self.embedder.stream(texts, on_vectors)
            else:
                on_vectors(range(len(texts)), self.embedder.embed(texts))
        except BaseException as error:  # Ctrl-C too: first store the vectors that have arrived
            if isinstance(error, UnfinishedError) and len(error.done):
                on_vectors(error.done, error.vectors)
            self._store.flush()
            raise

    def _add(self, texts: list[str], keys: Keys, positions: Positions, embedded: Tensor) -> None:
        """Buffer the valid vectors; an invalid one is an error."""
        store, vectors = self._store, embedded.detach().to("cpu", torch.float32)
        if vectors.shape != (expected := (len(texts), store.dimension)):
            raise InputError(
                f"the embedder gave an array of shape {tuple(vectors.shape)} instead of {expected}, beginning with "
                f"{_named(texts[0], positions[0])}; where another model has its name now, it needs another cache_dir "
                f"than {store.folder.parent}"
            )
        valid = valid_vectors(vectors, zeros=isinstance(self.embedder, LogitsEmbedder)).numpy()
        store.add(keys[valid], vectors.numpy()[valid])
        if not valid.all():
            bad = int(valid.argmin())
            raise InputError(
                f"the embedder gave {describe_invalid(vectors[bad])} for {_named(texts[bad], positions[bad])}: it is "
                f"not stored ({int((~valid).sum())} of the {len(valid)} vectors that came together are invalid)"
            )


def _halves(keys: Keys) -> NDArray[np.uint64]:
    """The first 64 bits of ``keys`` (n,)."""
    return np.ascontiguousarray(keys).view("<u8")[::2].copy()


def _named(text: str, position: int) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"text {position} ({shown!r})"


def _flush_at_exit(store: ShardStore) -> None:
    try:
        store.flush()
    except OSError as error:  # nothing can catch it at exit
        print(f"embedding cache: the last vectors are lost: {error}", file=sys.stderr)
