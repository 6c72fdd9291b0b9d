"""Writes the access table: <output>.html, .md and .json, from the cells alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import write_json
from unembed.reports.access.cells import METRICS, AccessCell, Found
from unembed.reports.access.columns import KNOWN
from unembed.reports.access.heat import defended, highest, rank, undefended
from unembed.reports.comparison.measuring import MetricValue
from unembed.reports.html import macro, write_page
from unembed.reports.numbers import shown
from unembed.reports.tables import Cell, Line, Table, print_tables, write_markdown

VERSION = 1
TEMPLATE = "access.html.jinja"
SAID = ("vectors", "pairs_1000", "queries_0", "queries_20", "weights")  # columns that the first sentence names


def write_table(output: Path, found: Found, resamples: int) -> list[Path]:
    """Write the three files and print the tables; returns the files."""
    cells = found.cells
    maps = [one for one in (undefended(cells), defended(cells)) if one is not None]
    said, notes, presumed = lead(cells, found), _notes(cells, found, resamples), _presumed(cells)
    paths = [output.with_name(output.name + ending) for ending in (".html", ".md", ".json")]
    tables = [*(one.table for one in maps), replace(presumed, notes=tuple(notes))]
    write_markdown(paths[1], tables, said)
    write_json(paths[2], _plain(cells, found))
    sections = [(f"map-{n}", one.title, macro("heat_map", TEMPLATE, map=one)) for n, one in enumerate(maps)]
    sections.append(("read", "How to read it", macro("notes", TEMPLATE, notes=notes)))
    sections.append(("presumed", presumed.title, macro("table_of", table=presumed, style="wide presumed")))
    write_page(
        paths[0],
        heading="What an attacker reads, by access",
        run="access table",
        facts=[*found.facts, ("test set", found.texts)],
        lead=said,
        sections=sections,
        style=macro("style", TEMPLATE),
        footer="from the files of the runs alone. The page holds no text of the test set.",
    )
    print_tables(tables)
    return paths


def lead(cells: Sequence[AccessCell], found: Found) -> str:
    """The first sentence: the highest word F1 with this or that."""
    parts = []
    for has in SAID:
        best = highest(cells, has)
        if best is not None:
            value = best.values["token_f1"].value
            parts.append(f"{KNOWN.columns[has].said} {shown('score', value)} ({best.attack})")
    count = f"{len(found.rows):,} texts"
    if not parts:
        return f"Word F1 on {count}; no cell without a defense was measured."
    return f"Word F1 on {count} without a defense, by the strongest attack measured: {'; '.join(parts)}."


def _notes(cells: Sequence[AccessCell], found: Found, resamples: int) -> list[str]:
    notes = [
        "Each cell: word F1 in percent, its 95 % interval over the choice of the test texts "
        f"({resamples:,} bootstrap resamples), and the share of the labelled entities that came back, with its own.",
        "An empty cell was not measured. A dash marks what the attack cannot use, or needs and does not have.",
        "The highest of a column is chosen after the measurement; its interval is that of the attack and takes no "
        "account of the choice.",
        "The interval does not cover another training or another kind of text. All cells are of the same texts.",
    ]
    if at_an_end := _at_an_end(cells, found):
        notes.append(
            "Where all or nothing came back, a bootstrap's interval has no width. By the rule of three, up to "
            f"{' and '.join(at_an_end)} may still differ."
        )
    if found.unfinished:
        notes.append(f"Not finished, so empty: {', '.join(found.unfinished)}.")
    return notes


def _at_an_end(cells: Sequence[AccessCell], found: Found) -> list[str]:
    """What an interval without width leaves open: 3/n, for n texts or entities without an exception."""
    counts = {
        "token_f1": ("texts", len(found.rows)),
        "entity_recovery": ("entities", sum(len(row.spans) for row in found.rows)),
    }
    return [
        f"{shown('percent', min(100, 300 / count))} of further {name}"
        for key, (name, count) in counts.items()
        if count and any((one := cell.values[key].interval) is not None and one.low == one.high for cell in cells)
    ]


def _presumed(cells: Sequence[AccessCell]) -> Table:
    """What each attack presumes, and what it costs; of several defenses, the first."""
    places: dict[tuple[str, str], AccessCell] = {}
    for cell in sorted(cells, key=lambda one: rank(one.attack, one.has)):
        places.setdefault((cell.attack, cell.has), cell)
    lines = tuple(
        Line(
            cell.attack,
            KNOWN.columns[cell.has].title,
            (Cell(cell.presumes), Cell(shown("score", cell.queries)), Cell(shown("moment", cell.seconds))),
        )
        for cell in places.values()
    )
    return Table("What each attack presumes", ("attack", "presumes", "queries a text", "seconds a text"), lines)


def _plain(cells: Sequence[AccessCell], found: Found) -> dict[str, Any]:
    return {
        "version": VERSION,
        "texts": found.texts,
        "examples": len(found.rows),
        **dict(found.facts),
        "cells": [
            {
                "attack": one.attack,
                "has": one.has,
                "defense": one.defense,
                "presumes": one.presumes,
                **{key: _value(one.values[key]) for key in METRICS},
                "queries_per_target": one.queries,
                "seconds_per_target": one.seconds,
                "source": one.source,
            }
            for one in cells
        ],
        "impossible": KNOWN.impossible,
    }


def _value(value: MetricValue) -> dict[str, float | None]:
    low, high = value.interval or (None, None)
    return {"value": value.value, "low": low, "high": high}
