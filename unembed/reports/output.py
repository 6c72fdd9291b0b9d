"""Pages, tables and sentences: HTML of one file without scripts or network access, Markdown, JSON, and the terminal.

    macro("table_of", table=table)                       # HTML, of a macro in reports/report.html.jinja
    sentence("verdict", ...)                             # plain text, of a macro in reports/report.txt.jinja
    write(Path("comparison"), page, [table])               # comparison.html and .md

Recovered text, names of runs and configuration values are untrusted: they enter a page only through an autoescaping
template (``*.html.jinja``) or ``Markup.format``, ``plain`` prints them without interpreting rich markup or control
characters, and ``escaped`` writes them into Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from unembed import __version__
from unembed.core.atomic_files import write_file, write_json
from unembed.core.commands import command
from unembed.core.errors import printable
from unembed.reports.numbers import DASH, counted, in_words, number, shown

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from unembed.reports.charts import Chart

PIPED = 10_000  # columns of a file or pipe, where lines need no wrapping
NAMES = 26  # minimum width of the first column, which names the run
COLOURS = {True: "green", False: "red", None: ""}


class Cell(NamedTuple):
    """A value, the smaller text below it, and whether it is an improvement (None: neither, or not significant).

    ``quoted``: whether it is text from a run, which may be right-to-left; ``title``: a tooltip; ``style``: its class in
    the style sheet of the access table.
    """

    text: str
    below: tuple[str, ...] = ()
    gain: bool | None = None
    quoted: bool = False
    title: str = ""
    style: str = ""

    @property
    def line(self) -> str:
        """The cell on one line, for Markdown."""
        return " ".join([self.text, *(f"({part})" for part in self.below)])


class Line(NamedTuple):
    """A row: its title, the smaller text below it, and its cells; without cells, the title spans all columns.

    ``anchor``: its name on the page, for links.
    """

    title: str
    below: str
    cells: Sequence[Cell]
    anchor: str = ""


class Table(NamedTuple):
    """A table with its title, warnings above it and notes below it.

    ``columns`` includes the column of row titles. The next ``facts`` columns describe the run, the others are metrics.
    """

    title: str
    columns: Sequence[str]
    lines: Sequence[Line]
    facts: int = 0
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def plain(text: str, style: str = "") -> Text:
    """``text`` as a rich Text, printed literally and without escape sequences."""
    from rich.text import Text

    return Text(printable(text), style=style)


def terminal(*, stderr: bool = False) -> Console:
    """The console of all commands: as wide as the terminal, or unlimited for a file or pipe."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(width=PIPED, stderr=stderr)


