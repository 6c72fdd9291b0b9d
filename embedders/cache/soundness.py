"""Sound vectors, which may be stored: finite, not zero, and with a length that float32 can represent.

    sound(np.array([[0.6, 0.8], [0.0, 0.0], [3e38, 0.0]], dtype=np.float32))   # [True, False, False]
    flaw(np.zeros(2, dtype=np.float32))                                        # "a vector of zeros"

Users of the cache divide by lengths. A length is computed from squares, and in float32 the squares of numbers beyond
1e19 or below 1e-19 overflow or underflow. Only a broken embedder returns such numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unembed.embedders.cache.shards import Vectors

# Bounds of a vector's largest absolute value; with a million dimensions its length stays below 1e18.
LEAST, MOST = 1e-15, 1e15


def sound(vectors: Vectors, zeros: bool = False) -> NDArray[np.bool_]:
    """Which of ``vectors`` (n, d) may be stored, (n,).

    Args:
        zeros: Whether a row of zeros is sound: token id 0 of a language model's output is one.
    """
    largest = np.maximum(vectors.max(axis=1, initial=0), -vectors.min(axis=1, initial=0))  # NaN where one number is
    found: NDArray[np.bool_] = (largest >= LEAST) & (largest <= MOST)
    return found | (largest == 0) if zeros else found


def flaw(vector: Vectors) -> str:
    """Why a vector (d,) is not sound, for a message after "gave"."""
    if not np.isfinite(vector).all():
        return "NaN, null or infinity"
    if not vector.any():
        return "a vector of zeros"
    return f"a vector whose largest number is {np.abs(vector).max():.1e} (possible are {LEAST:g} to {MOST:g})"
