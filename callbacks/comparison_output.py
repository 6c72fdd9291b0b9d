"""A comparison in the terminal, as Markdown, and as one self-contained page with the report's look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

import runs
from callbacks.comparison_table import DASH, Table
from callbacks.sections import macro
from callbacks.terminal import plain
from errors import printable

if TYPE_CHECKING:
    from rich.console import Console

NAMES = 26  # characters of the column that says what a run is
COLOURS = {True: "green", False: "red", None: ""}


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print the tables; text of directories and configs is shown as it is, without markup.

    A terminal is narrow: what a run is stands below its name, and only figures have columns.
    """
    from rich.console import Console
    from rich.table import Table as RichTable

    console = console or Console()
    for table in tables:
        for warning in table.warnings:
            console.print(plain(warning, style="bold red"))
        drawn = RichTable(title=plain(table.title), title_justify="left", show_lines=True)
        drawn.add_column(plain(table.columns[0]), min_width=NAMES, overflow="fold")
        for column in table.columns[table.facts + 1 :]:
            drawn.add_column(plain(column), justify="right")
        for line in table.lines:
            named = zip(table.columns[1:], line.cells[: table.facts], strict=False)
            facts = ", ".join(f"{name} {cell.text}" for name, cell in named if cell.text != DASH)
            title = plain(line.title, style="bold")
            title.append(plain("".join(f"\n{part}" for part in (facts, line.below) if part), style="not bold"))
            cells = [
                plain("\n".join([cell.text, *cell.below]).replace(" ", "\u00a0"), style=COLOURS[cell.gain])
                for cell in line.cells[table.facts :]
            ]
            drawn.add_row(title, *cells)
        console.print(drawn)
        for note in table.notes:
            console.print(plain(note, style="dim"))


def write_markdown(path: Path, tables: Sequence[Table]) -> None:
    """Write the tables as Markdown."""
    blocks = []
    for table in tables:
        blocks.append(f"## {_escaped(table.title)}")
        blocks += [f"**{_escaped(warning)}**" for warning in table.warnings]
        rows = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)]]
        for line in table.lines:
            title = f"{line.title} ({line.below})" if line.below else line.title
            rows.append([title, *(cell.line for cell in line.cells)])
        blocks.append("\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows))
        blocks += [_escaped(note) for note in table.notes]
    runs.write(path, "\n\n".join(blocks) + "\n")


def write_page(path: Path, tables: Sequence[Table], charts: Sequence[tuple[str, Markup, str]], lead: str) -> None:
    """Write the page: the tables and the charts."""
    sections = [
        (
            f"table-{number}",
            table.title,
            macro("runs_table", columns=table.columns, lines=table.lines, warnings=table.warnings, notes=table.notes),
        )
        for number, table in enumerate(tables)
    ]
    if charts:
        sections.append(("charts", "In pictures", macro("closeness", charts=charts)))
    page = macro("page", heading="Attacks compared", run="comparison", facts=[], lead=lead, sections=sections)
    runs.write(path, page.encode("utf-8", "replace").decode())


def _escaped(text: str) -> str:
    """Text of a table cell: no bars, no line ends, no HTML, nothing that a terminal would obey."""
    text = printable(text)
    for special in ("\\", "|", "<", "*", "_", "`", "["):
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split("\n"))
