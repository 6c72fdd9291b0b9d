"""How many of the references' entities and names the predictions disclose.

    reference   "Ada moved to Paris; Ada likes it."   spans: Ada (first_name), Paris (city), Ada (first_name)
    prediction  "ada, do you like PARIS?"             -> 2 of 3: one of the two Adas, and Paris

An entity counts as recovered if its text occurs in the prediction as whole words: not inside a longer word, and not
inside a longer number ("250" is not in "1,250"). Case, the kind of apostrophe and the amount of white space are
ignored; everything else must match, including punctuation. The prediction needs no labels.

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
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from unembed.core.examples import Span
from unembed.metrics.base import Description, Ratio
from unembed.metrics.scored import Scored
from unembed.metrics.tokens import needs_boundary, treebank_tokens, words

FIRST = frozenset({"first_name", "given_name", "forename"})
LAST = frozenset({"last_name", "family_name", "surname"})
WHOLE = frozenset({"name", "full_name", "person", "person_name", "per"})
_SEPARATOR = re.compile(r"[\s\-]+")
_DIGIT_BEFORE = re.compile(r"\d[.,:]\Z")
_DIGIT_AFTER = re.compile(r"[.,:]\d")


# -- metrics ----------------------------------------------------------------------------------------------------------


class _Recovery(Ratio[Scored]):
    needs = "labels"

    def recovered(self, row: Scored, values: Sequence[str]) -> tuple[int, int]:
        """How many of ``values`` are recovered, and how many there are."""
        return recovered_entities(values, row.prediction, ordered=row.kind == "sequence"), len(values)

    def recovered_spans(self, row: Scored, chosen: Iterable[bool]) -> tuple[int, int]:
        """The same of the ``chosen`` spans."""
        spans = zip(row.spans, chosen, strict=True)
        return self.recovered(row, [span_text(row.reference, span) for span, is_chosen in spans if is_chosen])


class EntityRecovery(_Recovery):
    """Share of labelled spans that are recovered.

    Args:
        label: Only spans with this label; None for all.
    """

    def __init__(self, label: str | None = None) -> None:
        super().__init__()
        self.label = label
        self.description = Description(
            "entity_recovery", "Entities", "Share of labelled names, places, dates and the like that came back."
        ) if label is None else Description(
            f"entity_recovery/{label}",
            f"Entities: {label.replace('_', ' ')}",
            "Share of the entities of this kind that came back.",
            secondary=True,
        )  # fmt: skip

    def of_example(self, row: Scored) -> tuple[int, int]:
        return self.recovered_spans(row, [self.label in (None, span.label) for span in row.spans])


class UnseenEntityRecovery(_Recovery):
    """Share of recovered spans among those that no training text contains with the same label (``Scored.unseen``)."""

    description = Description(
        "entity_recovery_unseen", "Entities, unseen", "The same, for values that no training text contains."
    )

    def of_example(self, row: Scored) -> tuple[int, int]:
        return (0, 0) if row.unseen is None else self.recovered_spans(row, row.unseen)


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


class NameRecovery(_Recovery):
    """Share of the first, last or full names of people that are recovered."""

    def __init__(self, part: Literal["first", "last", "full"]) -> None:
        super().__init__()
        self.part = part
        explanation = {
            "first": "Share of the people's first names that came back.",
            "last": "Share of the people's last names that came back.",
            "full": "Share of the first names with the last name after.",
        }[part]
        self.description = Description(
            f"name_{part}_recovery", f"{part.capitalize()} names", explanation, secondary=True
        )

    def of_example(self, row: Scored) -> tuple[int, int]:
        return self.recovered(row, getattr(names(row.reference, row.spans), self.part))


class LexiconCoverage(Ratio[Scored]):
    """Share of the labelled spans that the lexicon has.

    Args:
        unseen: Only spans that no training text has.
    """

    needs = "labels"

    def __init__(self, *, unseen: bool = False) -> None:
        super().__init__()
        self.unseen = unseen
        self.description = Description(
            "entity_coverage_unseen",
            "Entities, unseen, that the lexicon has",
            "Share of the values that no training text contains.",
            None,
        ) if unseen else Description(
            "entity_coverage", "Entities that the lexicon has", "Share of the entities whose words it has.", None
        )  # fmt: skip

    def of_example(self, row: Scored) -> tuple[int, int]:
        if row.in_lexicon is None or (self.unseen and row.unseen is None):
            return 0, 0
        covered = [has for has, new in zip(row.in_lexicon, _unseen(row), strict=True) if new or not self.unseen]
        return sum(covered), len(covered)


class LexiconEntityRecovery(_Recovery):
    """Share of recovered spans among those that the lexicon has, or lacks.

    Args:
        inside: Only spans that the lexicon has; otherwise only those that it lacks.
        unseen: Only spans that no training text has, or only spans that one has; None for both.
    """

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
        return self.recovered_spans(row, [has == self.inside and self.unseen in (None, new) for has, new in kinds])


def lexicon_metrics() -> list[LexiconCoverage | LexiconEntityRecovery]:
    """All metrics of an attack with a lexicon."""
    return [
        LexiconCoverage(),
        LexiconCoverage(unseen=True),
        *(LexiconEntityRecovery(inside=inside, unseen=unseen) for unseen in (None, True) for inside in (True, False)),
    ]


def _unseen(row: Scored) -> tuple[bool, ...]:
    return (False,) * len(row.spans) if row.unseen is None else row.unseen


# -- entities of a text ------------------------------------------------------------------------------------------------


def span_text(text: str, span: Span) -> str:
    """The characters of ``span``, which must be inside the text and not blank."""
    if not 0 <= span.start < span.end <= len(text):
        raise ValueError(
            f"span {span.start}-{span.end} ({span.label}) reaches outside a text of {len(text)} characters"
        )
    value = text[span.start : span.end]
    if not value.strip():
        raise ValueError(f"span {span.start}-{span.end} ({span.label}) holds nothing but white space")
    return value


def entity_keys(text: str, spans: Iterable[Span]) -> list[tuple[str, str]]:
    """Keys of the spans in the set of training entities: label and lower-cased text."""
    return [(span.label, span_text(text, span).lower()) for span in spans]


def unseen_entities(text: str, spans: Iterable[Span], training: Collection[tuple[str, str]]) -> tuple[bool, ...]:
    """Of each span, whether its key is missing in ``training``: all ``entity_keys`` of the training split."""
    return tuple(key not in training for key in entity_keys(text, spans))


def entity_words(text: str, spans: Iterable[Span]) -> list[str]:
    """The words of all entities of ``text``, for GEIA's NERR: tokens of the Penn Treebank, case kept."""
    return [word for span in spans for word in treebank_tokens(span_text(text, span))]


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
    labels = [_SEPARATOR.sub("_", span.label.strip().lower()) for span in ordered]
    for span, label in zip(ordered, labels, strict=True):
        value = text[span.start : span.end]
        if label in FIRST:
            first[span.start, span.end] = value
        elif label in LAST:
            last[span.start, span.end] = value
        elif label in WHOLE and len(parts := list(re.finditer(r"\S+", value))) > 1:
            first[span.start + parts[0].start(), span.start + parts[0].end()] = parts[0].group()
            last[span.start + parts[-1].start(), span.start + parts[-1].end()] = parts[-1].group()
            full[span.start + parts[0].start(), span.start + parts[-1].end()] = value.strip()
    parts_of_names = (span for span, label in zip(ordered, labels, strict=True) if label in FIRST | LAST)
    for one, following in pairwise(parts_of_names):
        between = text[one.end : following.start]
        if (one.start, one.end) in first and (following.start, following.end) in last and between.isspace():
            full[one.start, following.end] = text[one.start : following.end]
    return Names(list(first.values()), list(last.values()), list(full.values()))


