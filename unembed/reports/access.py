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
from unembed.reports.output import Cell, Line, Table, macro, paragraphs, print_tables, sentence, write
from unembed.runs import layout
from unembed.runs.files import read_config

VERSION = 1
METRICS = ("token_f1", "entity_recovery")
LEVELS = 10  # steps of heat from 0 to 100 % word F1
UNDEFENDED = "none"
LEAD = ("vectors", "pairs_1000", "queries_0", "queries_20", "weights")  # columns that the first sentence names
_TEMPLATE = "reports/access.html.jinja"


class Column(BaseModel):
    """A column: its title, how a sentence says it, the columns whose attacker has less, and if it may be left out."""

    title: str
    said: str
    includes: list[str]
    optional: bool = False


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


class AccessCell(NamedTuple):
    """A measured cell: its place, the option of ``defense=``, its values and costs, the run directory."""

    attack: str
    has: str
    presumes: str
    defense: str
    token_f1: MetricValue
    entity_recovery: MetricValue
    queries_per_target: float | None
    seconds_per_target: float | None  # without training
    source: str

    @property
    def f1(self) -> float:
        """Word F1; -1 if unknown, which is below every value."""
        return -1.0 if self.token_f1.value is None else self.token_f1.value


def write_access_table(directories: Sequence[Path], output: Path, resamples: int, seed: int) -> list[Path]:
    """Read the runs that declare a cell, write <output>.html, .md and .json, and print the tables.

    Other runs (the decoders of an attacker) are passed over.

    Returns:
        The files.
    """
    measured, unfinished = read_cells(directories, resamples, seed, "access")
    places: dict[tuple[str, str, str], AccessCell] = {}
    for cell, _ in measured:
        other = places.setdefault((cell.attack, cell.has, cell.defense), cell)
        if other is not cell:
            raise InputError(
                f"columns=access: {other.source} and {cell.source} are both of attack {cell.attack!r}, {cell.has}, "
                f"defense {cell.defense}; leave one of them out, or name the attack otherwise"
            )
    cells, entries = [cell for cell, _ in measured], [one.entry for _, one in measured]
    return _write(output, cells, entries, _notes(cells, entries, resamples, unfinished))


def read_cells(
    directories: Sequence[Path], resamples: int, seed: int, table: str
) -> tuple[list[tuple[AccessCell, Compared]], list[str]]:
    """The finished runs that declare a cell, all of one test set, and the names of the others that do."""
    declared = {path: node for path in directories if (node := _declared(path)) is not None}
    needed = (layout.METRICS, layout.PREDICTIONS)
    ended = [path for path in declared if all((path / name).is_file() for name in needed)]
    unfinished = [str(path) for path in declared if path not in ended]
    if not ended:
        more = f"; not finished: {', '.join(unfinished)}" if unfinished else ""
        raise InputError(f"columns={table}: no directory is a finished cell of experiment={table}{more}")
    entries = read_entries(ended)
    for entry in entries:
        if entry.texts != entries[0].texts:
            raise InputError(
                f"columns={table}: {entry.results.directory} was tested on other texts than "
                f"{entries[0].results.directory}; all cells of a table are of one test set"
            )
    present = {key for entry in entries for key in entry.results.metrics}
    compared = compare(entries, [key for key in METRICS if key in present], resamples, seed)
    return [(_cell(one, declared[one.entry.results.directory]), one) for one in compared], unfinished


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
        **declared.model_dump(),
        defense=one.entry.choice("defense"),
        token_f1=one.values.get("token_f1", MetricValue(None)),
        entity_recovery=one.values.get("entity_recovery", MetricValue(None)),
        queries_per_target=number(metrics, "queries_per_target"),
        seconds_per_target=seconds / texts if seconds is not None and texts else None,
        source=str(one.entry.results.directory),
    )


# ---------------------------------------------------------------------------------------------------------- heat maps


def undefended(cells: Sequence[AccessCell]) -> Table:
    """Attacks down, what the attacker has across, without a defense; the highest of each column first."""
    impossible, has_cells = plan().impossible, {one.has for one in cells}
    columns = {has: one for has, one in plan().columns.items() if not one.optional or has in has_cells}
    measured = {(one.attack, one.has): one for one in cells if one.defense == UNDEFENDED}
    best = [highest(cells, has) for has in columns]
    first = [heat_cell(one, by=one.attack if one else "") for one in best]
    lines = [Line("highest measured", "of this column and those that it includes", first)]
    for attack in dict.fromkeys([*impossible, *(attack for attack, _ in measured)]):
        reasons = impossible.get(attack, {})
        across = [heat_cell(measured.get((attack, has)), reasons.get(has, "")) for has in columns]
        lines.append(Line(attack, "", across))
    return Table("What the attacker has", ("word F1", *(one.title for one in columns.values())), lines)


def defended(cells: Sequence[AccessCell]) -> Table | None:
    """Attacks with what they have down, defenses across; None without a defended cell."""
    attacked = {(one.attack, one.has) for one in cells if one.defense != UNDEFENDED}
    if not attacked:
        return None
    titles, present = plan().defenses, {one.defense for one in cells}
    names = [UNDEFENDED, *(one for one in titles if one in present and one != UNDEFENDED), *sorted(present - {*titles})]
    measured = {(one.attack, one.has, one.defense): one for one in cells}
    lines = [
        Line(attack, plan().columns[has].title, [heat_cell(measured.get((attack, has, name))) for name in names])
        for attack, has in sorted(attacked, key=lambda place: rank(*place))
    ]
    return Table("What a defense leaves", ("word F1", *(titles.get(name, name) for name in names)), lines)


