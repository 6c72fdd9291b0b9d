"""The core of all tables: lines and cells that the pages (macro ``table``), the terminal and Markdown show alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atomic_files import write_file
from errors import printable
from reports import terminal
from reports.numbers import DASH
from reports.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

NAMES = 26  # characters of the column that says what a run is
COLOURS = {True: "green", False: "red", None: ""}


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, what stands smaller below it, and whether it is a gain (None: neither, or it may be chance).

    ``quoted``: whether it is text of a run, which may be written from right to left; ``title``: for a pointer.
    """

    text: str
    below: tuple[str, ...] = ()
    gain: bool | None = None
    quoted: bool = False
    title: str = ""

    @property
    def line(self) -> str:
        """All of it on one line, for Markdown."""
        return " ".join([self.text, *(f"({part})" for part in self.below)])


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its title, what stands smaller below that, and its cells; without any, the title spans all columns.

    ``anchor``: its name on the page, for links.
    """

    title: str
    below: str
    cells: tuple[Cell, ...]
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its title, loud warnings above it and notes below it.

    ``columns`` hold that of the lines' titles too; ``facts`` of those after it say what a run is, the rest how it did.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    facts: int = 0
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def print_values(table: Table, console: Console) -> None:
    """Print a table without what stands below its values: a terminal has no room for intervals."""
    from rich.table import Table as RichTable

    found = RichTable(title=plain(table.title) if table.title else None, title_justify="left")
    found.add_column(plain(table.columns[0]), overflow="fold")
    for column in table.columns[1:]:
        found.add_column(plain(column), justify="right")
    for line in table.lines:
        found.add_row(plain(line.title), *(plain(cell.text, style=COLOURS[cell.gain]) for cell in line.cells))
    console.print(found)


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print tables of runs with their intervals, warnings and notes.

    A terminal is narrow: what a run is stands below its name, and only metrics have columns. A table that is still
    wider than the terminal is printed in parts of so many columns as fit: no value is cut.
    """
    console = console or terminal.console()
    for table in tables:
        for warning in table.warnings:
            console.print(plain(warning, style="bold red"))
        for part in _parts(table, range(len(table.columns) - 1 - table.facts), console):
            console.print(_of_runs(table, part))
        for note in table.notes:
            console.print(plain(note, style="dim"))


def _parts(table: Table, places: Sequence[int], console: Console) -> Iterator[Sequence[int]]:
    """The metrics of a table by their places, cut into parts that fit, of one metric at least."""
    unlimited = console.options.update_width(terminal.PIPED)  # a measurement is never more than its limit
    begin = 0
    while begin < len(places):
        end = len(places)
        while end > begin + 1:
            if console.measure(_of_runs(table, places[begin:end]), options=unlimited).minimum <= console.width:
                break
            end -= 1
        yield places[begin:end]
        begin = end


def _of_runs(table: Table, places: Sequence[int]) -> RichTable:
    """A table with some of its metrics."""
    from rich.table import Table as RichTable

    found = RichTable(title=plain(table.title), title_justify="left", show_lines=True)
    found.add_column(plain(table.columns[0]), min_width=NAMES, overflow="fold")
    chosen = [table.facts + place for place in places]
    for place in chosen:
        column, cells = table.columns[1 + place], [line.cells[place] for line in table.lines]
        # Rich would narrow the columns of a table that is too wide, and break values.
        parts = [*column.split(), *(part for cell in cells for part in (cell.text, *cell.below))]
        found.add_column(plain(column), justify="right", width=max(map(len, parts)))
    for line in table.lines:
        named = zip(table.columns[1:], line.cells[: table.facts], strict=False)
        facts = ", ".join(f"{name} {cell.text}" for name, cell in named if cell.text != DASH)
        title = plain(line.title, style="bold")
        title.append(plain("".join(f"\n{part}" for part in (facts, line.below) if part), style="not bold"))
        own = (line.cells[place] for place in chosen)
        found.add_row(title, *(plain("\n".join([c.text, *c.below]), style=COLOURS[c.gain]) for c in own))
    return found


def write_markdown(path: Path, tables: Sequence[Table], lead: str = "") -> None:
    """Write the tables as Markdown, below a first paragraph."""
    blocks = [lead] if lead else []
    for table in tables:
        blocks.append(f"## {_escaped(table.title)}")
        blocks += [f"**{_escaped(warning)}**" for warning in table.warnings]
        rows = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)]]
        for line in table.lines:
            title = f"{line.title} ({line.below})" if line.below else line.title
            rows.append([title, *(cell.line for cell in line.cells)])
        blocks.append("\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows))
        blocks += [_escaped(note) for note in table.notes]
    write_file(path, "\n\n".join(blocks) + "\n")


def _escaped(text: str) -> str:
    """Text of a table cell: no bars, no line ends, no HTML, nothing that a terminal would obey."""
    text = printable(text)
    for special in ("\\", "|", "<", "*", "_", "`", "["):
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split("\n"))
