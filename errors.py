"""The one exception whose message is written for the user and printed without a traceback, and what no message shows.

InputError("vectors=postgresql://ada:secret@host/mail: ...")   # postgresql://***@host/mail
redacted("python audit.py vectors=... api_key=abc")            # api_key=***
"""

from __future__ import annotations

import bisect
import difflib
import os
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote, unquote

_TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # the direction of writing
LISTED = 300  # characters of the names that one message lists
SHOWN = 10  # names, where there are too many to list all
LONGEST = 120  # characters of one of them
COMPARED = 5_000  # names that an unknown one is compared with

BLOTTED = "***"
# Environment variables that hold secrets: what they hold is shown nowhere.
SECRET_VARIABLES = (
    "PGPASSWORD", "QDRANT_API_KEY", "CHROMA_CLIENT_AUTH_CREDENTIALS", "OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN",
    "UNEMBED_ROTATION_KEY",
)  # fmt: skip
_SHORTEST = 8  # characters of a variable's value: a shorter one would blot out ordinary words
_LONG = 16  # from here on also where it stands within a word
_NAMES = r"(?:pgpassword|(?:ssl)?password|passwd|pwd|(?:api|access|private|secret)[_-]?key|rotation_key|token|secret)"
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_VALUE = rf"(?:{_QUOTED}|[^\s&;])+"
_PATTERNS = (
    # user:password@ of an address, whatever the password is made of: to the last @ that no space parts from it
    (re.compile(r"(?<=//)[^\s/@:]*:\S*@"), f"{BLOTTED}@"),
    (re.compile(r"(?<=http://)[^\s/]+@|(?<=https://)[^\s/]+@", re.IGNORECASE), f"{BLOTTED}@"),
    (re.compile(rf"(?<![a-z])({_NAMES}\s*=\s*){_VALUE}", re.IGNORECASE), rf"\1{BLOTTED}"),
    (re.compile(rf"""(["']{_NAMES}["']\s*:\s*){_QUOTED}""", re.IGNORECASE), rf'\1"{BLOTTED}"'),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{BLOTTED}"),
)
# What a value with a secret in it looks like; percent signs are decoded first.
_USER = re.compile(r"(?<=:)//[^@]*:.*@|//[^@/]*:.*@|^(\w+:)?https?:/*[^/?#]*@", re.DOTALL | re.IGNORECASE)
_GIVEN = re.compile(rf"(?:^|[?&;,\s'\"])\s*\w*?{_NAMES}\s*=\s*['\"]?(?!{{value}})[^\s'\"]", re.IGNORECASE)

_LONGEST = 3900  # characters of a message


class InputError(Exception):
    """Something the user gave is wrong: a config value, a file, a run directory.

    The message names the key or the file and line, the value, and the nearest valid one where there is one. Scripts
    print it alone and end with exit code 2. What a file of somebody else's says is quoted as ``printable`` has it, and
    passwords as ``redacted`` has them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_shortened(printable(redacted(message))))


def _shortened(message: str) -> str:
    """``message`` without its middle where it is longer than a screen: what to do stands at the end."""
    if len(message) <= _LONGEST:
        return message
    return f"{message[: _LONGEST - 1000]} [{len(message) - _LONGEST:,} characters left out] {message[-1000:]}"


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The tail of a message about an unknown ``name``: the nearest valid one, or all of them where none is near.

    Of more than ``LISTED`` characters, only those that are most like ``name``.
    """
    choices = sorted(valid)
    compared = choices
    if len(choices) > COMPARED:  # a store's ids, say: the nearest ones are looked for among those that sort beside it
        place = bisect.bisect_left(choices, name)
        compared = choices[max(0, place - COMPARED // 2) : place + COMPARED // 2]
    # A long name takes minutes to compare, and is like nothing that anybody would mean.
    near = difflib.get_close_matches(shortened(name), compared, n=SHOWN, cutoff=0.0)
    if near and difflib.SequenceMatcher(None, near[0], shortened(name)).ratio() >= 0.6:
        return f"did you mean {shortened(near[0])}?"
    if not choices:
        return "nothing is valid here"
    return f"valid: {listed(choices if len(', '.join(choices)) <= LISTED else near, len(choices))}"


def listed(names: Iterable[str], total: int | None = None) -> str:
    """Names for a message, in their order and ``LISTED`` characters at most; how many of ``total`` were left out."""
    every = list(names)
    shown: list[str] = []
    length = 0
    for name in map(shortened, every):
        length += len(name) + 2
        if shown and length - 2 > LISTED:
            break
        shown.append(name)
    more = (len(every) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def shortened(text: str) -> str:
    """``text`` without its middle where it is too long for a message."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 21]}...{text[-18:]}"


def printable(text: str) -> str:
    """``text`` without what a terminal would obey, U+FFFD in its place: escape sequences, changes of direction.

    Tabs and line feeds stay.
    """
    return "".join("\ufffd" if _is_obeyed(character) else character for character in text)


def redacted(text: str) -> str:
    """``text`` with ``***`` for passwords and keys: those of addresses, after ``password=`` and the like, and the
    values of ``SECRET_VARIABLES``.

    It is the second line: a value that holds a secret (``holds_secret``) is refused before anything else reads it.
    """
    for name in SECRET_VARIABLES:
        value = os.environ.get(name, "").strip()
        if len(value) >= _SHORTEST:
            for spelling in {value, quote(value, safe="")}:
                word = re.escape(spelling)
                text = re.sub(word if len(value) >= _LONG else rf"(?<!\w){word}(?!\w)", BLOTTED, text)
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text


def holds_secret(value: str) -> bool:
    """Whether a value is an address with a password in it, or names one: ``//user:word@host``, ``password=word``.

    Nothing is parsed: in a spelling that no parser takes, a password is a password still.
    """
    plain = unquote(value)
    return any(pattern.search(spelling) for pattern in (_USER, _GIVEN) for spelling in (value, plain, unquote(plain)))


def secret_refused(key: str) -> str:
    """The message about a value that ``holds_secret``, which it does not repeat."""
    return (
        f"{key}: a password or key has no place on a command line or in a configuration, which are written down (it is "
        "not repeated here); leave it out and give it in the environment: PGPASSWORD (or ~/.pgpass), QDRANT_API_KEY, "
        "CHROMA_CLIENT_AUTH_CREDENTIALS, or the variable that embedder.api_key_env names"
    )


def _is_obeyed(character: str) -> bool:
    return (unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n") or character in _TURNS
