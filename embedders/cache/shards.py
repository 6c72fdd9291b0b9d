"""The folder of one embedder: shards, which are immutable files of vectors keyed by the hashes of their texts.

    store = ShardStore(folder, dimension=384)
    keys = text_keys(["my name is ada"])      # (1,), 16 bytes each
    store.add(keys, vectors)                  # (1, 384) float32, buffered in memory
    store.flush()                             # written to a shard
    store.read(store.find(keys))              # (1, 384), read from the disk

A shard:

    header   64 bytes: magic, version, dimension d, rows n, checksums of the keys, of the vectors and of the header
    keys     n x 8 bytes (first half of each key), then n x 8 bytes (second half)
    vectors  n x d float32, little-endian, row i belonging to key i

Rows of several vectors each, such as hidden states of tokens, would be version 2: a table of lengths after the keys.

Any number of processes on any number of machines may use a folder without locks: a shard is written under a temporary
name, synced and renamed to the hash of its content, and two shards may hold the same text.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from unembed.core.atomic_files import remove_temporary, write_file
from unembed.core.errors import InputError

log = logging.getLogger(__name__)

Keys = NDArray[np.bytes_]  # 16 bytes each
Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
Result = TypeVar("Result")

ABSENT = -1
SUFFIX = ".shard"
ABANDONED_SECONDS = 86_400  # no writer takes this long, whatever the clocks of two machines say
_MAGIC, _VERSION = b"unembed\x00", 1
_FIELDS = struct.Struct("<8sIIQ16s16s")  # the header without its own checksum
_HEADER_SIZE = 64
_KEYS_AT_ONCE = 2**17  # look-ups that are done together, to bound their memory
_ROW_BITS = 32  # a location is (number of the shard << 32) | row


class DamagedShardError(Exception):
    """A shard is truncated, altered or of another kind."""


def text_keys(texts: Sequence[str]) -> Keys:
    """128-bit keys of the exact characters of ``texts``, (n,)."""
    buffer = bytearray()
    for text in texts:
        buffer += _checksum(text.encode("utf-8", "surrogatepass"))
    return np.frombuffer(buffer, dtype="S16")


def distinct(keys: Keys) -> Positions:
    """Positions of the first occurrence of each key in ``keys`` (n,), ascending."""
    order = _sorting(keys)
    ordered = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return np.sort(order[first])


class KeyIndex:
    """Maps keys to integers >= 0; of a key that was added twice, either integer may be returned.

    The keys are in sorted arrays, each at least twice as long as the next: adding n keys in small groups costs
    O(n log n) in all, and a look-up is one binary search in each array.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Keys, Positions]] = []

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._runs)

    def add(self, keys: Keys, values: Positions) -> None:
        """Add keys (n,) with their values (n,)."""
        if not len(keys):
            return
        while self._runs and len(self._runs[-1][0]) < 2 * len(keys):
            older_keys, older_values = self._runs.pop()
            keys, values = np.concatenate([older_keys, keys]), np.concatenate([older_values, values])
        order = _sorting(keys)
        self._runs.append((keys[order], values[order]))

    def find(self, keys: Keys) -> Positions:
        """Values of ``keys`` (n,), ABSENT where a key is not known; (n,)."""
        locations = np.full(len(keys), ABSENT, dtype=np.int64)
        for begin in range(0, len(keys), _KEYS_AT_ONCE):
            order = begin + _sorting(keys[begin : begin + _KEYS_AT_ONCE])  # neighbours lie in the same pages
            for known, values in self._runs:
                places = np.minimum(np.searchsorted(known, keys[order]), len(known) - 1)
                hit = known[places] == keys[order]
                locations[order[hit]] = values[places[hit]]
        return locations

    def drop(self, first: int, last: int) -> None:
        """Remove all keys with values in ``first`` .. ``last`` (excluded)."""
        runs = [(keys, values, (values < first) | (values >= last)) for keys, values in self._runs]
        self._runs = [(keys[keep], values[keep]) for keys, values, keep in runs if keep.any()]