def print_values(table: Table, console: Console, *, intervals: bool = False) -> None:
    """Print a table: of each cell the value alone, or with the text below it, such as its interval, in brackets."""
    from rich.table import Table as RichTable

    drawn = RichTable(title=plain(table.title) if table.title else None, title_justify="left")
    drawn.add_column(plain(table.columns[0]), overflow="fold")
    for column in table.columns[1:]:
        drawn.add_column(plain(column), justify="right")
    for line in table.lines:
        cells = (plain(cell.line if intervals else cell.text, style=COLOURS[cell.gain]) for cell in line.cells)
        drawn.add_row(plain(line.title), *cells)
    console.print(drawn)


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print tables of runs with their intervals, warnings and notes.

    Columns that describe a run are printed below its name, so that only metrics have columns. A table wider than the
    terminal is printed in several parts; no value is cut.
    """
    console = console or terminal()
    for table in tables:
        for warning in table.warnings:
            console.print(plain(warning, style="bold red"))
        for part in _parts(table, range(len(table.columns) - 1 - table.facts), console):
            console.print(_of_runs(table, part))
        for note in table.notes:
            console.print(plain(note, style="dim"))


def _parts(table: Table, places: Sequence[int], console: Console) -> Iterator[Sequence[int]]:
    """Split the metrics of a table, by column index, into parts that fit, of at least one metric each."""
    unlimited = console.options.update_width(PIPED)  # rich never measures more than this limit
    while places:
        size = len(places)
        while size > 1 and console.measure(_of_runs(table, places[:size]), options=unlimited).minimum > console.width:
            size -= 1
        yield places[:size]
        places = places[size:]


def _of_runs(table: Table, places: Sequence[int]) -> RichTable:
    from rich.table import Table as RichTable

    drawn = RichTable(title=plain(table.title), title_justify="left", show_lines=True)
    drawn.add_column(plain(table.columns[0]), min_width=NAMES, overflow="fold")
    chosen = [table.facts + place for place in places]
    for place in chosen:
        column, cells = table.columns[1 + place], [line.cells[place] for line in table.lines]
        # Otherwise rich would narrow the columns of a wide table and break values.
        parts = [*column.split(), *(part for cell in cells for part in (cell.text, *cell.below))]
        drawn.add_column(plain(column), justify="right", width=max(map(len, parts)))
    for line in table.lines:
        named = zip(table.columns[1:], line.cells[: table.facts], strict=False)
        facts = ", ".join(f"{name} {cell.text}" for name, cell in named if cell.text != DASH)
        title = plain(line.title, style="bold")
        title.append(plain("".join(f"\n{part}" for part in (facts, line.below) if part), style="not bold"))
        own = (line.cells[place] for place in chosen)
        drawn.add_row(title, *(plain("\n".join([c.text, *c.below]), style=COLOURS[c.gain]) for c in own))
    return drawn


def markdown(table: Table) -> str:
    """A table as Markdown, with its title, warnings and notes."""
    blocks = [f"## {escaped(table.title)}", *(f"**{escaped(warning)}**" for warning in table.warnings)]
    rows = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)]]
    for line in table.lines:
        title = f"{line.title} ({line.below})" if line.below else line.title
        rows.append([title, *(cell.line for cell in line.cells)])
    blocks.append("\n".join(f"| {' | '.join(map(escaped, row))} |" for row in rows))
    return "\n\n".join([*blocks, *map(escaped, table.notes)])


def escaped(text: str) -> str:
    """Text of a Markdown cell, without bars, line breaks, HTML and control characters."""
    text = printable(text)
    for special in ("\\", "|", "<", "*", "_", "`", "["):
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split("\n"))


# --------------------------------------------------------------------------------------------------------------- pages


@cache
def environment() -> Environment:
    """The templates of unembed/; what is no HTML is not escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=lambda name: name is None or ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals |= {"version": __version__, "command": command}
    templates.globals |= {one.__name__: one for one in (counted, in_words, number, shown)}
    return templates


def macro(name: str, template: str = "reports/report.html.jinja", **values: Any) -> Markup:
    """Render a macro of an HTML template; each section of a page is one."""
    return Markup(getattr(environment().get_template(template).module, name)(**values))


def paragraphs(name: str, template: str = "reports/report.txt.jinja", **values: Any) -> list[str]:
    """Render a macro of a text template, whose paragraphs are separated by empty lines."""
    blocks = (re.sub("[ \n]+", " ", block).strip() for block in str(macro(name, template, **values)).split("\n\n"))
    return [block for block in blocks if block]


def sentence(name: str, template: str = "reports/report.txt.jinja", **values: Any) -> str:
    """Render a macro of a text template on one line."""
    return " ".join(paragraphs(name, template, **values))


def charts_of(charts: Sequence[Chart]) -> Markup:
    """The charts side by side; empty for none."""
    return macro("charts_of", charts=charts) if charts else Markup("")


def write_page(path: Path, **values: Any) -> None:
    """Write a page; ``values`` are the arguments of the macro ``page``. A section is its anchor, title and HTML."""
    page = macro("page", **values)
    write_file(path, page.encode("utf-8", "replace").decode())  # replace lone surrogates, which cannot be encoded


def write(
    output: Path, page: Mapping[str, Any], tables: Sequence[Table], values: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write ``output``.md of ``tables``, ``output``.html, and with ``values`` ``output``.json; returns their paths.

    ``page`` has the arguments of the macro ``page``; its ``lead`` is the first paragraph of the Markdown, too.
    """
    text, html, plain_values = (output.with_name(output.name + ending) for ending in (".md", ".html", ".json"))
    write_file(text, "\n\n".join([page["lead"], *map(markdown, tables)]) + "\n")
    write_page(html, **page)
    if values is None:
        return [text, html]
    write_json(plain_values, values)
    return [text, html, plain_values]
