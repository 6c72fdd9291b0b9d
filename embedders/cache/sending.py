"""Send texts to an embedder in batches distributed over ranks, and store the vectors; no text is sent twice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from unembed.core.errors import InputError
from unembed.embedders.base import Embedder, Remote, UnfinishedError
from unembed.embedders.cache.claims import claiming
from unembed.embedders.cache.index import ABSENT, Positions
from unembed.embedders.cache.progress import Progress
from unembed.embedders.cache.rows import Rows
from unembed.embedders.cache.shards import Keys
from unembed.embedders.cache.soundness import flaw, sound
from unembed.embedders.cache.store import full_disk_explained

log = logging.getLogger(__name__)

_TEXTS_AT_ONCE = 256
_NUMBERS_AT_ONCE = 2**24  # 64 MB of rows: rows of logits are long
_SHOWN_CHARACTERS = 40  # of a text in an error message
# Waiting for texts that another process sends: seconds between checks, and in all without a new vector (a server may
# ask to wait ten minutes, and the shard is written up to a minute later)
_LOOK_SECONDS, _CLAIM_SECONDS = 1.0, 900.0


class Sender:
    """Embeds texts that have no row.

    Args:
        embedder: The embedder to call.
        rows: Stores its vectors.
        batch_size: Texts sent at a time; None uses 256, fewer for long rows, or ``Remote.texts_at_once``.
    """

    def __init__(self, embedder: Embedder, rows: Rows, batch_size: int | None) -> None:
        self._embedder, self._rows = embedder, rows
        usual = max(1, min(_TEXTS_AT_ONCE, _NUMBERS_AT_ONCE // rows.store.dimension))
        self._batch_size = batch_size or (embedder.texts_at_once if isinstance(embedder, Remote) else usual)

    def send(
        self,
        texts: Sequence[str],
        keys: Keys,
        unseen: Positions,
        count: Callable[[int], None],
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Embed this rank's batches of the texts at ``unseen``; ``count`` is called with the number of texts sent."""
        if not len(unseen):
            return
        batches = [unseen[start : start + self._batch_size] for start in range(0, len(unseen), self._batch_size)]
        # In random order, so that all ranks get equal work and progress can be extrapolated.
        order = np.random.default_rng(0).permutation(len(batches))[rank::world_size]
        rows_to_come = sum(len(batches[number]) for number in order)
        with Progress(rows_to_come, shown=rank == 0) as progress:
            for number in order:
                batch = batches[number]
                try:
                    self._ask([texts[position] for position in batch.tolist()], keys[batch], batch, count)
                except BaseException:  # Ctrl-C too: first store the vectors that have arrived
                    self._rows.flush()
                    raise
                rows_to_come -= len(batch)
                self._rows.flush_if_due(rows_to_come)
                progress.advance(len(batch))

    def send_unclaimed(self, texts: Sequence[str], keys: Keys, unseen: Positions, count: Callable[[int], None]) -> None:
        """Embed the texts at ``unseen`` that no other process has claimed, and wait for the rest.

        Texts of a process that died or reached its query limit are embedded here, and so are those of a process that
        stores nothing for a long time.
        """
        waiting_since = None
        folder = self._rows.store.folder
        while len(unseen):
            with full_disk_explained(folder, 8 * len(unseen)), claiming(folder, keys[unseen]) as mine:
                self._rows.store.refresh(force=True)  # others may have stored some before they released their claims
                free = unseen[mine]
                self.send(texts, keys, free[self._rows.find(keys[free]) == ABSENT], count)
                self._rows.flush()
            left = unseen[self._rows.find(keys[unseen]) == ABSENT]
            if len(left) < len(unseen):
                waiting_since = None
            elif waiting_since is None:
                waiting_since = time.monotonic()
                log.info("%s: %d texts are being embedded by another process; waiting", folder, len(left))
            elif time.monotonic() - waiting_since > _CLAIM_SECONDS:
                return
            unseen = left
            if len(unseen):
                time.sleep(_LOOK_SECONDS)

    def _ask(self, texts: list[str], keys: Keys, positions: Positions, count: Callable[[int], None]) -> None:
        """Add the vectors of one batch to the rows, as they arrive."""
        one_at_a_time = threading.Lock()  # they arrive in several threads

        def keep(rows: Sequence[int], vectors: Tensor) -> None:
            chosen = list(rows)
            with one_at_a_time:
                count(len(chosen))
                self._add([texts[row] for row in chosen], keys[chosen], positions[chosen], vectors)

        if isinstance(self._embedder, Remote):
            self._embedder.deliver(texts, keep)
            return
        try:
            vectors = self._embedder.embed(texts)
        except UnfinishedError as error:
            if len(error.done):
                keep(error.done, error.vectors)
            raise
        keep(range(len(texts)), vectors)

    def _add(self, texts: list[str], keys: Keys, positions: Positions, given: Tensor) -> None:
        """Add the sound vectors to the rows; an unsound one is an error."""
        store = self._rows.store
        vectors = given.detach().to("cpu", torch.float32).numpy()
        first = f"the first of them for {_named(texts[0], positions[0])}"
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise InputError(
                f"the embedder gave an array of shape {tuple(vectors.shape)} for {len(texts)} texts, {first}"
            )
        if vectors.shape[1] != store.dimension:
            raise InputError(
                f"the embedder gave vectors of dimension {vectors.shape[1]} instead of {store.dimension}, {first}; "
                f"where another model has its name now, it needs another cache_dir than {store.folder.parent}"
            )
        good = sound(vectors, zeros=store.zeros)
        self._rows.add(keys[good], vectors[good])
        if not good.all():
            bad, count = int(good.argmin()), int((~good).sum())
            more = f", and for {count - 1} of the {len(good)} that came with it" if count > 1 else ""
            raise InputError(
                f"the embedder gave {flaw(vectors[bad])} for {_named(texts[bad], positions[bad])}{more}: it is not "
                "stored"
            )


def _named(text: str, position: int) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"text {position} ({shown!r})"
