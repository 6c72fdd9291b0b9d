"""The lock test: defenses down, attackers across, at equal usefulness (unembed compare columns=locks runs/locks/*).

A cell is a run that declares one, as for the access table (access.py), with ``defense.recall``: what the owner's search
still finds. Its value is the leak, word F1 between a floor and a ceiling:

    leak = (F1 - floor) / (ceiling - floor)

The floor is that of another text of the store as the answer; the ceiling that of the strongest attacker of the same
access, or less, on the store without a lock.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from unembed.core.errors import InputError
from unembed.defenses.threat import KNOWLEDGE
from unembed.metrics.scoring import metric_of
from unembed.metrics.statistics import interval as percentiles
from unembed.reports.access import (
    LEVELS,
    UNDEFENDED,
    AccessCell,
    facts_of,
    highest,
    plan,
    presumptions,
    rank,
    read_cells,
)
from unembed.reports.comparison.entries import Entry
from unembed.reports.comparison.measuring import Compared, MetricValue
from unembed.reports.numbers import shown
from unembed.reports.output import Cell, Line, Table, macro, paragraphs, print_tables, sentence, write
from unembed.reports.results import as_scored

VERSION = 1
METRIC = "token_f1"
LEAST = 20.0  # percent of the leak: a lock that leaves at most so much holds
WANTED = 0.895  # recall of the locks that the first sentence names: .90, as rounded
EXACT = 0.995  # recall of locks that cost a search nothing, which stand first
ADAPTIVE = "queries_0"  # the attacker of the first sentence: who had texts locked
OTHERS = 5  # answers for each text from which the floor is taken
_TEMPLATE = "reports/access.html.jinja"
_SECRETS = ("seed", "key_env", "key_file")


class LockCell(NamedTuple):
    """A cell: what was measured, the recall (0 to 1), the settings of the lock, and the leak in percent."""

    cell: AccessCell
    recall: float
    settings: str
    leak: MetricValue

    @property
    def lock(self) -> tuple[str, float, str]:
        """What has a row."""
        return self.cell.defense, self.recall, self.settings


def write_lock_table(directories: Sequence[Path], output: Path, resamples: int, seed: int) -> list[Path]:
    """Read the runs that declare a cell, write <output>.html, .md and .json, print the tables; returns the files."""
    measured, unfinished = read_cells(directories, resamples, seed, "locks")
    floor = floor_of(measured[0][1].entry)
    cells = list(_leaks(measured, floor))
    places: dict[tuple[Any, ...], LockCell] = {}
    for one in cells:
        other = places.setdefault((*one.lock, one.cell.attack, one.cell.has), one)
        if other is not one:
            raise InputError(
                f"columns=locks: {other.cell.source} and {one.cell.source} are both of attack {one.cell.attack!r}, "
                f"{one.cell.has}, defense {one.cell.defense} at recall {one.recall:.3f}; leave one of them out"
            )
    heat = leaks(cells)
    presumed = presumptions([one.cell for one in cells])
    notes = paragraphs("locks_notes", resamples=resamples, floor=floor, unfinished=unfinished)
    entries = [compared.entry for _, compared in measured]
    locked = {one.lock for one in cells if one.cell.defense != UNDEFENDED}
    page = {
        "heading": "What a lock leaves, at equal usefulness",
        "run": "lock test",
        "facts": [*facts_of(entries).items()],
        "lead": sentence(
            "locks",
            texts=len(entries[0].results.recovered),
            count=len(locked),
            least=f"{LEAST:g}",
            wanted=f"{WANTED:.2f}"[1:],
            holding=holding(cells),
        ),
        "sections": [
            ("leak", heat.title, macro("heat_map", _TEMPLATE, map=heat, scale="leak, percent")),
            ("read", "How to read it", macro("notes", _TEMPLATE, notes=notes)),
            ("presumed", presumed.title, macro("table_of", table=presumed, style="wide presumed")),
        ],
        "style": macro("style", _TEMPLATE),
        "footer": "from the files of the runs alone. The page holds no text of the test set.",
    }
    values = {"version": VERSION, "floor": floor, "cells": [_plain(one) for one in cells]}
    tables = [heat, presumed._replace(notes=notes)]
    paths = write(output, page, tables, values)
    print_tables(tables)
    return paths


def floor_of(entry: Entry) -> float:
    """Word F1 of other texts of the store as answers, in percent: of each text, of the ``OTHERS`` that follow it."""
    rows = [as_scored(one.row) for one in entry.results.recovered]
    metric = metric_of(METRIC)
    assert metric is not None
    values = []
    for step in range(1, min(OTHERS, len(rows) - 1) + 1):
        others = [replace(row, prediction=rows[(place + step) % len(rows)].reference) for place, row in enumerate(rows)]
        values.append(metric.combine(metric.statistics(others).sum(axis=0)[None])[0])
    return float(statistics.fmean(values))


def holding(cells: Sequence[LockCell]) -> list[str]:
    """The useful locks of which no measured attacker who had texts locked, or has less, reads more than ``LEAST``."""
    allowed = {ADAPTIVE, *plan().columns[ADAPTIVE].includes}
    found = []
    for lock in dict.fromkeys(one.lock for one in cells if one.recall >= WANTED):
        against = [one for one in cells if one.lock == lock and one.cell.has in allowed and one.leak.value is not None]
        adaptive = any(one.cell.has == ADAPTIVE for one in against)
        if adaptive and all((one.leak.value or 0.0) <= LEAST for one in against):
            found.append(" at ".join(filter(None, (against[0].cell.defense, against[0].settings))))
    return found


def leaks(cells: Sequence[LockCell]) -> Table:
    """Locks down, the unlocked store first, those without a strength next; attackers across, weakest first."""
    across = sorted({(one.cell.attack, one.cell.has) for one in cells}, key=lambda place: rank(*place))
    locks = sorted({one.lock for one in cells}, key=lambda lock: (lock[0] != UNDEFENDED, lock[1] < EXACT, *lock))
    places = {(one.lock, one.cell.attack, one.cell.has): one for one in cells}
    lines = []
    for lock in locks:
        title, below = _named(next(one for one in cells if one.lock == lock))
        lines.append(Line(title, below, [_heat(places.get((lock, *place))) for place in across]))
    columns = [f"{plan().columns[has].title}: {attack}" for attack, has in across]
    return Table("Leak", ("leak, percent", *columns), lines)


def _leaks(measured: Sequence[tuple[AccessCell, Compared]], floor: float) -> Iterator[LockCell]:
    compared = {cell.source: one for cell, one in measured}
    cells = [cell for cell, _ in measured]
    for cell, one in measured:
        settings = one.entry.results.config["defense"]
        if settings.get("recall") is None:
            raise InputError(f"columns=locks: {cell.source} has no defense.recall; a cell of this table needs one")
        best = highest(cells, cell.has)
        leak = MetricValue(None)
        if best is not None and best.f1 > floor and METRIC in one.resampled:
            whole = compared[best.source].resampled[METRIC] - floor
            shares = 100 * (one.resampled[METRIC] - floor) / whole
            leak = MetricValue(float(shares[-1]), percentiles(shares[:-1]))
        yield LockCell(cell, settings["recall"], ", ".join(_settings(settings)), leak)


def _settings(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{name}.")
        elif name not in (*KNOWLEDGE, *_SECRETS) and not name.startswith("_"):
            yield f"{prefix}{name} {value:.4g}" if isinstance(value, float) else f"{prefix}{name} {value}"


def _named(one: LockCell) -> tuple[str, str]:
    """The title of a row, and what stands below it."""
    if one.cell.defense == UNDEFENDED:
        return "no lock", ""
    settings = f"; {one.settings}" if one.settings else ""
    return one.cell.defense, f"recall {one.recall:.2f}{settings}"


def _heat(one: LockCell | None) -> Cell:
    if one is None:
        return Cell("", style="blank")
    below = [] if one.leak.interval is None else ["{:.0f} to {:.0f}".format(*one.leak.interval)]
    below.append(f"F1 {shown('score', one.cell.token_f1.value)}")
    if one.leak.value is None:
        return Cell("", tuple(below), style="blank")
    level = max(0, min(LEVELS - 1, int(one.leak.value * LEVELS / 100)))
    return Cell(f"{one.leak.value:.0f}", tuple(below), style=f"h{level}")


def _plain(one: LockCell) -> dict[str, Any]:
    plain = {
        name: value.plain() if isinstance(value, MetricValue) else value for name, value in one.cell._asdict().items()
    }
    return plain | {"recall": one.recall, "settings": one.settings, "leak": one.leak.plain()}
