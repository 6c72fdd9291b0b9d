"""Test batches that are done, kept until the figures stand: a test that was killed goes on with the next batch.

    attack.batch_cache = BatchCache(run / layout.TEST_BATCHES, settings_key(config, embedder.fingerprint))
    done = attack.batch_cache.once("predictions", batch, oracle, work)   # work() is called only where no file has it

One small file a batch and part, written to a temporary name and renamed:

    {"key": "5f2c...", "value": [...], "queries": "<64-bit keys of the texts asked for, base64>", "seconds": 4.1}

The key is a hash of the settings, the weights, and the batch's very vectors: whatever changes, the work is done again.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

import limits
import tensor_files
from atomic_files import write_file, write_json
from embedders.cache.cached import CachedEmbedder
from embedders.cache.queries import Queries
from errors import InputError

# Says where and with how many processes something is done, or what is done beside inverting; the embedder is named by
# its fingerprint instead.
FREE = {
    "choices", "run_dir", "cache_dir", "ckpt_path", "init_from", "embedder", "scoring", "callbacks", "logger",
    "trust",
}  # fmt: skip
FREE_OF_TRAINER = {"devices", "num_nodes", "strategy"}


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of a batch.

    Attributes:
        value: What ``work`` gave, as JSON gives it back.
        queries: A 64-bit key of each distinct text that it asked for as the attack, (n,).
        seconds: That it took, when it was done.
        limit: What the embedder said where a limit of queries cut it short; such a batch is not kept as done.
    """

    value: Any
    queries: NDArray[np.uint64]
    seconds: float
    limit: str | None = None


class Unfinished:
    """What a long work on one batch has so far, in one file that is replaced whole.

    Args:
        path: The file; None keeps nothing.
        key: Of the batch and all settings: a file with another is of another work.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self.path, self.key = path, key

    def read(self) -> dict[str, Any] | None:
        """What was written last, tensors on the CPU; None where there is nothing of this work."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            content = tensor_files.load(self.path, "an interrupted search")
        except InputError as error:
            rank_zero_warn(f"{error}; that batch is begun anew")
            return None
        if not isinstance(content, dict) or content.get("key") != self.key:
            return None
        rank_zero_info(f"going on with a batch that was interrupted: {self.path}")
        value = content.get("value")
        return value if isinstance(value, dict) else None

    def write(self, value: Mapping[str, Any]) -> None:
        """Keep tensors and plain values."""
        if self.path is not None:
            write_file(self.path, lambda file: torch.save({"key": self.key, "value": dict(value)}, file))

    def remove(self) -> None:
        """The work is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class BatchCache:
    """The batches of one test.

    Args:
        folder: Where their files lie; None keeps nothing.
        settings: Hash of all settings that may change a result.

    Attributes:
        wanted: See ``keep``.
    """

    def __init__(self, folder: Path | None = None, settings: str = "") -> None:
        self.folder, self.settings = folder, settings
        self._weights = ""
        self._said = False
        self.wanted = False

    def begun(self) -> bool:
        """Whether a test has begun, and its figures do not stand yet."""
        return self.folder is not None and self.folder.is_dir()

    def begin(self) -> None:
        """Make the folder: from here on, a kill leaves something to go on with."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def open(self, weights: Mapping[str, Tensor]) -> None:
        """Take note of the weights that are about to be tested; before ``once``."""
        if self.folder is not None:
            self._weights = weights_key(weights)

    def once(
        self,
        part: str,
        batch: Mapping[str, Tensor],
        oracle: CachedEmbedder | None,
        work: Callable[[], Any],
        settings: str = "",
        fits: Callable[[Any], bool] = lambda value: True,
    ) -> BatchResult:
        """What ``work`` gives for a batch: read where it was done before, else done and written.

        The queries count for ``oracle`` in either case. What a limit of the embedder cut short is not written.

        Args:
            part: Name of the work; a batch may have several.
            batch: ``index`` (n,) and ``vectors`` (n, d); for an empty one there is no work.
            oracle: Counts its queries.
            work: Gives a JSON list with an entry for each row of the batch.
            settings: What else the result depends on.
            fits: Whether such a list, read from a file that may be somebody else's, is what ``work`` gives.
        """
        if len(batch["index"]) == 0:
            return BatchResult([], np.empty(0, np.uint64), 0.0)
        first = int(batch["index"][0])
        path = None if self.folder is None else self.folder / f"{part}-{first:09d}.json"
        key = self._key(part, batch, settings)
        done = None if path is None else _read(path, key)
        if done is not None and len(done.value) == len(batch["index"]) and fits(done.value):
            self._tell()
            if oracle is not None:
                _count(oracle.queries, done.queries)
            return done
        started = time.perf_counter()
        with counted(oracle) as queries:
            value = work()
        seconds, asked = time.perf_counter() - started, queries.keys("attack")
        if path is not None and queries.limit is None:
            encoded = base64.b64encode(asked.astype("<u8").tobytes()).decode()
            write_json(path, {"key": key, "value": value, "queries": encoded, "seconds": seconds})
        return BatchResult(json.loads(json.dumps(value)), asked, seconds, queries.limit)

    def keep(self) -> None:
        """The figures will be those of a test that was cut short: another session is to go on with it."""
        self.wanted = True

    def unfinished(self, part: str, batch: Mapping[str, Tensor], settings: str = "") -> Unfinished:
        """A place for what a long work has so far; arguments as for ``once``."""
        first = int(batch["index"][0]) if len(batch["index"]) else 0
        path = None if self.folder is None else self.folder / f"{part}-{first:09d}.pt"
        return Unfinished(path, self._key(part, batch, settings))

    def clear(self) -> None:
        """Remove the files: what was to be made of them stands; but where they are to be kept."""
        if self.folder is not None and not self.wanted:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _key(self, part: str, batch: Mapping[str, Tensor], settings: str) -> str:
        digest = blake2b(json.dumps([self.settings, self._weights, part, settings]).encode(), digest_size=16)
        for name in ("index", "vectors"):
            digest.update(_bytes(batch[name]))
        return digest.hexdigest()

    def _tell(self) -> None:
        if not self._said:
            rank_zero_info(f"going on with an interrupted test: the batches in {self.folder} are not inverted again")
        self._said = True