@dataclass
class Shard:
    """A shard whose keys match their checksum; ``verified``: and whose vectors do.

    All methods raise DamagedShardError, and FileNotFoundError where another process has set the file aside.
    """

    path: Path
    dimension: int
    rows: int
    checksum: bytes
    verified: bool = False

    @classmethod
    def open(cls, path: Path, dimension: int) -> tuple[Shard, Keys]:
        """The shard at ``path`` and its keys (n,)."""
        with path.open("rb") as file:
            header, size = file.read(_HEADER_SIZE), os.fstat(file.fileno()).st_size
            if len(header) < _HEADER_SIZE or header[_FIELDS.size :] != _header_checksum(header):
                raise DamagedShardError("the header is not that of a shard")
            magic, version, width, rows, key_checksum, checksum = _FIELDS.unpack(header[: _FIELDS.size])
            if (magic, version, width) != (_MAGIC, _VERSION, dimension):
                raise DamagedShardError(f"version {version}, dimension {width} instead of {_VERSION}, {dimension}")
            if size != _HEADER_SIZE + rows * (16 + 4 * dimension):
                raise DamagedShardError(f"{size} bytes are too few or too many for {rows} rows")
            content = file.read(16 * rows)
        if _checksum(content) != key_checksum:
            raise DamagedShardError("the keys do not match their checksum")
        halves = np.frombuffer(content, dtype="<u8").reshape(2, rows)
        return cls(path, dimension, rows, checksum), halves.T.copy().view("S16")[:, 0]

    @classmethod
    def write(cls, folder: Path, keys: Keys, vectors: Vectors) -> Shard:
        """Write keys (n,) and vectors (n, d) as a shard."""
        rows, dimension = vectors.shape
        key_bytes = np.ascontiguousarray(keys).view("<u8").reshape(rows, 2).T.tobytes()
        vector_bytes = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        checksum = _checksum(vector_bytes)
        fields = _FIELDS.pack(_MAGIC, _VERSION, dimension, rows, _checksum(key_bytes), checksum)
        header = fields + _header_checksum(fields)
        path = folder / (_checksum(header).hex() + SUFFIX)
        write_file(path, lambda file: file.writelines((header, key_bytes, vector_bytes)))
        return cls(path, dimension, rows, checksum, verified=True)

    def verify(self) -> bool:
        """Compare the vectors with their checksum, once per process; returns True."""
        if not self.verified:
            with self.path.open("rb") as file:
                file.seek(_HEADER_SIZE + 16 * self.rows)
                if hashlib.file_digest(file, _new_digest).digest() != self.checksum:
                    raise DamagedShardError("the vectors do not match their checksum")
        self.verified = True
        return True

    def read(self, rows: Positions) -> Vectors:
        """The vectors of ``rows`` (m,), (m, d).

        The file is not memory-mapped: with large pages, each row could make up to 2 MB of it resident.
        """
        self.verify()
        vectors: Vectors = np.empty((len(rows), self.dimension), dtype="<f4")
        start, size = _HEADER_SIZE + 16 * self.rows, 4 * self.dimension
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for place, row in enumerate(rows.tolist()):
                if os.preadv(descriptor, [vectors[place]], start + row * size) < size:
                    raise DamagedShardError(f"it ends before row {row}")
        finally:
            os.close(descriptor)
        return vectors


