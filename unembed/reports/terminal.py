"""Printing untrusted text on a terminal: without interpreting rich markup or control characters.

    console.print(plain(run.name))            # "[red]" is printed literally, escape sequences are removed

Recovered text, names of runs and values of their configurations may come from an untrusted run directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.core.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPED = 10_000  # columns of a file or pipe, where lines need no wrapping


def plain(text: str, style: str = "") -> Text:
    """``text`` as a rich Text with the given style."""
    from rich.text import Text

    return Text(printable(text), style=style)


def console() -> Console:
    """The console of all scripts: as wide as the terminal, or unlimited for a file or pipe."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=PIPED)
