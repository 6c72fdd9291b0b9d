"""The access table: attacks down, what the attacker has across (unembed compare columns=access).

A run declares its cell in the node ``access`` of its configuration:

    access:
      attack: my attack
      has: pairs_100                                                 # a column of access.yaml
      presumes: 100 texts of the store with their stored vectors.

All cells of a table are of the same test texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unembed.core.errors import InputError, did_you_mean, missing
from unembed.reports.comparison.entries import Entry, read_entries
from unembed.reports.comparison.measuring import Compared, MetricValue, compare
from unembed.reports.numbers import DASH, interval, number, shown
from unembed.reports.output import Cell, Line, Table, macro, print_tables, write
from unembed.runs import layout
from unembed.runs.files import Row, read_config

VERSION = 1
METRICS = ("token_f1", "entity_recovery")
LEVELS = 10  # steps of heat from 0 to 100 % word F1
UNDEFENDED = "none"
LEAD = ("vectors", "pairs_1000", "queries_0", "queries_20", "weights")  # columns that the first sentence names
_TO = "\u00a0to\u00a0"  # an interval is not broken over two lines
_TEMPLATE = "access.html.jinja"


class Column(BaseModel):
    """A column: its title, how a sentence says it, and the columns whose attacker has less."""

    title: str
    said: str
    includes: list[str]


class Plan(BaseModel):
    """access.yaml: the columns in order, the titles of defenses in order, and why attacks cannot fill cells."""

    columns: dict[str, Column]
    defenses: dict[str, str]
    impossible: dict[str, dict[str, str]]


@cache
def plan() -> Plan:
    """The rows and columns of the table."""
    return Plan.model_validate(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))


class Declared(BaseModel):
    """A run's row, its column, and in one sentence what the attack presumes."""

    model_config = ConfigDict(extra="forbid")

    attack: Annotated[str, Field(min_length=1, max_length=60)]
    has: str
    presumes: Annotated[str, Field(min_length=1, max_length=400)]


def declaration_errors(node: object) -> list[str]:
    """One line for each mistake in the node ``access``; none for null, which declares no cell."""
    if node is None:
        return []
    if not isinstance(node, Mapping):
        return [f"access={node}: must be a mapping with the keys {', '.join(Declared.model_fields)}, or null"]
    messages = []
    has, columns = node.get("has"), plan().columns
    if isinstance(has, str) and has not in columns:
        messages.append(f"access.has={has}: no column of the access table, {did_you_mean(has, columns)}")
    try:
        Declared.model_validate(node)
    except ValidationError as error:
        for one in error.errors():
            key = str(one["loc"][0])
            unknown = f"unknown key, {did_you_mean(key, Declared.model_fields)}"
            message = {"extra_forbidden": unknown, "missing": "missing"}.get(one["type"], one["msg"])
            messages.append(f"access.{key}: {message}")
    return messages


@dataclass(frozen=True, slots=True)
class AccessCell:
    """A measured cell: its declaration, the option of ``defense=``, values by key of ``METRICS``, the run directory.

    ``queries`` that the attack asked the embedder, and ``seconds`` without training, are for each vector.
    """

    declared: Declared
    defense: str
    values: Mapping[str, MetricValue]
    queries: float | None
    seconds: float | None
    source: str

    @property
    def place(self) -> tuple[str, str]:
        """Row and column: the attack, and what the attacker has."""
        return self.declared.attack, self.declared.has

    @property
    def f1(self) -> float:
        """Word F1; -1 if unknown, which is below every value."""
        value = self.values["token_f1"].value
        return -1.0 if value is None else value


@dataclass(frozen=True, slots=True)
class AccessTable:
    """All cells, each attack, column and defense once; their test examples, with the predictions of the first run;
    names and values for the page; and the directories of runs that have not ended."""

    cells: list[AccessCell]
    rows: list[Row]
    facts: dict[str, str]
    unfinished: list[str]

    @property
    def texts(self) -> str:
        """Hash of the test texts."""
        listed = sorted([row.index, row.reference] for row in self.rows)
        return blake2b(json.dumps(listed).encode(), digest_size=8).hexdigest()


