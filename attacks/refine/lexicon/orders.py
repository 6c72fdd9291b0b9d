"""Other orders of the units of a text: two neighbouring or separate spans in each other's place, ranked by bigrams.

    a crash concussion from a bicycle accident  ->  a concussion from a bicycle accident crash

A mean-pooled embedder hardly says where a word stands, so word order comes from the training text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.attacks.refine.lexicon.language import END, START, Language
from unembed.attacks.refine.lexicon.units import Units

_LONGEST = 4  # units of a span that changes places with one that is not its neighbour
_MOST_UNITS = 40  # of longer texts, spans of one or two units only
_Places = NDArray[np.intp]


def orders(units: Units, language: Language, most: int) -> Iterator[tuple[float, Units]]:
    """The ``most`` most fluent exchanges of two spans, with the log probability that each gains; see exchanges."""
    words = (START, *units.words, END)
    follows = np.array([[language.follows(left, right) for right in words] for left in words])
    for gain, places in exchanges(follows, most):
        yield gain, units.ordered(places)


def exchanges(follows: NDArray[np.float64], most: int) -> Iterator[tuple[float, list[int]]]:
    """Gain and new order of the places, for the ``most`` exchanges of two spans of n units that gain most.

    Neighbouring spans of any length change places (so one span moves), and separate ones of up to four units.

    Args:
        follows: Log probability of each unit (column) behind each other (row); the first and the last are the ends of
            the text, (n + 2, n + 2).
        most: Number of exchanges.
    """
    count = len(follows) - 2
    if count < 2:
        return
    i, j, k, m = _spans(count)  # [i, j) and [k, m) change places, in 1-based places
    middle = j < k
    old = follows[i - 1, i] + follows[m - 1, m] + follows[k - 1, k] + np.where(middle, follows[j - 1, j], 0)
    new = (
        follows[i - 1, k]
        + follows[j - 1, m]
        + np.where(middle, follows[m - 1, j] + follows[k - 1, i], follows[m - 1, i])
    )
    gain = (new - old).round(4)
    chosen = np.argsort(-gain, kind="stable")[:most]
    for row in chosen.tolist():
        a, b, c, d = (int(side[row]) - 1 for side in (i, j, k, m))
        yield float(gain[row]), [*range(a), *range(c, d), *range(b, c), *range(a, b), *range(d, count)]


@lru_cache(maxsize=128)
def _spans(count: int) -> tuple[Any, ...]:
    """First and last places, (i, j, k, m), of all pairs of spans of ``count`` units; j = k for neighbours."""
    any_length = count if count <= _MOST_UNITS else _LONGEST // 2  # of the shorter of two neighbouring spans
    longest = min(_LONGEST, any_length)
    found = []
    for i in range(1, count + 1):
        for j in range(i + 1, count + 1):
            last = count + 1 if j - i <= any_length else min(count + 1, j + any_length)
            found += [(i, j, j, m) for m in range(j + 1, last + 1)]
            if j - i <= longest:
                found += [
                    (i, j, k, m) for k in range(j + 1, count + 1) for m in range(k + 1, min(count + 1, k + longest) + 1)
                ]
    return tuple(np.array(side, dtype=np.intp) for side in zip(*found, strict=True))
