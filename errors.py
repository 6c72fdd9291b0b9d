"""The one exception whose message is written for the user and printed without a traceback."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

_TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # the direction of writing


class InputError(Exception):
    """Something the user gave is wrong: a config value, a file, a run directory.

    The message names the key or the file and line, the value, and the nearest valid one where there is one. Scripts
    print it alone and end with exit code 2. What a file of somebody else's says is quoted as ``printable`` has it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The tail of a message about an unknown ``name``: the nearest valid one, or all of them where none is near."""
    choices = sorted(valid)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"valid: {', '.join(choices)}" if choices else "nothing is valid here"


def printable(text: str) -> str:
    """``text`` without what a terminal would obey, U+FFFD in its place: escape sequences, changes of direction.

    Tabs and line feeds stay.
    """
    return "".join("\ufffd" if _is_obeyed(character) else character for character in text)


def _is_obeyed(character: str) -> bool:
    return (unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n") or character in _TURNS