# -- what a prediction has of them -------------------------------------------------------------------------------------


def recovered_entities(values: Iterable[str], prediction: str, *, ordered: bool = True) -> int:
    """How many of the entity texts ``values`` occur in the prediction.

    Args:
        values: Texts of entities, repeated as often as in the reference. A value given twice counts twice only if it
            occurs twice in the prediction.
        prediction: The predicted text.
        ordered: False if the prediction is an unordered set of words: a value of several words is then recovered if
            the set has all of them.
    """
    wanted = Counter(_fold(value) for value in values)
    if not wanted:
        return 0
    if ordered:
        folded = _fold(prediction)
        return sum(min(times, _occurrences(value, folded)) for value, times in wanted.items())
    offered = Counter(words(prediction))

    def copies(value: str) -> int:
        return min(offered[word] // times for word, times in Counter(words(value)).items())

    return sum(min(times, copies(value)) for value, times in wanted.items())


def recovered_entity_words(reference: Sequence[str], prediction: Collection[str]) -> tuple[int, int]:
    """GEIA's NERR of a predicted text: distinct ``entity_words`` of both texts, and all those of the reference."""
    return len(set(reference).intersection(prediction)), len(reference)


def recovered_entity_pieces(words: Iterable[Sequence[int]], prediction: Collection[int]) -> tuple[int, int]:
    """GEIA's NERR of a predicted set: distinct tokens of the entities' words that it has, and all such tokens.

    Args:
        words: Tokens of each of the reference's ``entity_words``, each tokenized by itself.
        prediction: The predicted tokens.
    """
    pieces = {piece for word in words for piece in word}
    return len(pieces.intersection(prediction)), len(pieces)


def _fold(text: str) -> str:
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).replace("\u2019", "'")
    return " ".join(text.split())


def _occurrences(value: str, text: str) -> int:
    """How often ``value`` occurs in ``text`` as whole words, without overlaps; both are folded."""
    count, start = 0, text.find(value)
    while start >= 0:
        end = start + len(value)
        whole = _whole(value, text, start, end)
        count += whole
        start = text.find(value, end if whole else start + 1)
    return count


def _whole(value: str, text: str, start: int, end: int) -> bool:
    if start > 0:
        if needs_boundary(value[0]) and needs_boundary(text[start - 1]):
            return False
        if value[0].isdigit() and _DIGIT_BEFORE.search(text, max(start - 2, 0), start):
            return False
    if end < len(text):
        if needs_boundary(value[-1]) and needs_boundary(text[end]):
            return False
        if value[-1].isdigit() and _DIGIT_AFTER.match(text, end):
            return False
    return True
