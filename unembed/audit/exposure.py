"""What leaks of texts whose truth is known, by kind of entity and by class (names, numbers, dates, other words); and
what of a text is masked where it is shown to others.

    Ada Bell called 555-123-4567 twice      names: Ada Bell; phone: 555-123-4567; free text: called, twice

A part leaks if it stands in the recovered text as whole words. Labels of entities are mapped to classes by
classes.yaml; an unknown label is "other". A class without labels is found by its form: recognisers for dates, e-mail
addresses and phone numbers; other words with a digit are numbers; names are runs of capitalised words within a
sentence, unless they are stop words, months, days or titles. Free text is the words that are in no such part and no
stop words. By form, names at the start of a sentence and in texts without capital letters are missed, and other
capitalised words are taken for names.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from unembed.audit.results import Truth
from unembed.core.examples import Span
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
Items = Mapping[str, Sequence[str]]  # values of a text by class or label
Found = Literal["labels", "tagger", "form"]


HIDDEN = "•"
# A word between spaces, with or without punctuation around it: parts of addresses, user names and links are none.
_WHOLE_WORD = re.compile(
    r"(?<![^\s-])[\"'(\u201c\u2018]*"
    r"(?P<word>[^\W\d_]+(?:['\u2019][^\W\d_]+)?)"
    r"(?=[.,;:!?)\"'\u201d\u2019\u2026]*(?:[\s-]|$))"
)


@cache
def classes() -> dict[str, str]:
    """The class of each label in classes.yaml."""
    return {label: name for name, labels in _table("classes.yaml").items() for label in labels}


@cache
def common_words() -> frozenset[str]:
    """The words of common_words.yaml, and stop words."""
    return STOP_WORDS | frozenset(_table("common_words.yaml")["words"].split())


def _table(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


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
    found_by_form = [(span.start, span.end, class_of(span.label)) for span in by_form]
    found_by_form += [(*match.span(), NUMBERS) for match in _NUMBER.finditer(text)]
    found_by_form += [(start, end, NAMES) for start, end in _names(text)]
    for start, end, name in found_by_form:
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


def items_of(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> tuple[list[Items], frozenset[str]]:
    """The parts of each text by class, and the classes that come from ``spans``."""
    labels = frozenset(class_of(span.label) for one in spans for span in one)
    without = set(classes().values()) - labels
    return [items(text, one, without) for text, one in zip(texts, spans, strict=True)], labels


def entities_of(text: str, spans: Sequence[Span]) -> Items:
    """The entities of a text by label."""
    by_label: dict[str, list[str]] = defaultdict(list)
    for span in spans:
        if value := text[span.start : span.end].strip():
            by_label[span.label].append(value)
    return by_label


def shown_classes(names: Collection[str]) -> list[str]:
    """All classes in the order of classes.yaml; ``other`` only if it is among the ``names``."""
    return [*dict.fromkeys(classes().values()), FREE, *([OTHER] if OTHER in names else [])]


def places(text: str, truth: Truth | None, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Entities of a recovered text: those found by the tagger, and those of the true text that occur in it."""
    every = list(spans)
    for span in () if truth is None else truth.spans:
        value = r"\s+".join(map(re.escape, truth.text[span.start : span.end].split())) if truth else ""
        matches = re.finditer(rf"(?<!\w){value}(?!\w)", text, re.IGNORECASE)
        every += [Span(match.start(), match.end(), span.label) for match in matches]
    # Of two overlapping entities the longer one determines the label.
    chosen: list[Span] = []
    for one in sorted(every, key=lambda span: (span.start - span.end, span.start, span.label)):
        if all(one.end <= other.start or other.end <= one.start for other in chosen):
            chosen.append(one)
    return tuple(sorted(chosen, key=lambda span: span.start))


# -- masking -----------------------------------------------------------------------------------------------------------


def masked(text: str, spans: Sequence[Span] = ()) -> str:
    """``text`` of which common English words stay, and all others become their shape: ``[PERSON]'x card is 0000 0000``.

    What stays is on a list, written in lower case or at the beginning of a sentence: no other name is shown, however it
    is written. Letters of other words become x or X and digits 0; punctuation and single spaces stay. ``spans`` become
    their labels, since the length of a name reveals much about it; one that overlaps an earlier one is shortened.
    """
    shown = [_shape(one) for one in text]
    for match in _WHOLE_WORD.finditer(text):
        if _is_common(match["word"], text[: match.start()], text[match.end("word") :]):
            shown[slice(*match.span("word"))] = match["word"]
    parts: list[str] = []
    position = 0
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.end > position and span.start < len(text):
            parts += [*shown[position : max(position, span.start)], f"[{span.label}]"]
            position = span.end
    return " ".join("".join([*parts, *shown[position:]]).split())


def _is_common(word: str, before: str, after: str) -> bool:
    """Whether a word between two texts is on the list, and written as no name is, nor as an initial of one."""
    plain = word.lower().replace("\u2019", "'")
    if plain not in common_words() or (len(word) == 1 and (plain not in "ai" or after.startswith("."))):
        return False
    return word[0].islower() or word == "I" or word.startswith(("I'", "I\u2019")) or begins_sentence(before)


def _shape(character: str) -> str:
    """The mask of a character by its Unicode category, so that every script is masked."""
    category = unicodedata.category(character)
    if character in "\t\n\r":
        return " "
    # A combining accent goes: its letter is masked.
    shapes = {"Lu": "X", "Lt": "X", "L": "x", "N": "0", "M": "", "Z": " "}
    shape = shapes.get(category, shapes.get(category[0]))
    if shape is not None:
        return shape
    return character if character.isascii() and character.isprintable() else HIDDEN
