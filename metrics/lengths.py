"""Groups of examples by the length of the reference, in tokens of the tokenizer that cut the texts.

by_length([Scored(..., subwords=<12 tokens>), Scored(..., subwords=<5 tokens>)])   ->   {"8": [1], "16": [0]}
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from unembed.metrics.scored import Scored

BOUNDS = (8, 16, 32, 64, 128, 256)  # most tokens of each group
LONGER = "longer"  # than the last of them
LENGTHS = (*map(str, BOUNDS), LONGER)
BY_LENGTH = "length/"
OF_LENGTH = ("token_f1", "bleu", "exact_match", "content_word_recovery", "entity_recovery")


def by_length(rows: Sequence[Scored]) -> dict[str, list[int]]:
    """The places of the rows of each group that has any, by name in order; rows of unknown length are left out."""
    found: dict[str, list[int]] = {name: [] for name in LENGTHS}
    for place, row in enumerate(rows):
        if row.subwords is not None and row.subwords.lengths is not None:
            found[LENGTHS[bisect_left(BOUNDS, row.subwords.lengths[0])]].append(place)
    return {name: places for name, places in found.items() if places}
