"""Masking of texts that are shown to others: the shape of a text without its words.

    masked("Ada's card is 4111 1111", (Span(0, 3, "PERSON"),))      # "[PERSON]'x xxxx xx 0000 0000"

Letters become x or X and digits 0; punctuation and single spaces stay, so that a reader sees the kind of text and where
a name or number was. An entity is replaced by its label, since the length of a name reveals much about it. Masked text
still discloses the lengths of words; leave out rows where even that is too much.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from examples import Span

OTHER = "•"


def masked(text: str, spans: Sequence[Span] = ()) -> str:
    """``text`` with masked characters; ``spans`` become their labels; one that overlaps an earlier one is shortened."""
    parts: list[str] = []
    position = 0
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.end > position and span.start < len(text):
            parts += [_shape(text[position : max(position, span.start)]), f"[{span.label}]"]
            position = span.end
    return " ".join("".join([*parts, _shape(text[position:])]).split())


def _shape(text: str) -> str:
    return "".join(map(_character, text))


def _character(character: str) -> str:
    """The mask of a character by its Unicode category, so that every script is masked."""
    category = unicodedata.category(character)
    if category in ("Lu", "Lt"):
        return "X"
    if category[0] == "L":
        return "x"
    if category[0] == "N":
        return "0"
    if category[0] == "M":
        return ""  # a combining accent; its letter is already masked
    if category[0] == "Z" or character in "\t\n\r":
        return " "
    return character if character.isascii() and character.isprintable() else OTHER
