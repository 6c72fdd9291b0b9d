"""The exception whose message is printed without a traceback, and the redaction of secrets in messages.

InputError("vectors=postgresql://ada:secret@host/mail: ...")   # postgresql://***@host/mail
redacted("unembed audit vectors=... api_key=abc")            # api_key=***
"""

from __future__ import annotations

import bisect
import difflib
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

_TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # bidirectional text controls
LISTED = 300  # characters of names listed in one message
SHOWN = 10  # names shown where there are too many to list
LONGEST = 120  # characters shown of one name
COMPARED = 5_000  # candidates that an unknown name is compared with
SIMILAR = 0.6  # difflib's ratio from which a name is suggested

REDACTED = "***"
# Environment variables that hold secrets; their values are never shown.
SECRET_VARIABLES = (
    "PGPASSWORD", "QDRANT_API_KEY", "CHROMA_CLIENT_AUTH_CREDENTIALS", "MILVUS_TOKEN", "WEAVIATE_API_KEY",
    "OPENSEARCH_PASSWORD", "ELASTIC_API_KEY", "ELASTIC_PASSWORD", "PINECONE_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY",
    "HF_TOKEN", "UNEMBED_ROTATION_KEY",
)  # fmt: skip
_SHORTEST = 8  # characters of a secret; shorter values would also match ordinary words
_LONG = 16  # secrets of this length are also redacted inside longer words
_NAMES = r"(?:pgpassword|(?:ssl)?password|passwd|pwd|(?:api|access|private|secret)[_-]?key|rotation_key|token|secret)"
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_VALUE = rf"(?:{_QUOTED}|[^\s&;])+"
_PATTERNS = (
    # user:password@ in an address: everything up to the last @ before a space
    (re.compile(r"(?<=//)[^\s/@:]*:\S*@"), f"{REDACTED}@"),
    (re.compile(r"(?<=http://)[^\s/]+@|(?<=https://)[^\s/]+@", re.IGNORECASE), f"{REDACTED}@"),
    (re.compile(rf"(?<![a-z])({_NAMES}\s*=\s*){_VALUE}", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(rf"""(["']{_NAMES}["']\s*:\s*){_QUOTED}""", re.IGNORECASE), rf'\1"{REDACTED}"'),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{REDACTED}"),
)
# Patterns of values with a secret; percent signs are decoded first.
_USER = re.compile(r"(?<=:)//[^@]*:.*@|//[^@/]*:.*@|^(\w+:)?https?:/*[^/?#]*@", re.DOTALL | re.IGNORECASE)
_GIVEN = re.compile(rf"(?:^|[?&;,\s'\"])\s*\w*?{_NAMES}\s*=\s*['\"]?(?!{{value}})[^\s'\"]", re.IGNORECASE)

_LONGEST = 3900  # characters of a message


class InputError(Exception):
    """A user error: a wrong config value, file or run directory.

    The message names the key or the file and line, the value, and the nearest valid one if there is one. Scripts print
    only the message, without control characters and secrets, and exit with code 2. The middle of a very long one is
    left out.
    """

    def __init__(self, message: str) -> None:
        said = printable(redacted(message))
        cut = f"{said[: _LONGEST - 1000]} [{len(said) - _LONGEST:,} characters left out] {said[-1000:]}"
        super().__init__(said if len(said) <= _LONGEST else cut)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of a message about an unknown ``name``: the nearest valid name, or all of them if none is similar.

    If the list exceeds ``LISTED`` characters, only the most similar names are given.
    """
    choices = sorted(valid)
    compared = choices
    if len(choices) > COMPARED:  # such as a store's ids: compare only the neighbours in sort order
        place = bisect.bisect_left(choices, name)
        compared = choices[max(0, place - COMPARED // 2) : place + COMPARED // 2]
    # Comparing a long name takes minutes, and no valid name is that long.
    near = difflib.get_close_matches(shortened(name), compared, n=SHOWN, cutoff=0.0)
    if near and difflib.SequenceMatcher(None, near[0], shortened(name)).ratio() >= SIMILAR:
        return f"did you mean {shortened(near[0])}?"
    if not choices:
        return "nothing is valid here"
    return f"valid: {listed(choices if len(', '.join(choices)) <= LISTED else near, len(choices))}"


def missing(path: Path, what: str = "file") -> str:
    """Why a path cannot be opened: its first part that does not exist, with the most similar name beside it.

    A file is compared with those of its extension or its stem, so that no script is suggested for vectors.
    """
    path = path.expanduser()
    first = next((part for part in reversed(path.parents) if not part.is_dir()), path)
    what = what if first == path else "directory"
    beside = sorted(
        one.name
        for one in first.parent.iterdir()
        if (one.is_dir() if what == "directory" else one.suffix == first.suffix or one.stem == first.stem)
    )
    near = difflib.get_close_matches(shortened(first.name), beside[:COMPARED], n=1, cutoff=SIMILAR)
    if near:
        said = f"no directory {first}" if what == "directory" else "no such file"
        return f"{said}, did you mean {shortened(near[0])}?"
    return f"no directory {first.absolute()}" if what == "directory" else f"no such file in {first.parent.absolute()}"


def listed(names: Iterable[str], total: int | None = None) -> str:
    """Names joined for a message, at most ``LISTED`` characters, with the number that was left out of ``total``."""
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
    """``text`` without its middle if it is too long for a message."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 21]}...{text[-18:]}"


def printable(text: str) -> str:
    """``text`` with terminal control characters (escape sequences, bidirectional controls) replaced by U+FFFD."""
    return "".join(
        "\ufffd" if character in _TURNS or (unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n")
        else character for character in text
    )  # fmt: skip


def redacted(text: str) -> str:
    """``text`` with ``***`` for secrets: passwords in addresses or after ``password=`` and similar keys, and the values
    of ``SECRET_VARIABLES``.

    This is a second safeguard: a value for which ``holds_secret`` is true is refused before anything else reads it.
    """
    for name in SECRET_VARIABLES:
        value = os.environ.get(name, "").strip()
        if len(value) >= _SHORTEST:
            for spelling in {value, quote(value, safe="")}:
                word = re.escape(spelling)
                text = re.sub(word if len(value) >= _LONG else rf"(?<!\w){word}(?!\w)", REDACTED, text)
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text


def holds_secret(value: str) -> bool:
    """Whether a value contains a password: ``//user:word@host`` or ``password=word``.

    The value is not parsed, so that a password in a malformed address is found too.
    """
    plain = unquote(value)
    return any(pattern.search(spelling) for pattern in (_USER, _GIVEN) for spelling in (value, plain, unquote(plain)))


def secret_refused(key: str) -> str:
    """The message about a value for which ``holds_secret`` is true; it does not repeat the value."""
    return (
        f"{key}: a password or key has no place on a command line or in a configuration, which are written down (it is "
        "not repeated here); leave it out and give it in the environment: PGPASSWORD (or ~/.pgpass), QDRANT_API_KEY, "
        "CHROMA_CLIENT_AUTH_CREDENTIALS, MILVUS_TOKEN, ... (docs/audit.md), or the variable that "
        "embedder.api_key_env names"
    )
