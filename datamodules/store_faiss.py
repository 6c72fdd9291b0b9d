"""Vectors of a FAISS index file: ``faiss:mine.index`` or ``mine.faiss``.

An index of compressed vectors (PQ, SQ) gives what it reconstructs, which is all that a thief of the file would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from errors import InputError


class FaissStore:
    """An index; its ids are those of an IndexIDMap, or row numbers."""

    def __init__(self, name: str, index: Any, ids: Sequence[str], owner: Any) -> None:
        self.name, self._index, self.ids = name, index, ids
        self._owner = owner  # an index within another is freed with it

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """See VectorStore."""
        try:
            found: NDArray[Any] = self._index.reconstruct_batch(np.asarray(positions, np.int64))
        except RuntimeError as error:
            raise InputError(
                f"vectors={self.name}: this kind of index ({type(self._index).__name__}) does not give its vectors "
                f"back: {_last_line(error)}"
            ) from error
        return found


def open_faiss(place: str, collection: str | None) -> FaissStore:
    """Read an index file.

    Raises:
        InputError: faiss is not installed; no such file, or not an index.
    """
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise InputError(f"vectors={place}: needs the library faiss; pip install 'unembed[faiss]'") from error
    if collection is not None:
        raise InputError(f"collection={collection}: an index has no collections; leave it out")
    path = Path(place).expanduser()
    if not path.is_file():
        raise InputError(f"vectors={place}: no such file")
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise InputError(f"vectors={place}: not a FAISS index: {_last_line(error)}") from error
    owner, ids = index, [str(row) for row in range(index.ntotal)]
    if isinstance(index, faiss.IndexIDMap):
        ids = [str(number) for number in faiss.vector_to_array(index.id_map).tolist()]
        index = faiss.downcast_index(index.index)
    if isinstance(index, faiss.IndexIVF):  # its vectors lie in lists; this notes which row lies where
        index.make_direct_map()
    return FaissStore(place, index, ids, owner)


def _last_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[-1]
