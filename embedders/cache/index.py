"""A compact map from 128-bit keys to integers that is cheap to extend.

The keys are stored in a few sorted arrays, each at least twice as long as the next. Adding n keys in small groups costs
O(n log n) in all, and a look-up is one binary search in each array. A key takes 8 bytes of memory, and in a large map
16 bytes of a temporary file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unembed.core.temporary_map import MappedArray
from unembed.embedders.cache.shards import Keys

Values = NDArray[np.int64]
Positions = NDArray[np.int64]

ABSENT = -1
_AT_ONCE = 2**17  # keys looked up together: a look-up needs eight times their memory


class _Run(NamedTuple):
    high: NDArray[np.uint64]  # sorted
    low: MappedArray  # only read for keys whose first half is found
    values: MappedArray


class KeyIndex:
    """Maps keys to integers >= 0. For a key that was added twice, either value may be returned."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(len(run.high) for run in self._runs)

    def add(self, high: NDArray[np.uint64], low: NDArray[np.uint64], values: Values) -> None:
        """Add keys by their two halves, (n,) each, with values (n,); the arrays are kept, and sorted in place."""
        if not len(high):
            return
        self._runs.append(_sorted(high, low, values))
        while len(self._runs) > 1 and len(self._runs[-2].high) < 2 * len(self._runs[-1].high):
            newer, older = self._runs.pop(), self._runs.pop()
            high = np.concatenate([older.high, newer.high])
            low, values = (np.concatenate([one[:], other[:]]) for one, other in zip(older[1:], newer[1:], strict=True))
            self._runs.append(_sorted(high, low, values))

    def find(self, keys: Keys) -> Values:
        """Values of ``keys`` (n, 2), ABSENT where a key is not known; (n,)."""
        found = np.empty(len(keys), dtype=np.int64)
        for begin in range(0, len(keys), _AT_ONCE):
            found[begin : begin + _AT_ONCE] = self._find(keys[begin : begin + _AT_ONCE])
        return found

    def _find(self, keys: Keys) -> Values:
        found = np.full(len(keys), ABSENT, dtype=np.int64)
        open_ = np.arange(len(keys))
        for run in self._runs:
            high, low = keys[open_, 0], keys[open_, 1]
            places = np.searchsorted(run.high, high)
            looking = np.arange(len(open_))
            while len(looking):  # more than once only for keys that share their first 64 bits
                inside = places[looking] < len(run.high)
                looking = looking[inside]
                looking = looking[run.high[places[looking]] == high[looking]]
                hit = run.low[places[looking]] == low[looking]
                found[open_[looking[hit]]] = run.values[places[looking[hit]]]
                looking = looking[~hit]
                places[looking] += 1
            open_ = open_[found[open_] == ABSENT]
            if not len(open_):
                break
        return found

    def drop(self, first: int, last: int) -> None:
        """Remove all keys with values in ``first`` .. ``last`` (excluded)."""
        kept = []
        for run in self._runs:
            values = run.values[:]
            keep = (values < first) | (values >= last)
            if keep.any():
                kept.append(_Run(run.high[keep], MappedArray(run.low[:][keep]), MappedArray(values[keep])))
        self._runs = kept


def distinct(keys: Keys) -> Positions:
    """Positions of the first occurrence of each key in ``keys`` (n, 2), ascending."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return np.sort(order[first])  # lexsort is stable, so the first of equals is the earliest


def _sorted(high: NDArray[np.uint64], low: NDArray[np.uint64], values: Values) -> _Run:
    order = np.argsort(high, kind="stable")  # merges two sorted halves in linear time
    for array in (high, low, values):
        array[:] = array[order]  # one at a time: copies of all three would double the memory
    return _Run(high, MappedArray(low), MappedArray(values))
