"""The first, last and full names of people, from labelled spans.

    "Dr. Ada Lovelace met Grace"   person: Ada Lovelace, Grace
                                   ->  first: Ada, last: Lovelace, full: Ada Lovelace
    "Ada Lovelace met Hopper"      first_name: Ada; last_name: Lovelace, Hopper
                                   ->  first: Ada, last: Lovelace, Hopper, full: Ada Lovelace

A person's name of two or more words gives a first name (first word), a last name (last word) and a full name. A single
word could be either, so it counts only as an entity. A first name directly followed by a last name, separated by white
space, is a full name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from unembed.core.examples import Span

FIRST = frozenset({"first_name", "given_name", "forename"})
LAST = frozenset({"last_name", "family_name", "surname"})
WHOLE = frozenset({"name", "full_name", "person", "person_name", "per"})
_SEPARATOR = re.compile(r"[\s\-]+")


class Names(NamedTuple):
    """The names in one reference, repeated as often as they are labelled."""

    first: list[str]
    last: list[str]
    full: list[str]


def names(text: str, spans: Sequence[Span]) -> Names:
    """The names in ``text``; spans with other labels are ignored, and so are case and hyphens of labels."""
    first: dict[tuple[int, int], str] = {}  # by position: a name that is labelled twice counts once
    last: dict[tuple[int, int], str] = {}
    full: dict[tuple[int, int], str] = {}
    ordered = sorted(spans, key=lambda span: (span.start, span.end))
    for span in ordered:
        label, found = _folded(span.label), text[span.start : span.end]
        if label in FIRST:
            first[span.start, span.end] = found
        elif label in LAST:
            last[span.start, span.end] = found
        elif label in WHOLE and len(parts := list(re.finditer(r"\S+", found))) > 1:
            first[span.start + parts[0].start(), span.start + parts[0].end()] = parts[0].group()
            last[span.start + parts[-1].start(), span.start + parts[-1].end()] = parts[-1].group()
            full[span.start + parts[0].start(), span.start + parts[-1].end()] = found.strip()
    for one, next_one in pairwise(span for span in ordered if _folded(span.label) in FIRST | LAST):
        between = text[one.end : next_one.start]
        if (one.start, one.end) in first and (next_one.start, next_one.end) in last and between.isspace():
            full[one.start, next_one.end] = text[one.start : next_one.end]
    return Names(list(first.values()), list(last.values()), list(full.values()))


def _folded(label: str) -> str:
    return _SEPARATOR.sub("_", label.strip().lower())
