"""Text of files and directories on a terminal: as it is, without markup, and without what the terminal would obey.

    console.print(plain(run.name))            # "[red]" stays as it is, and an escape sequence clears no screen

Recovered text, names of runs and values of their configurations may be a stranger's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from errors import printable

if TYPE_CHECKING:
    from rich.text import Text


def plain(text: str, style: str = "") -> Text:
    """``text`` for rich, in a style of ours."""
    from rich.text import Text

    return Text(printable(text), style=style)