def read_table(directories: Sequence[Path], resamples: int, seed: int) -> AccessTable:
    """Read the runs that declare a cell; others (the decoders of an attacker) are passed over.

    Raises:
        InputError: None declares a cell; a declaration is wrong; runs were tested on different texts; two are of the
            same cell; or a file is damaged.
    """
    declared: dict[Path, Declared] = {}
    unfinished = []
    for directory in directories:
        if (found := _declared(directory)) is None:
            continue
        if all((directory / name).is_file() for name in (layout.METRICS, layout.PREDICTIONS)):
            declared[directory] = found
        else:
            unfinished.append(str(directory))
    if not declared:
        more = f"; not finished: {', '.join(unfinished)}" if unfinished else ""
        raise InputError(f"columns=access: no directory is a finished cell of experiment=access{more}")
    entries = read_entries([*declared])
    first = entries[0].results
    for entry in entries:
        if entry.texts != entries[0].texts:
            raise InputError(
                f"columns=access: {entry.results.directory} was tested on other texts than {first.directory}; "
                "all cells of a table are of one test set"
            )
    present = {key for entry in entries for key in entry.results.metrics}
    compared = compare(entries, [key for key in METRICS if key in present], resamples, seed)
    cells = [_cell(one, declared[one.entry.results.directory]) for one in compared]
    places: dict[tuple[object, str], AccessCell] = {}
    for cell in cells:
        other = places.setdefault((cell.place, cell.defense), cell)
        if other is not cell:
            attack, has = cell.place
            raise InputError(
                f"columns=access: {other.source} and {cell.source} are both of attack {attack!r}, {has}, "
                f"defense {cell.defense}; leave one of them out, or name the attack otherwise"
            )
    return AccessTable(cells, [one.row for one in first.recovered], _facts(entries), unfinished)


def _declared(directory: Path) -> Declared | None:
    if not directory.is_dir():
        raise InputError(f"{directory}: {missing(directory, 'directory')}")
    path = directory / layout.CONFIG
    node = read_config(path)[1].get("access") if path.is_file() else None
    if errors := declaration_errors(node):
        raise InputError("\n".join(f"{path}: {one}" for one in errors))
    return None if node is None else Declared.model_validate(node)


def _cell(one: Compared, declared: Declared) -> AccessCell:
    metrics = one.entry.results.metrics
    seconds, texts = number(metrics, "seconds"), number(metrics, "examples")
    return AccessCell(
        declared=declared,
        defense=one.entry.choice("defense"),
        values={key: one.values.get(key, MetricValue(None)) for key in METRICS},
        queries=number(metrics, "queries_per_target"),
        seconds=seconds / texts if seconds is not None and texts else None,
        source=str(one.entry.results.directory),
    )


def _facts(entries: Sequence[Entry]) -> dict[str, str]:
    recorded = (entry.results.record.get("processor") for entry in entries)
    processors = (str(one["name"]) for one in recorded if isinstance(one, dict) and "name" in one)
    facts = {
        "embedder": ", ".join(dict.fromkeys(entry.embedder for entry in entries)),
        "test texts": f"{len(entries[0].results.recovered):,}",
        "processor": ", ".join(dict.fromkeys(processors)),
    }
    return {name: value for name, value in facts.items() if value}


# ----------------------------------------------------------------------------------------------------------------- maps


