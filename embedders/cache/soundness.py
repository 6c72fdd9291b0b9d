"""Which vectors may be stored: those that have a direction, and a length that float32 can hold.

    sound(np.array([[0.6, 0.8], [0.0, 0.0], [3e38, 0.0]], dtype=np.float32))   # [True, False, False]
    flaw(np.zeros(2, dtype=np.float32))                                        # "a vector of zeros"

Everything behind the cache divides by lengths. The length of a vector is computed from squares, and those of numbers
beyond 1e19 or below 1e-19 are infinite or zero in float32. No embedder gives such numbers, but a broken one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedders.cache.shards import Vectors

# Of the largest number of a vector. With a million dimensions its length stays below 1e18.
LEAST, MOST = 1e-15, 1e15


def sound(vectors: Vectors, zeros: bool = False) -> NDArray[np.bool_]:
    """Which of ``vectors`` (n, d) may be stored, (n,).

    Args:
        zeros: Whether a row of zeros is one of them: what is seen of a language model's output may be token 0.
    """
    largest = np.maximum(vectors.max(axis=1, initial=0), -vectors.min(axis=1, initial=0))  # NaN where one number is
    found: NDArray[np.bool_] = (largest >= LEAST) & (largest <= MOST)
    return found | (largest == 0) if zeros else found


def flaw(vector: Vectors) -> str:
    """What is wrong with a vector (d,) that is not sound, for a message that begins with "gave"."""
    if not np.isfinite(vector).all():
        return "NaN, null or infinity"
    if not vector.any():
        return "a vector of zeros"
    return f"a vector whose largest number is {np.abs(vector).max():.1e} (possible are {LEAST:g} to {MOST:g})"