class ShardStore:
    """The shards of one embedder, and a buffer of rows that are not written yet.

    Locations are integers that stay valid as long as this object lives, also when the buffer is written.
    """

    def __init__(self, folder: Path, dimension: int) -> None:
        """Open ``folder``, creating it (0700) if missing, and index its shards."""
        self.folder, self.dimension = folder, dimension
        self.lock = threading.RLock()  # vectors of a server arrive in several threads
        self._index = KeyIndex()
        self._shards: list[Shard | None] = []  # by number; None: the buffer's, or removed since
        self._numbers: dict[str, int] = {}  # by file name
        self._listed_at: int | None = None
        self._buffer: int | None = None  # number of the shard to be
        self._buffered_at = 0.0
        self._keys: list[Keys] = []
        self._vectors: list[Vectors] = []
        make_private_folder(folder)
        remove_temporary(folder, older_than=ABANDONED_SECONDS)
        self.refresh()

    def __len__(self) -> int:
        """Number of rows; a text in two shards counts twice."""
        return len(self._index)

    def find(self, keys: Keys) -> Positions:
        """Locations of ``keys`` (n,), ABSENT if a text is neither stored nor buffered; (n,)."""
        return self._index.find(keys)

    def refresh(self, force: bool = False) -> None:
        """Index new shards and drop removed ones; cheap if the folder has not changed."""
        changed_at = self.folder.stat().st_mtime_ns
        if changed_at == self._listed_at and not force:
            return
        names = {entry.name for entry in os.scandir(self.folder) if entry.name.endswith(SUFFIX) and entry.is_file()}
        for name in self._numbers.keys() - names:
            self._forget(self._numbers[name])
        keys, locations = [np.empty(0, "S16")], [np.empty(0, np.int64)]
        for name in sorted(names - self._numbers.keys()):
            path = self.folder / name
            if (opened := _intact(path, partial(Shard.open, path, self.dimension))) is not None:
                shard, shard_keys = opened
                locations.append(np.arange(shard.rows) | self._next_number(shard) << _ROW_BITS)
                keys.append(shard_keys)
        self._index.add(np.concatenate(keys), np.concatenate(locations))
        self._listed_at = changed_at

    def verify(self, locations: Positions) -> bool:
        """Verify the shards of ``locations``; False if one is damaged or has been removed: look the keys up again."""
        intact = True
        for number in np.unique(locations[locations != ABSENT] >> _ROW_BITS).tolist():
            shard = self._shards[number]
            if number != self._buffer and (shard is None or not _intact(shard.path, shard.verify)):
                self._forget(number)
                intact = False
        return intact

    def read(self, locations: Positions) -> Vectors:
        """Vectors at ``locations`` (n,); (n, d).

        Raises:
            DamagedShardError: A shard is damaged or has been removed: look the keys up again.
        """
        vectors = np.empty((len(locations), self.dimension), dtype=np.float32)
        numbers, rows = locations >> _ROW_BITS, locations & (2**_ROW_BITS - 1)
        order = np.argsort(numbers, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if len(places):
                vectors[places] = self._rows_of(int(numbers[places[0]]), rows[places])
        return vectors

    def add(self, keys: Keys, vectors: Vectors) -> None:
        """Buffer vectors (n, d) under keys (n,)."""
        with self.lock:
            if self._buffer is None:
                self._buffer, self._buffered_at = self._next_number(None), time.monotonic()
            first = sum(map(len, self._keys))
            self._index.add(keys, np.arange(first, first + len(keys)) | self._buffer << _ROW_BITS)
            self._keys.append(keys)
            self._vectors.append(vectors)

    def flush(self, rows: int = 1, seconds: float = 0.0) -> None:
        """Write the buffer as a shard if it has ``rows`` rows or is ``seconds`` old; if the disk is full, it stays."""
        with self.lock:
            due = sum(map(len, self._keys)) >= rows or time.monotonic() - self._buffered_at >= seconds
            if self._buffer is None or not due:
                return
            shard = Shard.write(self.folder, np.concatenate(self._keys), np.concatenate(self._vectors))
            self._shards[self._buffer], self._numbers[shard.path.name] = shard, self._buffer
            self._buffer, self._keys, self._vectors = None, [], []

    def drop(self) -> None:
        """Forget the rows that are not written."""
        with self.lock:
            if self._buffer is not None:
                self._index.drop(self._buffer << _ROW_BITS, (self._buffer + 1) << _ROW_BITS)
                self._buffer, self._keys, self._vectors = None, [], []

    def _rows_of(self, number: int, rows: Positions) -> Vectors:
        with self.lock:
            if number == self._buffer:
                self._vectors = [np.concatenate(self._vectors)]
                return self._vectors[0][rows]
        shard = self._shards[number] if number >= 0 else None
        vectors = None if shard is None else _intact(shard.path, partial(shard.read, rows))
        if vectors is None:
            self._forget(number)
            raise DamagedShardError(f"a shard of {self.folder} is damaged or has been removed")
        return vectors

    def _next_number(self, shard: Shard | None) -> int:
        self._shards.append(shard)
        if shard is not None:
            self._numbers[shard.path.name] = len(self._shards) - 1
        return len(self._shards) - 1

    def _forget(self, number: int) -> None:
        if number >= 0 and (shard := self._shards[number]) is not None:
            self._shards[number] = None
            self._numbers.pop(shard.path.name, None)
            self._index.drop(number << _ROW_BITS, (number + 1) << _ROW_BITS)


def _sorting(keys: Keys) -> Positions:
    """The stable order that sorts ``keys`` (n,)."""
    halves = np.ascontiguousarray(keys).view(">u8")[::2].astype(np.uint64)  # quicker to sort; hardly ever equal
    order: Positions = np.argsort(halves, kind="stable")
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] < ordered[:-1]).any() else order


def make_private_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents with mode 0700; an InputError if that is not possible."""
    try:
        for path in [*reversed(folder.parents), folder]:
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)
        os.scandir(folder).close()
    except OSError as error:
        raise InputError(
            f"cache_dir: the embedding cache {folder} cannot be made: {error.strerror}; choose another place by "
            "cache_dir=<directory>, or by the variable UNEMBED_CACHE"
        ) from error


def _intact(path: Path, read: Callable[[], Result]) -> Result | None:
    """The result of ``read``; None if the file is gone, or damaged and now set aside."""
    try:
        return read()
    except FileNotFoundError:  # another process has set it aside
        return None
    except DamagedShardError as error:
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_suffix(".damaged"))
        log.warning(
            "embedding cache: %s is damaged (%s) and renamed to *.damaged; its texts are embedded again", path, error
        )
        return None


_new_digest = partial(hashlib.blake2b, digest_size=16)


def _checksum(content: bytes) -> bytes:
    return _new_digest(content).digest()


def _header_checksum(header: bytes) -> bytes:
    return _checksum(header[: _FIELDS.size])[: _HEADER_SIZE - _FIELDS.size]
