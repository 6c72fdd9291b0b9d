"""The one exception whose message is written for the user and printed without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Something the user gave is wrong: a config value, a file, a run directory.

    The message names the key or the file and line, the value, and the nearest valid one where there is one. Scripts
    print it alone and end with exit code 2.
    """


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The tail of a message about an unknown ``name``: the nearest valid one, or all of them where none is near."""
    choices = sorted(valid)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"valid: {', '.join(choices)}" if choices else "nothing is valid here"