def heat_cell(cell: AccessCell | None, reason: str = "", by: str = "") -> Cell:
    """What was measured, or the ``reason`` why no run can fill the cell; ``by``: the attack, in the row of the highest.

    Below word F1 stand its interval, and entities with theirs.
    """
    if cell is None:
        return Cell(DASH, (reason,), style="dash") if reason else Cell("", style="blank")
    f1, entities, below = cell.token_f1, cell.entity_recovery, [by] if by else []
    if f1.interval is not None:
        below.append(interval("score", f1.interval))
    if entities.value is not None:
        ends = "" if entities.interval is None else f" ({interval('score', entities.interval)})"
        ends = ends.replace(" to ", "\u00a0to\u00a0")  # an interval is not broken over two lines
        below.append(f"entities {shown('score', entities.value)}{ends}")
    level = f"h{min(LEVELS - 1, int(cell.f1 * LEVELS / 100))}" if cell.f1 >= 0 else "blank"
    return Cell(shown("score", f1.value), tuple(below), style=level)


def rank(attack: str, has: str) -> tuple[int, int, str]:
    """The order of places: by column, then as rows; "GEIA, longer" after "GEIA"."""
    known, base = [*plan().impossible], attack.partition(",")[0]
    return [*plan().columns].index(has), known.index(base) if base in known else len(known), attack


def highest(cells: Iterable[AccessCell], has: str) -> AccessCell | None:
    """The undefended cell of highest word F1 of an attacker who has this and what it includes."""
    allowed = {has, *plan().columns[has].includes}
    fitting = [one for one in cells if one.defense == UNDEFENDED and one.has in allowed and one.f1 >= 0]
    return max(fitting, key=lambda one: one.f1, default=None)


# --------------------------------------------------------------------------------------------------------------- files


def _notes(
    cells: Sequence[AccessCell], entries: Sequence[Entry], resamples: int, unfinished: Sequence[str]
) -> list[str]:
    """How to read the table."""
    rows = [one.row for one in entries[0].results.recovered]
    counts = (("texts", len(rows)), ("entities", sum(len(row.spans) for row in rows)))
    without_width = [
        (min(100, 300 / count), name)
        for key, (name, count) in zip(METRICS, counts, strict=True)
        if count and any((one := getattr(cell, key).interval) is not None and one.low == one.high for cell in cells)
    ]
    return paragraphs("access_notes", resamples=resamples, without_width=without_width, unfinished=unfinished)


def _write(output: Path, cells: Sequence[AccessCell], entries: Sequence[Entry], notes: Sequence[str]) -> list[Path]:
    rows = [one.row for one in entries[0].results.recovered]
    texts = blake2b(json.dumps(sorted([row.index, row.reference] for row in rows)).encode(), digest_size=8).hexdigest()
    facts = facts_of(entries)
    maps = [one for one in (undefended(cells), defended(cells)) if one is not None]
    presumed = presumptions(cells)
    best = [(plan().columns[has].said, one) for has in LEAD if (one := highest(cells, has)) is not None]
    sections = [(f"map-{n}", one.title, macro("heat_map", _TEMPLATE, map=one)) for n, one in enumerate(maps)]
    sections.append(("read", "How to read it", macro("notes", _TEMPLATE, notes=notes)))
    sections.append(("presumed", presumed.title, macro("table_of", table=presumed, style="wide presumed")))
    page = {
        "heading": "What an attacker reads, by access",
        "run": "access table",
        "facts": [*facts.items(), ("test set", texts)],
        "lead": sentence("access", texts=len(rows), best=best),
        "sections": sections,
        "style": macro("style", _TEMPLATE),
        "footer": "from the files of the runs alone. The page holds no text of the test set.",
    }
    values = {
        "version": VERSION,
        "texts": texts,
        "examples": len(rows),
        **facts,
        "cells": [
            {name: value.plain() if isinstance(value, MetricValue) else value for name, value in one._asdict().items()}
            for one in cells
        ],
        "impossible": plan().impossible,
    }
    tables = [*maps, presumed._replace(notes=notes)]
    paths = write(output, page, tables, values)
    print_tables(tables)
    return paths


def facts_of(entries: Sequence[Entry]) -> dict[str, str]:
    recorded = (entry.results.record.get("processor") for entry in entries)
    processors = (str(one["name"]) for one in recorded if isinstance(one, dict) and "name" in one)
    facts = {
        "embedder": ", ".join(dict.fromkeys(entry.embedder for entry in entries)),
        "test texts": f"{len(entries[0].results.recovered):,}",
        "processor": ", ".join(dict.fromkeys(processors)),
    }
    return {name: value for name, value in facts.items() if value}


def presumptions(cells: Sequence[AccessCell]) -> Table:
    """What each attack presumes, and what it costs; of several defenses, the first."""
    places: dict[tuple[str, str], AccessCell] = {}
    for cell in sorted(cells, key=lambda one: rank(one.attack, one.has)):
        places.setdefault((cell.attack, cell.has), cell)
    lines = []
    for one in places.values():
        costs = shown("score", one.queries_per_target), shown("moment", one.seconds_per_target)
        lines.append(Line(one.attack, plan().columns[one.has].title, [*map(Cell, (one.presumes, *costs))]))
    return Table("What each attack presumes", ("attack", "presumes", "queries a text", "seconds a text"), lines)
