"""Precision, recall and F1 of sets, summed over all examples before dividing: GEIA's classification view (section
4.2).

    micro([Sets({"i", "love", "dogs"}, {"i", "love"}), Sets({"hi"}, {"a", "b"})])
    ->  precision 2/4, recall 2/4, F1 4/8

A set holds words, or token ids of any tokenizer. An item counts once an example, however often it occurs: an attack
that predicts a bag of words cannot know more. Means over examples (``metrics.tokens.overlap``) weigh a short text
like a long one; these sums do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metrics.tokens import Overlap


class Sets(NamedTuple):
    """What one example has, and what was predicted of it."""

    reference: frozenset[int] | frozenset[str]
    prediction: frozenset[int] | frozenset[str]


def micro(examples: Iterable[Sets]) -> Overlap | None:
    """Precision, recall and F1, each 0-100; 0 where nothing is shared, None where no example has a reference."""
    shared = wanted = offered = 0
    for reference, prediction in examples:
        shared += len(reference & prediction)
        wanted += len(reference)
        offered += len(prediction)
    if not wanted:
        return None
    if not shared:
        return Overlap(0.0, 0.0, 0.0)
    return Overlap(100 * shared / offered, 100 * shared / wanted, 200 * shared / (offered + wanted))
