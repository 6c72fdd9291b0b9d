"""Writes the results of a sweep: tradeoff.json, tradeoff.md and tradeoff.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import write_json
from unembed.reports.html import macro, write_page
from unembed.reports.numbers import DASH, interval, shown, signed
from unembed.reports.tables import Cell, Line, Table, print_values, terminal, write_markdown
from unembed.reports.tradeoff.chart import tradeoff_chart
from unembed.reports.tradeoff.metrics import READ, DefendedValue, MeasuredPoint, chief, sentence
from unembed.reports.wording import measure

NAME = "tradeoff"


def write_results(
    output: Path,
    measured: Sequence[MeasuredPoint],
    facts: Mapping[str, Any],
    notes: Sequence[str],
    searches: Sequence[str],
) -> str:
    """Write the three files and print the table; return the summary sentence.

    Args:
        output: The directory.
        measured: The undefended point first.
        facts: What was attacked and searched, for the page's header and the JSON.
        notes: Notes below the table.
        searches: Names of the searches; the chart shows the first.
    """
    first = searches[0]
    said = sentence(measured, first, {key: measure(key).title for key in READ})
    table = _table(measured, notes, searches)
    write_json(output / f"{NAME}.json", _plain(measured, {**facts, "sentence": said}, searches))
    write_markdown(output / f"{NAME}.md", [table], said)
    y_name = measure(chief(measured)).title
    chart = tradeoff_chart(measured, first, y_name)
    write_page(
        output / f"{NAME}.html",
        heading="What a defense keeps and what it costs",
        run=str(facts["run"]),
        facts=[(name, str(value)) for name, value in facts.items() if name not in ("run", "left_out")],
        lead=said,
        sections=[
            ("plot", f"{y_name} against NDCG@10", macro("tradeoff", chart=chart, search=first)),
            ("table", table.title, macro("table_of", table=table, style="wide points")),
        ],
    )
    print_values(table, terminal())
    return said


def _table(measured: Sequence[MeasuredPoint], notes: Sequence[str], searches: Sequence[str]) -> Table:
    columns = ["defense", *(measure(key).title for key in READ), *(f"NDCG@10, {name}" for name in searches)]
    lines = []
    for number, one in enumerate(measured):
        read = [_cell(one.read[key], measure(key).kind, more_is_good=False) for key in READ]
        found = [_cell(one.found[name], "cosine", more_is_good=True) for name in searches]
        below = "" if one.point.reconstruction else f"{one.point.width} dimensions, more than the attack takes"
        lines.append(Line(f"{number}. {one.point.name}", below, (*read, *found)))
    return Table("Defense by defense", tuple(columns), tuple(lines), notes=tuple(notes))


def _cell(value: DefendedValue, kind: str, *, more_is_good: bool) -> Cell:
    """A value with its change below, coloured from the view of the store's owner if the change is significant."""
    if value.value is None:
        return Cell(DASH)
    if value.change is None:
        return Cell(shown(kind, value.value), () if value.interval is None else (interval(kind, value.interval),))
    below = [signed(kind, value.change)]
    if value.change_interval is not None:
        below.append(" to ".join(signed(kind, end) for end in value.change_interval))
    gain = more_is_good if value.higher else (not more_is_good) if value.lower else None
    return Cell(shown(kind, value.value), tuple(below), gain)


def _plain(measured: Sequence[MeasuredPoint], facts: Mapping[str, Any], searches: Sequence[str]) -> dict[str, Any]:
    points = []
    for one in measured:
        retrieval = {
            name: None
            if (found := one.point.retrieval[name]) is None
            else {key: sum(values) / len(values) for key, values in found.items()}
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
                    **{key: value.plain() for key, value in one.read.items()},
                    **{f"ndcg_at_10, {name}": value.plain() for name, value in one.found.items()},
                },
            }
        )
    return {**facts, "searches": list(searches), "points": points}
