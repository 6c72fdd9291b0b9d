"""A sweep's results: tradeoff.json, tradeoff.md, and tradeoff.html in the look of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atomic_files import write_file, write_json
from reports.comparison.output import write_markdown
from reports.comparison.table import DASH, Cell, Line, Table
from reports.numbers import shown
from reports.sections import macro
from reports.terminal import console, plain
from reports.tradeoff.chart import tradeoff_chart
from reports.tradeoff.metrics import READ, Figure, Measured, chief, sentence, signed
from reports.wording import measure

NAME = "tradeoff"


def write_results(
    output: Path, measured: Sequence[Measured], facts: Mapping[str, Any], notes: Sequence[str], searches: Sequence[str]
) -> str:
    """Write the three files and print the table; gives the sentence on what the chart shows.

    Args:
        output: The directory.
        measured: The undefended point first.
        facts: What was attacked and searched, for the page's head and the JSON.
        notes: What stands below the table.
        searches: Names of the searches; the first is drawn.
    """
    drawn = searches[0]
    said = sentence(measured, drawn, {key: measure(key).title for key in READ})
    table = _table(measured, notes, searches)
    write_json(output / f"{NAME}.json", _plain(measured, {**facts, "sentence": said}, searches))
    write_markdown(output / f"{NAME}.md", [table])
    markdown = (output / f"{NAME}.md").read_text(encoding="utf-8")
    write_file(output / f"{NAME}.md", f"{said}\n\n{markdown}")
    title = f"{measure(chief(measured)).title} against NDCG@10"
    chart = tradeoff_chart(measured, drawn, measure(chief(measured)).title)
    lines = macro("tradeoff_table", columns=table.columns, lines=table.lines, notes=table.notes)
    page = macro(
        "page",
        heading="What a defense keeps and what it costs",
        run=str(facts["run"]),
        facts=[(name, str(value)) for name, value in facts.items() if name not in ("run", "left_out")],
        lead=said,
        sections=[
            ("plot", title, macro("tradeoff", chart=chart, search=drawn)),
            ("table", table.title, lines),
        ],
    )
    write_file(output / f"{NAME}.html", page.encode("utf-8", "replace").decode())
    _print(table)
    return said


def _table(measured: Sequence[Measured], notes: Sequence[str], searches: Sequence[str]) -> Table:
    columns = ["defense", *(measure(key).title for key in READ), *(f"NDCG@10, {name}" for name in searches)]
    lines = []
    for number, one in enumerate(measured):
        read = [
            _cell(one.read[key], measure(key).kind, 3 if key == "cosine" else 1, more_is_good=False) for key in READ
        ]
        found = [_cell(one.found[name], "cosine", 3, more_is_good=True) for name in searches]
        below = "" if one.point.reconstruction else f"{one.point.width} dimensions, more than the attack takes"
        lines.append(Line(f"{number}. {one.point.name}", below, (*read, *found)))
    return Table("Defense by defense", tuple(columns), tuple(lines), notes=tuple(notes))


def _print(table: Table) -> None:
    """Values alone: a terminal has no room for intervals."""
    from rich.table import Table as RichTable

    drawn = RichTable(title=plain(table.title), title_justify="left")
    drawn.add_column(plain(table.columns[0]), overflow="fold")
    for column in table.columns[1:]:
        drawn.add_column(plain(column), justify="right")
    colours = {True: "green", False: "red", None: ""}
    for line in table.lines:
        drawn.add_row(plain(line.title), *(plain(cell.text, style=colours[cell.gain]) for cell in line.cells))
    console().print(drawn)


def _cell(figure: Figure, kind: str, digits: int, *, more_is_good: bool) -> Cell:
    """A figure, and below it its change; coloured as the store's owner sees it, where the change may not be chance."""
    if figure.value is None:
        return Cell(DASH)
    if figure.change is None:
        ends = figure.interval
        return Cell(shown(kind, figure.value), () if ends is None else (" to ".join(shown(kind, end) for end in ends),))
    ends = figure.change_interval
    below = [signed(figure.change, digits)]
    if ends is not None:
        below.append(" to ".join(signed(end, digits) for end in ends))
    gain = more_is_good if figure.higher else (not more_is_good) if figure.lower else None
    return Cell(shown(kind, figure.value), tuple(below), gain)


def _plain(measured: Sequence[Measured], facts: Mapping[str, Any], searches: Sequence[str]) -> dict[str, Any]:
    points = []
    for one in measured:
        retrieval = {
            name: None
            if (figures := one.point.retrieval[name]) is None
            else {key: sum(values) / len(values) for key, values in figures.items()}
            for name in searches
        }
        points.append(
            {
                "name": one.point.name,
                "overrides": one.point.overrides,
                "width": one.point.width,
                "reconstruction": one.point.reconstruction or None,
                "retrieval": retrieval,
                "intervals": {
                    **{key: figure.plain() for key, figure in one.read.items()},
                    **{f"ndcg_at_10, {name}": figure.plain() for name, figure in one.found.items()},
                },
            }
        )
    return {**facts, "searches": list(searches), "points": points}
