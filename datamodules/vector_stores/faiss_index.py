"""Vectors of a FAISS index: ``mine.faiss``, or ``faiss:mine.index``, for ``unembed audit``."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.core.errors import InputError, missing
from unembed.datamodules.vector_stores.base import client_library
from unembed.datamodules.vector_stores.child import Answer, Child, ChildStore, limits_for

_FAISS_HEADER = struct.Struct("<4siq")  # kind, dimension, vectors
_LARGEST_DIMENSION = 1 << 20


def open_faiss(place: str, collection: str | None) -> ChildStore:
    """Open an index file; its ids are those of an IndexIDMap, or row numbers.

    An index of compressed vectors (PQ, SQ) gives reconstructed vectors, as available to an attacker with the file.

    FAISS trusts the file: a few changed bytes can exhaust memory, loop forever, or crash it. So the header is checked
    against the file's size, and the index is only loaded in a child process (child.py), within limits that grow with
    the file.
    """
    client_library("faiss", "faiss", place)  # for the child
    if collection is not None:
        raise InputError(f"collection={collection}: an index has no collections; leave it out")
    path = Path(place).expanduser()
    if not path.is_file():
        raise InputError(f"vectors={place}: {missing(path)}")
    size = _check_faiss(path, place)
    child = Child(f"vectors={place}", read_index, [str(path), place], ["faiss"], limits_for(size))
    return ChildStore(place, child.opened["ids"] or range(child.opened["rows"]), child)


def _check_faiss(path: Path, place: str) -> int:
    """The size of the file, in bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_FAISS_HEADER.size)
    if len(start) < _FAISS_HEADER.size or not start[:4].isalnum():
        raise InputError(f"vectors={place}: not a FAISS index")
    _, dimension, rows = _FAISS_HEADER.unpack(start)
    # Every kind of index takes at least one byte for a vector.
    if not (0 < dimension <= _LARGEST_DIMENSION and 0 <= rows <= size):
        raise InputError(
            f"vectors={place}: not a FAISS index, or a damaged one: {rows} vectors of dimension {dimension} in "
            f"{size} bytes"
        )
    return size


def read_index(path: str, place: str) -> tuple[dict[str, Any], Answer]:
    """The opener of the child: the number of rows, ids where the index has them, and what gives vectors back."""
    import faiss

    size = Path(path).stat().st_size
    for limit in ("set_deserialization_vector_byte_limit", "set_deserialization_loop_limit"):
        if hasattr(faiss, limit):  # newer versions have them
            getattr(faiss, limit)(size)
    try:
        owner = index = faiss.read_index(path, faiss.IO_FLAG_READ_ONLY)
    except RuntimeError as error:
        raise InputError(f"vectors={place}: not a FAISS index: {_last_line(error)}") from error
    ids = None
    if isinstance(index, faiss.IndexIDMap):
        ids = faiss.vector_to_array(index.id_map).tolist()
        index = faiss.downcast_index(index.index)
    rows = index.ntotal
    if not 0 <= rows <= size or (ids is not None and len(ids) != rows):
        raise InputError(f"vectors={place}: a damaged FAISS index: {rows} vectors in {size} bytes")
    lists = faiss.try_extract_index_ivf(index)  # within a transformation of the vectors too
    if lists is not None:
        if isinstance(faiss.downcast_index(lists), faiss.IndexIVFFastScan):  # its reconstruct_batch crashes
            raise InputError(f"vectors={place}: FAISS does not give the vectors of fast-scan lists (PQ4x4fs) back")
        if lists.invlists is None or isinstance(
            faiss.downcast_InvertedLists(lists.invlists), faiss.OnDiskInvertedLists
        ):
            raise InputError(f"vectors={place}: its vectors lie in another file, which is not read; merge them into it")
        try:
            lists.make_direct_map()  # its vectors lie in lists; this notes which row lies where
        except RuntimeError as error:
            raise InputError(f"vectors={place}: a damaged FAISS index: {_last_line(error)}") from error

    def answer(positions: list[int], _owner: Any = owner) -> NDArray[np.float32]:  # which frees the index within it
        try:
            vectors: NDArray[np.float32] = index.reconstruct_batch(np.asarray(positions, np.int64))
        except RuntimeError as error:
            raise InputError(
                f"vectors={place}: this kind of index ({type(index).__name__}) does not give its vectors back, or is "
                f"damaged: {_last_line(error)}"
            ) from error
        return vectors

    return {"rows": rows, "ids": ids}, answer


def _last_line(error: RuntimeError) -> str:
    """What FAISS says, without the place in its sources."""
    return re.sub(r"^Error in .* at \S+:\d+: ", "", str(error).strip().splitlines()[-1])
