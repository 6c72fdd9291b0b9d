"""One shard: an immutable file of vectors, keyed by the hash of their texts.

    header   64 bytes: magic, version, dimension d, rows n, checksums of the keys, of the vectors and of the header
    keys     n x 8 bytes (first half of each key), then n x 8 bytes (second half), little-endian uint64
    vectors  n x d float32, little-endian, row i belonging to key i

The texts themselves are not stored. A shard is written under a temporary name, synced to disk and then renamed, so
readers on any machine see a complete shard or none. Its name is the hash of its content, so two writers of the same
shard write the same file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Vectors = NDArray[np.float32]

SUFFIX = ".shard"
TEMPORARY_SUFFIX = ".tmp"
DAMAGED_SUFFIX = ".damaged"

_ABANDONED_SECONDS = 3600  # no writer takes this long; matters on disks without file locks
_MAGIC = b"unembed\x00"
_VERSION = 1
_FIELDS = struct.Struct("<8sIIQ16s16s")  # the header without its own checksum
_HEADER_SIZE = 64
_CHUNK = 1 << 22  # bytes read at a time for a checksum, so that a shard is never copied into memory whole


class DamagedShardError(Exception):
    """A shard file is truncated, altered or of another kind; the message says which."""


def text_keys(texts: Sequence[str]) -> Keys:
    """128-bit keys of the exact characters of ``texts``, (n, 2) uint64."""
    buffer = bytearray()
    for text in texts:
        buffer += hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(buffer, dtype="<u8").reshape(-1, 2)


def shard_size_in_bytes(rows: int, dimension: int) -> int:
    """Size of a shard file of ``rows`` vectors of dimension ``dimension``."""
    return _HEADER_SIZE + rows * (16 + 4 * dimension)


def write_shard(folder: Path, keys: Keys, vectors: Vectors) -> Path:
    """Write a shard of keys (n, 2) and vectors (n, d) into ``folder`` and return its final path.

    Raises:
        OSError: The disk is full or not writable; nothing is left behind then.
    """
    n, dimension = vectors.shape
    key_bytes = np.ascontiguousarray(keys.T, dtype="<u8").tobytes()
    vector_bytes = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
    fields = _FIELDS.pack(_MAGIC, _VERSION, dimension, n, _checksum(key_bytes), _checksum(vector_bytes))
    header = fields + _checksum(fields)[: _HEADER_SIZE - _FIELDS.size]
    path = folder / (_checksum(header).hex() + SUFFIX)
    write_privately(path, header, key_bytes, vector_bytes)
    return path


def write_privately(path: Path, *parts: bytes) -> None:
    """Write a file (0600) atomically and sync it to disk.

    Raises:
        OSError: The disk is full or not writable; nothing is left behind then.
    """
    for again in (True, True, False):
        temporary = path.with_name(f"{os.getpid()}-{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                lock(descriptor)  # until the file is closed, so that remove_abandoned leaves it alone
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)
            break
        except FileNotFoundError:  # removed by a user
            if not (again and path.parent.is_dir()):
                raise
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    _sync_folder(path.parent)


class Shard:
    """An open shard: its header is checked when it is opened, keys and vectors when they are first read."""

    def __init__(self, path: Path, dimension: int) -> None:
        """Read the header of ``path``.

        Raises:
            DamagedShardError: Wrong size, bad header, or another dimension.
            FileNotFoundError: Another process has set the file aside.
        """
        self.path, self.dimension, self.verified = path, dimension, False
        with path.open("rb") as file:
            header, size = file.read(_HEADER_SIZE), os.fstat(file.fileno()).st_size
        if len(header) < _HEADER_SIZE:
            raise DamagedShardError(f"only {len(header)} bytes long")
        fields = header[: _FIELDS.size]
        magic, version, found, self.rows, self._key_checksum, self._vector_checksum = _FIELDS.unpack(fields)
        if magic != _MAGIC or header[_FIELDS.size :] != _checksum(fields)[: _HEADER_SIZE - _FIELDS.size]:
            raise DamagedShardError("the header is not that of a shard")
        if version != _VERSION:
            raise DamagedShardError(f"version {version} of the format, this program reads version {_VERSION}")
        if found != dimension:
            raise DamagedShardError(f"vectors of dimension {found} instead of {dimension}")
        if size != shard_size_in_bytes(self.rows, dimension):
            raise DamagedShardError(f"{size} bytes instead of {shard_size_in_bytes(self.rows, dimension)}")

    def keys(self) -> Keys:
        """The two halves of the keys, (2, n), read from the file.

        Raises:
            DamagedShardError: They do not match their checksum.
            FileNotFoundError: As :meth:`verify`.
        """
        with self.path.open("rb") as file:
            file.seek(_HEADER_SIZE)
            content = file.read(16 * self.rows)
        if _checksum(content) != self._key_checksum:
            raise DamagedShardError("the keys do not match their checksum")
        return np.frombuffer(content, dtype="<u8").reshape(2, self.rows)

    def verify(self) -> bool:
        """Compare the vectors with their checksum, once per process; returns True.

        Raises:
            DamagedShardError: The vectors do not match their checksum.
            FileNotFoundError: Another process has set the file aside.
        """
        if not self.verified:
            digest = hashlib.blake2b(digest_size=16)
            with self.path.open("rb") as file:
                file.seek(_HEADER_SIZE + 16 * self.rows)
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
            if digest.digest() != self._vector_checksum:
                raise DamagedShardError("the vectors do not match their checksum")
        self.verified = True
        return True

    def read(self, rows: NDArray[np.int64]) -> Vectors:
        """The vectors of ``rows`` (m,), (m, d).

        The file is not memory-mapped: with large pages, each row could make up to 2 MB of it resident.

        Raises:
            DamagedShardError: The file has become shorter.
            FileNotFoundError: Another process has set the file aside.
        """
        vectors: Vectors = np.empty((len(rows), self.dimension), dtype="<f4")
        start, size = _HEADER_SIZE + 16 * self.rows, 4 * self.dimension
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for place, row in enumerate(rows.tolist()):
                if os.preadv(descriptor, [vectors[place]], start + row * size) < size:
                    raise DamagedShardError(f"{self.path} ends before row {row}")
        finally:
            os.close(descriptor)
        return vectors


def lock(descriptor: int) -> bool:
    """Lock an open file for this process, without waiting; the lock ends with the process at the latest.

    Returns:
        False where another process holds it. A disk without locks (some network ones) locks nothing: True.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of killed processes: those that are an hour old and not locked.

    Their age is measured by the clock of the file system, which may be another machine's.
    """
    found = [path for path in folder.glob(f"*{TEMPORARY_SUFFIX}") if path.is_file()]
    if not found:
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as made_now:
            now = os.fstat(made_now.fileno()).st_mtime
        for path in found:
            with path.open("rb+") as file:
                if now - os.fstat(file.fileno()).st_mtime > _ABANDONED_SECONDS and lock(file.fileno()):
                    path.unlink()
    except OSError:  # another process removed them, or this one has no write permission here
        return


def set_aside(path: Path) -> None:
    """Rename a damaged shard so that it is not opened again; another process may have done so already."""
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_suffix(DAMAGED_SUFFIX))


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
