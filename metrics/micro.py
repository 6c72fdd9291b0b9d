"""The sets that precision, recall and F1 are counted over (``metrics.word_overlap.MicroOverlap``).

A set holds words, or token ids of any tokenizer. An item counts once an example, however often it occurs: an attack
that predicts a bag of words cannot know more.
"""

from __future__ import annotations

from typing import NamedTuple


class Sets(NamedTuple):
    """What one example has, and what was predicted of it."""

    reference: frozenset[int] | frozenset[str]
    prediction: frozenset[int] | frozenset[str]
