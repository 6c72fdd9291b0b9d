"""A folder of shards: finds stored vectors by key, reads them, adds new ones.

Any number of processes on any number of machines may use a folder at the same time without locks: shards are written
atomically and never changed, and two of them may hold the same text.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError
from unembed.embedders.cache.index import ABSENT, KeyIndex, Positions, Values
from unembed.embedders.cache.shards import (
    SUFFIX,
    DamagedShardError,
    Keys,
    Shard,
    Vectors,
    remove_abandoned,
    set_aside,
    shard_size_in_bytes,
    write_shard,
)
from unembed.embedders.cache.soundness import flaw, sound

log = logging.getLogger(__name__)

_ROW_BITS = 32  # a location is (number of the shard << 32) | row
_ROW_MASK = (1 << _ROW_BITS) - 1
_KEY_BYTES = 40  # memory per key while it is read and indexed


Result = TypeVar("Result")


class _Intact(Protocol):
    def __call__(self, path: Path, read: Callable[[], Result]) -> Result | None: ...


class ShardStore:
    """The shards of one embedder.

    Locations are plain integers, valid as long as this object lives.
    """

    def __init__(self, folder: Path, dimension: int, zeros: bool = False) -> None:
        """Open ``folder``, creating it (0700) if missing, and index its shards.

        Args:
            zeros: Whether a row of zeros may be stored.

        Raises:
            InputError: The folder cannot be made or read.
        """
        self.folder = folder
        self.dimension = dimension
        self.zeros = zeros
        self._shards: list[Shard | None] = []
        self._numbers: dict[str, int] = {}  # by file name
        self._index = KeyIndex()
        self._listed_at: int | None = None
        make_private_folder(folder)
        remove_abandoned(folder)
        self.refresh()

    def __len__(self) -> int:
        """Number of stored keys; a key in two shards counts twice."""
        return len(self._index)

    def find(self, keys: Keys) -> Values:
        """Locations of ``keys`` (n, 2), ABSENT if a text is not stored; (n,)."""
        return self._index.find(keys)

    def refresh(self, force: bool = False) -> None:
        """Index new shards and drop removed ones; cheap if the folder has not changed."""
        changed_at = self.folder.stat().st_mtime_ns
        if changed_at == self._listed_at and not force:
            return
        # A shared folder may contain anything: reading a pipe would never end, and a link may be circular.
        found = (entry for entry in os.scandir(self.folder) if entry.name.endswith(SUFFIX))
        names = {entry.name for entry in found if Path(entry.path).is_file()}
        for name in [name for name in self._numbers if name not in names]:
            self._forget(self._numbers[name])
        self._open(sorted(names - self._numbers.keys()))
        self._listed_at = changed_at

    def add(self, keys: Keys, vectors: Vectors, rows_to_come: int = 0) -> None:
        """Store vectors (n, d) under keys (n, 2), synced to disk.

        Args:
            rows_to_come: Number of rows that will follow, for the message about a full disk.

        Raises:
            InputError: The disk is full.
        """
        with full_disk_explained(self.folder, shard_size_in_bytes(len(keys) + rows_to_come, self.dimension)):
            path = write_shard(self.folder, keys, vectors)
        if path.name not in self._numbers:
            self._open([path.name])
        self.trust(self.find(keys[:1]))  # just written from memory

    def check(self, locations: Values, mine: Callable[[str], bool] = lambda name: True) -> bool:
        """Verify the vectors of the shards of ``locations``; set damaged ones aside.

        Args:
            mine: Whether this process verifies the shard with a given file name; other processes verify the rest.

        Returns:
            Whether all shards are intact. If not, look the keys up again.
        """
        sound_ones = True
        with self._damaged() as intact:
            for number in np.unique(locations[locations != ABSENT] >> _ROW_BITS).tolist():
                shard = self._shards[number]
                if shard is None or (mine(shard.path.name) and not intact(shard.path, shard.verify)):
                    self._forget(number)
                    sound_ones = False
        return sound_ones

    def trust(self, locations: Values) -> None:
        """Mark the shards of ``locations`` as verified, because other processes verified them."""
        for number in np.unique(locations[locations != ABSENT] >> _ROW_BITS).tolist():
            shard = self._shards[number]
            if shard is not None:
                shard.verified = True

    def read(self, locations: Values) -> Vectors:
        """Vectors at ``locations`` (n,), none of them ABSENT; (n, d).

        Raises:
            DamagedShardError: A shard is damaged or has been removed.
            InputError: A vector is not sound; older versions stored vectors unchecked.
        """
        vectors = np.empty((len(locations), self.dimension), dtype=np.float32)
        for number, places in _by_shard(locations):
            shard = self._shards[number]
            found = None
            if shard is not None and (shard.verified or self.check(locations[places])):
                with self._damaged() as intact:
                    found = intact(shard.path, partial(shard.read, locations[places] & _ROW_MASK))
            if shard is None or found is None:
                self._forget(number)
                raise DamagedShardError(f"a shard of {self.folder} was damaged and has been set aside")
            good = sound(found, self.zeros)
            if not good.all():
                raise InputError(
                    f"the embedding cache {self.folder} holds {flaw(found[good.argmin()])} that an embedder gave in an "
                    f"earlier run: remove {shard.path}, and its {shard.rows:,} texts are embedded again"
                )
            vectors[places] = found
        return vectors

    def _open(self, names: Iterable[str]) -> None:
        with self._damaged() as intact:
            paths = [self.folder / name for name in names]
            found = [shard for path in paths if (shard := intact(path, partial(Shard, path, self.dimension)))]
            self._add_to_index(found, intact)

    def _add_to_index(self, shards: Sequence[Shard], intact: _Intact) -> None:
        # For five million keys these three arrays take 120 MB; many small arrays would fragment as much memory.
        room, filled = sum(shard.rows for shard in shards), 0
        if room * _KEY_BYTES > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            largest = max(shards, key=lambda shard: shard.rows)
            raise InputError(
                f"the embedding cache {self.folder}: {largest.path.name} is said to hold {largest.rows:,} rows, whose "
                "keys do not fit into the memory; remove it, and its texts are embedded again"
            )
        high, low, locations = np.empty(room, np.uint64), np.empty(room, np.uint64), np.empty(room, np.int64)
        for shard in shards:
            if (keys := intact(shard.path, shard.keys)) is None:
                continue
            number = self._numbers[shard.path.name] = len(self._shards)
            self._shards.append(shard)
            part = slice(filled, filled + shard.rows)
            high[part], low[part] = keys
            locations[part] = np.arange(shard.rows, dtype=np.int64) | (number << _ROW_BITS)
            filled += shard.rows
        self._index.add(high[:filled], low[:filled], locations[:filled])

    @contextlib.contextmanager
    def _damaged(self) -> Iterator[_Intact]:
        """Give a function that reads a shard, or sets it aside and returns None if it is damaged; then warn."""
        damaged: list[str] = []

        def intact(path: Path, read: Callable[[], Result]) -> Result | None:
            try:
                return read()
            except FileNotFoundError:  # another process has set it aside
                return None
            except DamagedShardError as error:
                damaged.append(f"{path.name} ({error})")
                set_aside(path)
                return None

        yield intact
        if damaged:
            log.warning(
                "embedding cache %s: %d damaged file(s) set aside as *.damaged, their texts are embedded again: %s",
                self.folder,
                len(damaged),
                "; ".join(damaged[:3]) + (f"; and {len(damaged) - 3} more" if len(damaged) > 3 else ""),
            )

    def _forget(self, number: int) -> None:
        shard = self._shards[number]
        if shard is None:
            return
        self._shards[number] = None
        del self._numbers[shard.path.name]
        self._index.drop(number << _ROW_BITS, (number + 1) << _ROW_BITS)


@contextlib.contextmanager
def full_disk_explained(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Turn the error of a full disk into one that names the folder and the space needed.

    Raises:
        InputError: The disk is full, or the quota is used up.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        if error.errno == errno.EFBIG:
            raise InputError(
                f"the embedding cache {folder}: a file would be larger than this process may write (ulimit -f); what "
                "was finished before is kept"
            ) from error
        raise InputError(
            f"the disk of the embedding cache {folder} is full: {needed_bytes / 1e6:,.1f} MB are needed, "
            f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB are free; what was finished before is kept, and the next "
            "run continues there"
        ) from error


def make_private_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents with mode 0700.

    Raises:
        InputError: A folder cannot be created.
    """
    try:
        for path in [*reversed(folder.parents), folder]:
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise InputError(
            f"cache_dir: the embedding cache {folder} cannot be made: {error.strerror}; choose another place by "
            "cache_dir=<directory>, or by the variable UNEMBED_CACHE"
        ) from error


def _by_shard(locations: Values) -> Iterable[tuple[int, Positions | slice]]:
    """The shards of ``locations``, each with the positions of its locations."""
    numbers = locations >> _ROW_BITS
    if not len(numbers):
        return
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), slice(None)
        return
    order: NDArray[np.int64] = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for places in np.split(order, cuts):
        yield int(numbers[places[0]]), places
