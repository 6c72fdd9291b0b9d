"""Counts of a text's parts by class and kind: how many it has, and how many of these were recovered. Numbers, no text.

    counted(["so I met Ada in room 8"], ["so Ada met Bob"], None, ordered=True)[0].classes
    # {"names": (1, 1, 2), "numbers": (1, 0, 0), "free text": (2, 1, 1)}: in the true text, of these recovered, written

Classes are those of exposure.py; kinds are the labels of a tagger, or of the recognisers that need no model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unembed.audit.exposure import Items, items_of
from unembed.core.examples import Span
from unembed.metrics.entities import recovered_entities
from unembed.scoring.recognisers import Recognisers
from unembed.scoring.taggers import Tagger

Counts = Mapping[str, tuple[int, int, int]]


class Parts(NamedTuple):
    """Of a text, by class and by kind: parts of the true text, those of them recovered, parts of the recovered text."""

    classes: Counts
    kinds: Counts


def counted(
    truths: Sequence[str | None], recovered: Sequence[str], tagger: Tagger | None, *, ordered: bool
) -> list[Parts]:
    """The counts of each text.

    Args:
        truths: The true texts; None where it is not known, which then counts as empty.
        recovered: What was recovered of each.
        tagger: Finds entities; None: they are found by form.
        ordered: Whether the order of recovered words is meaningful.
    """
    texts = [*((one or "") for one in truths), *recovered]
    spans = (tagger or Recognisers()).tag(texts)
    by_class, _ = items_of(texts, [()] * len(texts) if tagger is None else spans)
    by_kind = [_labelled(text, one) for text, one in zip(texts, spans, strict=True)]
    size = len(recovered)
    return [
        Parts(*(_counts(values[row], values[size + row], recovered[row], ordered) for values in (by_class, by_kind)))
        for row in range(size)
    ]


def _labelled(text: str, spans: Sequence[Span]) -> Items:
    found: dict[str, list[str]] = defaultdict(list)
    for span in spans:
        if value := text[span.start : span.end].strip():
            found[span.label].append(value)
    return found


def _counts(true: Items, written: Items, recovered: str, ordered: bool) -> Counts:
    """Of each name that either has."""
    return {
        name: (
            len(true.get(name, ())),
            recovered_entities(true.get(name, ()), recovered, ordered=ordered),
            len(written.get(name, ())),
        )
        for name in dict.fromkeys([*true, *written])
        if true.get(name) or written.get(name)
    }
