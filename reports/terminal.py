"""Text of files and directories on a terminal: as it is, without markup, and without what the terminal would obey.

    console.print(plain(run.name))            # "[red]" stays as it is, and an escape sequence clears no screen

Recovered text, names of runs and values of their configurations may come from an untrusted run directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPED = 10_000  # columns of a file or a pipe, which has no edge that a line would have to break at


def plain(text: str, style: str = "") -> Text:
    """``text`` for rich, in a style of ours."""
    from rich.text import Text

    return Text(printable(text), style=style)


def console() -> Console:
    """Where all scripts print: as wide as the terminal or, where there is none, as what is printed."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=PIPED)
