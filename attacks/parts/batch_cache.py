"""The test batch cache: results of finished test batches, stored until the metrics are written, so that a killed test
can be resumed.

    attack.batch_cache = BatchCache(run / layout.TEST_BATCHES, settings_key(config, embedder.fingerprint))
    done = attack.batch_cache.once("predictions", batch, oracle, work)   # calls work() only if no file has the result

One small file for each batch and kind of work:

    {"key": "5f2c...", "value": [...], "queries": [<64-bit keys of the texts asked for>], "seconds": 4.1}

The key is a hash of the settings, the weights and the batch's vectors: if any of them changes, the batch is computed
again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch import Tensor

from unembed.core.atomic_files import read_json, write_file, write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder, Queries
from unembed.runs.checkpoints import load_tensors
from unembed.runs.stored_attack import content, weights_key


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The stored result of one batch.

    Attributes:
        value: The return value of ``work`` after a round trip through JSON.
        queries: 64-bit keys of the distinct texts that the attack embedded for this batch, (n,).
        seconds: Time that the batch took when it was computed.
        limit: The embedder's message if a query limit cut the batch short; such a batch is not stored.
    """

    value: Any
    queries: NDArray[np.uint64]
    seconds: float
    limit: str | None = None


class BatchCache:
    """The stored batches of one test in ``folder`` (None stores nothing); ``settings`` is a hash of all settings that
    may change a result."""

    def __init__(self, folder: Path | None = None, settings: str = "") -> None:
        self.folder, self.settings = folder, settings
        self.wanted = False  # whether the test was cut short, so that ``clear`` leaves the files
        self._weights = ""
        self.announced = False  # whether it was logged that a test is resumed, or need not be

    def exists(self) -> bool:
        """Whether a test has begun whose metrics are not written yet."""
        return self.folder is not None and self.folder.is_dir()

    def create(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def open(self, weights: Mapping[str, Tensor]) -> None:
        if self.folder is not None:
            self._weights = weights_key(weights)

    def once(
        self,
        part: str,
        batch: Mapping[str, Tensor],
        oracle: CachedEmbedder | None,
        work: Callable[[], Any],
        settings: str = "",
    ) -> BatchResult:
        """The result of ``work`` for a batch, read from its file or else computed and stored.

        The queries are counted for ``oracle`` in both cases. A result that a query limit cut short is not stored.

        Args:
            part: Name of the work; a batch may have several results.
            batch: ``index`` (n,) and ``vectors`` (n, d); ``work`` is not called for an empty batch.
            oracle: The embedder that counts the queries.
            work: Returns a JSON list with one entry per row of the batch.
            settings: Anything else that the result depends on.
        """
        if len(batch["index"]) == 0:
            return BatchResult([], np.empty(0, np.uint64), 0.0)
        path = self._path(part, batch, "json")
        key = self._key(part, batch, settings)
        stored: dict[str, Any] = {}
        if path is not None and path.is_file():
            with suppress(InputError):  # damaged, as by a power failure
                stored = read_json(path)
        if stored.get("key") == key:
            if not self.announced:
                rank_zero_info(f"an interrupted test is resumed: the batches in {self.folder} are not inverted again")
            self.announced = True
            queries = np.array(stored["queries"], np.uint64)
            if oracle is not None:
                oracle.queries.count_asked("attack", queries)
            return BatchResult(stored["value"], queries, stored["seconds"])
        started = time.perf_counter()
        with counted(oracle) as counts:
            value = work()
        seconds, asked = time.perf_counter() - started, counts.keys("attack")
        if path is not None and counts.limit is None:
            write_json(path, {"key": key, "value": value, "queries": asked.tolist(), "seconds": seconds})
        return BatchResult(json.loads(json.dumps(value)), asked, seconds, counts.limit)

    def search_state(self, part: str, batch: Mapping[str, Tensor], settings: str = "") -> SearchState:
        """The file for the intermediate state of a long search; arguments as for ``once``."""
        return SearchState(self._path(part, batch, "pt"), self._key(part, batch, settings))

    def keep(self) -> None:
        """Keep the files at ``clear``: the test was cut short and can be resumed."""
        self.wanted = True

    def clear(self) -> None:
        """Remove the files once the metrics are written, unless ``keep`` was called."""
        if self.folder is not None and not self.wanted:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, part: str, batch: Mapping[str, Tensor], suffix: str) -> Path | None:
        first = int(batch["index"][0]) if len(batch["index"]) else 0
        return None if self.folder is None else self.folder / f"{part}-{first:09d}.{suffix}"

    def _key(self, part: str, batch: Mapping[str, Tensor], settings: str) -> str:
        digest = blake2b(json.dumps([self.settings, self._weights, part, settings]).encode(), digest_size=16)
        for name in ("index", "vectors"):
            digest.update(content(batch[name]))
        return digest.hexdigest()


@dataclass(frozen=True)
class SearchState:
    """The intermediate state of a long search on one batch, in one file (None stores nothing), so that a killed search
    can be resumed; a file with another ``key`` (hash of the batch and all settings) is ignored."""

    path: Path | None
    key: str

    def read(self) -> dict[str, Any] | None:
        """The last written state, tensors on the CPU; None if there is none with this key."""
        content = load_tensors(self.path, "an interrupted search") if self.path and self.path.is_file() else {}
        if content.get("key") != self.key:
            return None
        rank_zero_info(f"a batch that was interrupted is resumed: {self.path}")
        state: dict[str, Any] = content["value"]
        return state

    def write(self, value: Mapping[str, Any]) -> None:
        if self.path is not None:
            write_file(self.path, lambda file: torch.save({"key": self.key, "value": dict(value)}, file))

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@contextmanager
def counted(oracle: CachedEmbedder | None) -> Iterator[Queries]:
    """Yield the queries counted within the block; at its end they are also added to the oracle's own count."""
    own = Queries()
    if oracle is None:
        yield own
        return
    before, oracle.queries = oracle.queries, own
    try:
        yield own
    finally:
        oracle.queries = before
        before.limit = own.limit or before.limit
        for purpose, sent in own.sent.items():
            before.sent[purpose] += sent
            before.count_asked(purpose, own.keys(purpose))
