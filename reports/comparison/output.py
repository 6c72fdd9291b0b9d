"""A comparison in the terminal, as Markdown, and as one self-contained page with the report's look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from atomic_files import write_file
from errors import printable
from reports import terminal
from reports.comparison.table import DASH, Table
from reports.sections import macro
from reports.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

NAMES = 26  # characters of the column that says what a run is
COLOURS = {True: "green", False: "red", None: ""}


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print the tables; text of directories and configs is shown as it is, without markup.

    A terminal is narrow: what a run is stands below its name, and only figures have columns. A table that is still
    wider than the terminal is printed in parts of so many columns as fit: no figure is cut.
    """
    console = console or terminal.console()
    for table in tables:
        for warning in table.warnings:
            console.print(plain(warning, style="bold red"))
        places = range(len(table.columns) - 1 - table.facts)
        for part in _parts(table, places, console):
            console.print(_drawn(table, part))
        for note in table.notes:
            console.print(plain(note, style="dim"))


def _parts(table: Table, places: Sequence[int], console: Console) -> Iterator[Sequence[int]]:
    """The figures of a table by their places, cut into parts that fit, of one figure at least."""
    unlimited = console.options.update_width(terminal.PIPED)  # a measurement is never more than its limit
    begin = 0
    while begin < len(places):
        end = len(places)
        while (
            end > begin + 1
            and console.measure(_drawn(table, places[begin:end]), options=unlimited).minimum > console.width
        ):
            end -= 1
        yield places[begin:end]
        begin = end


def _drawn(table: Table, places: Sequence[int]) -> RichTable:
    """A table with some of its figures."""
    from rich.table import Table as RichTable

    drawn = RichTable(title=plain(table.title), title_justify="left", show_lines=True)
    drawn.add_column(plain(table.columns[0]), min_width=NAMES, overflow="fold")
    for place in places:
        column, cells = (
            table.columns[1 + table.facts + place],
            [line.cells[table.facts + place] for line in table.lines],
        )
        # Rich would narrow the columns of a table that is too wide, and break figures.
        parts = [*column.split(), *(part for cell in cells for part in (cell.text, *cell.below))]
        drawn.add_column(plain(column), justify="right", width=max(map(len, parts)))
    for line in table.lines:
        named = zip(table.columns[1:], line.cells[: table.facts], strict=False)
        facts = ", ".join(f"{name} {cell.text}" for name, cell in named if cell.text != DASH)
        title = plain(line.title, style="bold")
        title.append(plain("".join(f"\n{part}" for part in (facts, line.below) if part), style="not bold"))
        own = (line.cells[table.facts + place] for place in places)
        drawn.add_row(title, *(plain("\n".join([c.text, *c.below]), style=COLOURS[c.gain]) for c in own))
    return drawn


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
    write_file(path, "\n\n".join(blocks) + "\n")


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
    write_file(path, page.encode("utf-8", "replace").decode())


def _escaped(text: str) -> str:
    """Text of a table cell: no bars, no line ends, no HTML, nothing that a terminal would obey."""
    text = printable(text)
    for special in ("\\", "|", "<", "*", "_", "`", "["):
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split("\n"))