def settings_key(config: Mapping[str, Any], fingerprint: str) -> str:
    """Hash of what may change a result in a configuration (plain values); ``fingerprint`` is the embedder's."""
    kept = {name: value for name, value in config.items() if name not in FREE}
    kept["trainer"] = {name: value for name, value in config["trainer"].items() if name not in FREE_OF_TRAINER}
    return blake2b(json.dumps([kept, fingerprint], sort_keys=True).encode(), digest_size=16).hexdigest()


def weights_key(weights: Mapping[str, Tensor]) -> str:
    """Hash of a state dict."""
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


@contextmanager
def counted(oracle: CachedEmbedder | None) -> Iterator[Queries]:
    """The queries of a block, by themselves; afterwards they are among the oracle's own as well."""
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
            before.count_sent(purpose, sent)
            _count(before, own.keys(purpose), purpose)


def _count(queries: Queries, asked: NDArray[np.uint64], purpose: Any = "attack") -> None:
    queries.count_asked(purpose, np.column_stack([asked, asked]))  # only the first halves are counted by


def _read(path: Path, key: str) -> BatchResult | None:
    """The content of a file; None where there is none, it is damaged, or it belongs to something else."""
    try:
        content = json.loads(limits.content(path, limits.LARGEST_JSON))
        if not isinstance(content, dict) or content.get("key") != key:
            return None
        value, queries, seconds = (content.get(name) for name in ("value", "queries", "seconds"))
        if not (isinstance(value, list) and isinstance(queries, str) and isinstance(seconds, float)):
            return None
        keys = np.frombuffer(base64.b64decode(queries, validate=True), "<u8").astype(np.uint64)
    # InputError: larger than is read; ValueError: no JSON, no base64, or not a whole number of keys
    except (InputError, OSError, ValueError, RecursionError):
        return None
    return BatchResult(value, keys, seconds) if 0 <= seconds < float("inf") else None


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