class HeatCell(NamedTuple):
    """A cell of a map: what was measured, or why no run can fill it; ``by``: the attack, in the row of the highest."""

    cell: AccessCell | None = None
    reason: str = ""
    by: str = ""

    @property
    def value(self) -> str:
        """Word F1; a dash where nothing applies; nothing where nothing was measured."""
        if self.cell is None:
            return DASH if self.reason else ""
        return shown("score", self.cell.values["token_f1"].value)

    @property
    def below(self) -> tuple[str, ...]:
        """The interval, then entities with theirs."""
        if self.cell is None:
            return (self.reason,) if self.reason else ()
        f1, entities = (self.cell.values[key] for key in METRICS)
        lines = [self.by] if self.by else []
        if f1.interval is not None:
            lines.append(interval("score", f1.interval))
        if entities.value is not None:
            ends = "" if entities.interval is None else f" ({interval('score', entities.interval)})"
            lines.append(f"entities {shown('score', entities.value)}{ends.replace(' to ', _TO)}")
        return tuple(lines)

    @property
    def level(self) -> int | None:
        """0 to 9; None where nothing was measured."""
        if self.cell is None or self.cell.f1 < 0:
            return None
        return min(LEVELS - 1, int(self.cell.f1 * LEVELS / 100))


class HeatRow(NamedTuple):
    """A row of a map: its title, the smaller text below it, and its cells."""

    title: str
    below: str
    cells: list[HeatCell]


class HeatMap(NamedTuple):
    """A map of word F1."""

    title: str
    columns: list[str]
    rows: list[HeatRow]

    @property
    def table(self) -> Table:
        """The map for the terminal and Markdown."""
        lines = (Line(row.title, row.below, tuple(Cell(c.value, c.below) for c in row.cells)) for row in self.rows)
        return Table(self.title, ("word F1", *self.columns), tuple(lines))


def undefended(cells: Sequence[AccessCell]) -> HeatMap:
    """Attacks down, what the attacker has across, without a defense; the highest of each column first."""
    columns, impossible = plan().columns, plan().impossible
    measured = {one.place: one for one in cells if one.defense == UNDEFENDED}
    best = [highest(cells, has) for has in columns]
    first = [HeatCell() if one is None else HeatCell(one, by=one.place[0]) for one in best]
    rows = [HeatRow("highest measured", "of this column and those that it includes", first)]
    for attack in dict.fromkeys([*impossible, *(attack for attack, _ in measured)]):
        reasons = impossible.get(attack, {})
        across = [(measured.get((attack, has)), reasons.get(has, "")) for has in columns]
        rows.append(HeatRow(attack, "", [HeatCell(cell) if cell else HeatCell(reason=why) for cell, why in across]))
    return HeatMap("What the attacker has", [column.title for column in columns.values()], rows)


def defended(cells: Sequence[AccessCell]) -> HeatMap | None:
    """Attacks with what they have down, defenses across; None without a defended cell."""
    attacked = {one.place for one in cells if one.defense != UNDEFENDED}
    if not attacked:
        return None
    titles, present = plan().defenses, {one.defense for one in cells}
    known = [name for name in titles if name in present]
    names = list(dict.fromkeys([UNDEFENDED, *known, *sorted(present - set(titles))]))
    measured = {(one.place, one.defense): one for one in cells}
    rows = [
        HeatRow(place[0], plan().columns[place[1]].title, [HeatCell(measured.get((place, name))) for name in names])
        for place in sorted(attacked, key=rank)
    ]
    return HeatMap("What a defense leaves", [titles.get(name, name) for name in names], rows)


def rank(place: tuple[str, str]) -> tuple[int, int, str]:
    """The order of places: by column, then as rows; "GEIA, longer" after "GEIA"."""
    known, (attack, has) = [*plan().impossible], place
    base = attack.partition(",")[0]
    return [*plan().columns].index(has), known.index(base) if base in known else len(known), attack


def highest(cells: Iterable[AccessCell], has: str) -> AccessCell | None:
    """The undefended cell of highest word F1 of an attacker who has this and what it includes."""
    allowed = {has, *plan().columns[has].includes}
    fitting = [one for one in cells if one.defense == UNDEFENDED and one.place[1] in allowed and one.f1 >= 0]
    return max(fitting, key=lambda one: one.f1, default=None)


# ----------------------------------------------------------------------------------------------------------------- page


