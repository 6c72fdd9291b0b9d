"""A temporary file that is written once and then memory-mapped, so that the system can evict its pages.

The file has no name, so nothing remains when the process ends. ``TMPDIR`` sets its directory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import shutil
import tempfile
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from unembed.core.errors import InputError

Places = slice | list[int] | NDArray[np.integer[Any]]
IN_MEMORY = 1_000_000  # bytes; smaller arrays stay in memory
READ_BEFORE_RELEASE = 256  # values; each read makes up to 64 KB of the file resident


class TemporaryMap:
    """Accepts bytes like a file; ``content`` returns them memory-mapped."""

    closed = False

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed when it is mapped
        self._content: mmap.mmap | None = None
        self._size = self._since = 0

    def write(self, content: bytes | memoryview) -> int:
        """Add bytes."""
        try:
            self._size += len(content)
            return self._file.write(content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            folder = tempfile.gettempdir()
            raise InputError(
                f"{folder}: no room for the texts in a temporary file, of which {self._size / 1e6:,.1f} MB are written "
                f"and {shutil.disk_usage(folder).free / 1e6:,.1f} MB are free; the variable TMPDIR names another place"
            ) from error

    def flush(self) -> None:
        """Write buffered bytes."""
        self._file.flush()

    def content(self) -> mmap.mmap:
        """All written bytes, at least one; nothing can be written afterwards."""
        self._file.flush()
        self._content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        return self._content

    def read(self, rows: int, most: int) -> None:
        """Record that ``rows`` were read; after ``most`` rows the resident pages are released."""
        self._since += rows
        if self._since >= most and self._content is not None:
            self._content.madvise(mmap.MADV_DONTNEED)
            self._since = 0


def give_back() -> None:
    """Return freed memory to the system: glibc and Arrow would keep up to 200 MB for later use."""
    pyarrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MappedArray:
    """An array (n,) that is kept in a temporary file if it is large; indexing copies the values out."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values, self._memory = values, TemporaryMap() if values.nbytes > IN_MEMORY else None
        if self._memory is not None:
            self._memory.write(np.ascontiguousarray(values).data.cast("B"))
            self._values = np.frombuffer(self._memory.content(), values.dtype)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, places: Places) -> NDArray[Any]:
        """The values at ``places``."""
        found: NDArray[Any] = self._values[places]
        if self._memory is not None:
            found = found.copy()
            self._memory.read(1 if isinstance(places, slice) else len(places), most=READ_BEFORE_RELEASE)
        return found
