"""Share of the references' entities and names that predictions recover (``metrics.entities``).

    "Dr. Ada Lovelace met Grace"   person: Ada Lovelace, Grace
                                   ->  first: Ada, last: Lovelace, full: Ada Lovelace
    "Ada Lovelace met Hopper"      first_name: Ada; last_name: Lovelace, Hopper
                                   ->  first: Ada, last: Lovelace, Hopper, full: Ada Lovelace

A person's name of two or more words gives a first name (first word), a last name (last word) and a full name. A single
word could be either, so it counts only as an entity. A first name directly followed by a last name, separated by white
space, is a full name.

An attack that chooses words from a lexicon cannot write what the lexicon lacks. So its recovery is counted inside and
outside the lexicon, too: one value over both would mix the search with its lexicon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from unembed.core.examples import Span
from unembed.metrics.base import Description, Ratio
from unembed.metrics.entities import recovered_entities, span_text
from unembed.metrics.scored import Scored

FIRST = frozenset({"first_name", "given_name", "forename"})
LAST = frozenset({"last_name", "family_name", "surname"})
WHOLE = frozenset({"name", "full_name", "person", "person_name", "per"})
_SEPARATOR = re.compile(r"[\s\-]+")


class EntityRecovery(Ratio[Scored]):
    """Share of labelled spans that are recovered.

    Args:
        label: Only spans with this label; None for all.
    """

    needs = "labels"

    def __init__(self, label: str | None = None) -> None:
        super().__init__()
        self.description, self.label = _described(label), label

    def of_example(self, row: Scored) -> tuple[int, int]:
        return recovered_spans(row, [self.label in (None, span.label) for span in row.spans])


def _described(label: str | None) -> Description:
    if label is None:
        explanation = "Share of labelled names, places, dates and the like that came back."
        return Description("entity_recovery", "Entities", explanation)
    title, explanation = f"Entities: {label.replace('_', ' ')}", "Share of the entities of this kind that came back."
    return Description(f"entity_recovery/{label}", title, explanation, secondary=True)


class UnseenEntityRecovery(Ratio[Scored]):
    """Share of recovered spans among those that no training text contains with the same label (``Scored.unseen``)."""

    description = Description(
        "entity_recovery_unseen", "Entities, unseen", "The same, for values that no training text contains."
    )
    needs = "labels"

    def of_example(self, row: Scored) -> tuple[int, int]:
        return (0, 0) if row.unseen is None else recovered_spans(row, row.unseen)


class EntityWordRecovery(Ratio[Scored]):
    """GEIA's NERR as the script of its authors counts it; without a tagger None (``Scored.entity_words``)."""

    description = Description(
        "entity_word_recovery",
        "Entities, words",
        "Share of the words of entities that a tagger marks in both texts; of a set, share of their tokens.",
        reference="GEIA, section 4.2",
    )
    needs = "models"

    def of_example(self, row: Scored) -> tuple[int, int]:
        return row.entity_words or (0, 0)


def recovered_spans(row: Scored, chosen: Iterable[bool]) -> tuple[int, int]:
    """Of the ``chosen`` spans of a row: how many are recovered, and how many there are."""
    values = [span_text(row.reference, span) for span, wanted in zip(row.spans, chosen, strict=True) if wanted]
    return recovered_entities(values, row.prediction, ordered=row.kind == "sequence"), len(values)


class NameRecovery(Ratio[Scored]):
    """Share of the first, last or full names of people that are recovered."""

    needs = "labels"

    def __init__(self, part: Literal["first", "last", "full"]) -> None:
        super().__init__()
        explanation = {
            "first": "Share of the people's first names that came back.",
            "last": "Share of the people's last names that came back.",
            "full": "Share of the first names with the last name after.",
        }[part]
        title = f"{part.capitalize()} names"
        self.description, self.part = Description(f"name_{part}_recovery", title, explanation, secondary=True), part

    def of_example(self, row: Scored) -> tuple[int, int]:
        values = getattr(names(row.reference, row.spans), self.part)
        return recovered_entities(values, row.prediction, ordered=row.kind == "sequence"), len(values)


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


class LexiconCoverage(Ratio[Scored]):
    """Share of the labelled spans that the lexicon has.

    Args:
        unseen: Only spans that no training text has.
    """

    needs = "labels"

    def __init__(self, *, unseen: bool = False) -> None:
        super().__init__()
        self.unseen = unseen
        key, title, explanation = (
            ("_unseen", ", unseen,", "Share of the values that no training text contains.")
            if unseen
            else ("", "", "Share of the entities whose words it has.")
        )
        self.description = Description(
            f"entity_coverage{key}", f"Entities{title} that the lexicon has", explanation, None
        )

    def of_example(self, row: Scored) -> tuple[int, int]:
        if row.in_lexicon is None or (self.unseen and row.unseen is None):
            return 0, 0
        found = [one for one, new in zip(row.in_lexicon, _unseen(row), strict=True) if new or not self.unseen]
        return sum(found), len(found)


class LexiconEntityRecovery(Ratio[Scored]):
    """Share of recovered spans among those that the lexicon has, or lacks.

    Args:
        inside: Only spans that the lexicon has; otherwise only those that it lacks.
        unseen: Only spans that no training text has, or only spans that one has; None for both.
    """

    needs = "labels"

    def __init__(self, *, inside: bool, unseen: bool | None = None) -> None:
        super().__init__()
        self.inside, self.unseen = inside, unseen
        kind = {None: "", True: "unseen_", False: "seen_"}[unseen]
        self.description = Description(
            f"entity_recovery_{kind}{'in' if inside else 'outside'}_lexicon",
            f"Entities, {kind.replace('_', ', ')}{'in' if inside else 'outside'} the lexicon",
            f"Share that came back of those that the lexicon {'has' if inside else 'lacks'}.",
        )

    def of_example(self, row: Scored) -> tuple[int, int]:
        if row.in_lexicon is None or (self.unseen is not None and row.unseen is None):
            return 0, 0
        kinds = zip(row.in_lexicon, _unseen(row), strict=True)
        return recovered_spans(row, [one == self.inside and self.unseen in (None, new) for one, new in kinds])


def lexicon_metrics() -> list[LexiconCoverage | LexiconEntityRecovery]:
    """All metrics of an attack with a lexicon."""
    return [
        LexiconCoverage(),
        LexiconCoverage(unseen=True),
        *(LexiconEntityRecovery(inside=inside, unseen=unseen) for unseen in (None, True) for inside in (True, False)),
    ]


def _unseen(row: Scored) -> tuple[bool, ...]:
    return (False,) * len(row.spans) if row.unseen is None else row.unseen
