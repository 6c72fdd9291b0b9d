"""A text that may be shown around: its shape without its words.

    masked("Ada's card is 4111 1111", (Span(0, 3, "PERSON"),))      # "[PERSON]'x xxxx xx 0000 0000"

Letters become x or X and digits 0; punctuation and single spaces stay, so that a reader sees what kind of text a row is
and where a name or a number stood. Entities become their kind alone: the length of a name would tell a good deal about
it. The shape of a text still says how long its words are; a row that must not say even that is to be left out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from examples import Span

OTHER = "•"


def masked(text: str, spans: Sequence[Span] = ()) -> str:
    """``text`` without its characters; ``spans`` are places in it, those that overlap an earlier one are shortened."""
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
    """What stands for a character: by its category of Unicode, so that no script is shown in the clear."""
    category = unicodedata.category(character)
    if category in ("Lu", "Lt"):
        return "X"
    if category[0] == "L":
        return "x"
    if category[0] == "N":
        return "0"
    if category[0] == "M":
        return ""  # the accent of a letter that is masked already
    if category[0] == "Z" or character in "\t\n\r":
        return " "
    return character if character.isascii() and character.isprintable() else OTHER
