"""Exposure by class: what share of the names, numbers, dates, e-mail addresses, phone numbers and other words leaks.

    Ada Bell called 555-123-4567 twice      names: Ada Bell; phone: 555-123-4567; free text: called, twice

Labels of entities are mapped to classes by classes.yaml; an unknown label is "other". A class without labels is found
by its form: recognisers for dates, e-mail addresses and phone numbers; other words with a digit are numbers; names are
runs of capitalised words within a sentence, unless they are stop words, months, days or titles. Free text is the words
that are in no such part and no stop words. By form, names at the start of a sentence and in texts without capital
letters are missed, and other capitalised words are taken for names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml

from unembed.audit.findings import AuditedShare, Class, Reading, Truth, most
from unembed.core.examples import Span
from unembed.metrics.entities import recovered_entities
from unembed.metrics.stop_words import STOP_WORDS
from unembed.metrics.tokens import words
from unembed.scoring.recognisers import Recognisers

NAMES, NUMBERS, FREE, OTHER = "names", "numbers", "free text", "other"
_NUMBER = re.compile(r"(?<!\w)\w*\d[\w.,:/-]*(?<![.,:/-])")
_WORD = re.compile("[^\\W\\d_][\\w'\u2019-]*")
_TITLES = ("Mr.", "Mrs.", "Ms.", "Dr.", "Prof.", "St.")
_CALENDAR = """
    january february march april may june july august september october november december
    monday tuesday wednesday thursday friday saturday sunday mr mrs ms miss dr prof sir madam
"""
_NO_NAMES = STOP_WORDS | frozenset(_CALENDAR.split())
Items = Mapping[str, Sequence[str]]  # the values of each class in a text


@cache
def classes() -> dict[str, str]:
    """The class of each label in classes.yaml."""
    table = yaml.safe_load(Path(__file__).with_name("classes.yaml").read_text(encoding="utf-8"))
    return {label: name for name, labels in table.items() for label in labels}


def class_of(label: str) -> str:
    """The class of a label, such as ``B-per`` or ``Phone Number``."""
    return classes().get(re.sub(r"\W+", "_", re.sub(r"^[BI]-", "", label).upper()), OTHER)


def items(text: str, spans: Sequence[Span], without: Collection[str]) -> Items:
    """The parts of a text by class: those of ``spans``, and those found by form in the classes ``without`` labels."""
    parts = [(span.start, span.end, class_of(span.label)) for span in spans]
    taken = bytearray(len(text))
    for start, end, _ in parts:
        taken[start:end] = b"\1" * (end - start)
    (by_form,) = Recognisers().tag([text])
    found = [(span.start, span.end, class_of(span.label)) for span in by_form]
    found += [(*match.span(), NUMBERS) for match in _NUMBER.finditer(text)]
    found += [(start, end, NAMES) for start, end in _names(text)]
    for start, end, name in found:
        if name in without and not any(taken[start:end]):
            parts.append((start, end, name))
            taken[start:end] = b"\1" * (end - start)
    by_class: dict[str, list[str]] = defaultdict(list)
    for start, end, name in sorted(parts):
        if value := text[start:end].strip():
            by_class[name].append(value)
    rest = "".join(" " if hidden else character for character, hidden in zip(text, taken, strict=True))
    by_class[FREE] = [word for word in words(rest) if word not in STOP_WORDS and any(map(str.isalnum, word))]
    return by_class


def _names(text: str) -> list[tuple[int, int]]:
    """Runs of capitalised words within sentences: the first word of a sentence does not count."""
    runs: list[tuple[int, int]] = []
    if text.isupper():
        return runs
    for match in _WORD.finditer(text):
        word = re.sub("['\u2019]s$", "", match.group())
        start, end = match.start(), match.start() + len(word)
        if not word[0].isupper() or word.lower() in _NO_NAMES or begins_sentence(text[:start]):
            continue
        if runs and text[runs[-1][1] : start] == " ":
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    return runs


def begins_sentence(before: str) -> bool:
    """Whether a sentence begins after this text."""
    stripped = before.rstrip(" \"\u201c'(*-")
    return not stripped or (stripped[-1] in ".!?:;\n" and not stripped.endswith(_TITLES))


def measured(
    truths: Sequence[Truth], by_attacker: Sequence[Sequence[Reading]], found: str, *, ordered: bool
) -> list[Class]:
    """Of each class in the true texts, the share that the attacker who reads most of it recovers.

    Args:
        truths: The true texts with their entities; their classes are not searched for by form.
        by_attacker: Each attacker's texts, in the order of ``truths``.
        found: How the entities were found, ``labels`` or ``tagger``.
        ordered: Whether the order of recovered words is meaningful.
    """
    values, labels = items_of([one.text for one in truths], [one.spans for one in truths])
    made = []
    for name in shown_classes({name for one in values for name in one}):
        wanted = [one.get(name, ()) for one in values]
        shares = [
            AuditedShare.grouped(
                [
                    (recovered_entities(one, reading.text, ordered=ordered), len(one))
                    for one, reading in zip(wanted, readings, strict=True)
                ]
            )
            for readings in by_attacker
        ]
        made.append(Class(name, sum(map(len, wanted)), most(shares), found if name in labels else "form"))
    return made


def items_of(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> tuple[list[Items], frozenset[str]]:
    """The parts of each text, and the classes that come from ``spans``."""
    labels = frozenset(class_of(span.label) for one in spans for span in one)
    without = set(classes().values()) - labels
    return [items(text, one, without) for text, one in zip(texts, spans, strict=True)], labels


def shown_classes(found: Collection[str]) -> list[str]:
    """All classes in the order of classes.yaml, with others if they are among the ``found`` ones."""
    return [*dict.fromkeys(classes().values()), FREE, *([OTHER] if OTHER in found else [])]