def write_table(output: Path, table: AccessTable, resamples: int) -> list[Path]:
    """Write <output>.html, .md and .json and print the tables; returns the files."""
    cells = table.cells
    maps = [one for one in (undefended(cells), defended(cells)) if one is not None]
    notes, presumed = _notes(table, resamples), _presumed(cells)
    sections = [(f"map-{n}", one.title, macro("heat_map", _TEMPLATE, map=one)) for n, one in enumerate(maps)]
    sections.append(("read", "How to read it", macro("notes", _TEMPLATE, notes=notes)))
    sections.append(("presumed", presumed.title, macro("table_of", table=presumed, style="wide presumed")))
    page = {
        "heading": "What an attacker reads, by access",
        "run": "access table",
        "facts": [*table.facts.items(), ("test set", table.texts)],
        "lead": _lead(table),
        "sections": sections,
        "style": macro("style", _TEMPLATE),
        "footer": "from the files of the runs alone. The page holds no text of the test set.",
    }
    values = {
        "version": VERSION,
        "texts": table.texts,
        "examples": len(table.rows),
        **table.facts,
        "cells": [
            {
                **one.declared.model_dump(),
                "defense": one.defense,
                **{key: value.plain() for key, value in one.values.items()},
                "queries_per_target": one.queries,
                "seconds_per_target": one.seconds,
                "source": one.source,
            }
            for one in cells
        ],
        "impossible": plan().impossible,
    }
    tables = [*(one.table for one in maps), replace(presumed, notes=tuple(notes))]
    paths = write(output, page, tables, values)
    print_tables(tables)
    return paths


def _lead(table: AccessTable) -> str:
    """The first sentence: the highest word F1 with this or that."""
    best = [(plan().columns[has].said, highest(table.cells, has)) for has in LEAD]
    parts = [f"{said} {shown('score', one.f1)} ({one.place[0]})" for said, one in best if one is not None]
    count = f"{len(table.rows):,} texts"
    if not parts:
        return f"Word F1 on {count}; no cell without a defense was measured."
    return f"Word F1 on {count} without a defense, by the strongest attack measured: {'; '.join(parts)}."


def _notes(table: AccessTable, resamples: int) -> list[str]:
    notes = [
        "Each cell: word F1 in percent, its 95 % interval over the choice of the test texts "
        f"({resamples:,} bootstrap resamples), and the share of the labelled entities that came back, with its own.",
        "An empty cell was not measured. A dash marks what the attack cannot use, or needs and does not have.",
        "The highest of a column is chosen after the measurement; its interval is that of the attack and takes no "
        "account of the choice.",
        "The interval does not cover another training or another kind of text. All cells are of the same texts.",
    ]
    counts = (("texts", len(table.rows)), ("entities", sum(len(row.spans) for row in table.rows)))
    without_width = [
        f"{shown('percent', min(100, 300 / count))} of further {name}"
        for key, (name, count) in zip(METRICS, counts, strict=True)
        if count and any((one := cell.values[key].interval) is not None and one.low == one.high for cell in table.cells)
    ]
    if without_width:
        notes.append(
            "Where all or nothing came back, a bootstrap's interval has no width. By the rule of three, up to "
            f"{' and '.join(without_width)} may still differ."
        )
    if table.unfinished:
        notes.append(f"Not finished, so empty: {', '.join(table.unfinished)}.")
    return notes


def _presumed(cells: Sequence[AccessCell]) -> Table:
    """What each attack presumes, and what it costs; of several defenses, the first."""
    places: dict[tuple[str, str], AccessCell] = {}
    for cell in sorted(cells, key=lambda one: rank(one.place)):
        places.setdefault(cell.place, cell)
    lines = []
    for (attack, has), one in places.items():
        costs = shown("score", one.queries), shown("moment", one.seconds)
        lines.append(Line(attack, plan().columns[has].title, tuple(map(Cell, (one.declared.presumes, *costs)))))
    return Table("What each attack presumes", ("attack", "presumes", "queries a text", "seconds a text"), tuple(lines))
