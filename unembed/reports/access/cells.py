"""The cells of the access table: finished runs that declare their row and column (``access`` in config.yaml).

    found = read_cells([Path("runs/access/geia-none"), ...], resamples=2000, seed=0)
    found.cells[0].attack, found.cells[0].has, found.cells[0].values["token_f1"].interval

All cells of a table are of the same test texts; ``Found.texts`` identifies them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError, missing
from unembed.reports.access.declared import Declared, declaration_errors
from unembed.reports.comparison.entries import Entry, read_entries
from unembed.reports.comparison.measuring import Compared, MetricValue, compare
from unembed.reports.numbers import number
from unembed.runs import layout
from unembed.runs.files import Row, read_config

METRICS = ("token_f1", "entity_recovery")


@dataclass(frozen=True, slots=True)
class AccessCell:
    """A measured cell.

    Attributes:
        attack: Its row.
        has: Its column.
        defense: The option of ``defense=``.
        presumes: What the attack presumes, in one sentence.
        values: By key of ``METRICS``.
        queries: Texts that the attack asked the embedder for, for each vector; None if unknown.
        seconds: Time for each vector, training apart; None if unknown.
        source: The run directory.
    """

    attack: str
    has: str
    defense: str
    presumes: str
    values: Mapping[str, MetricValue]
    queries: float | None
    seconds: float | None
    source: str

    @property
    def f1(self) -> float:
        """Word F1; -1 if unknown, which is below every value."""
        value = self.values["token_f1"].value
        return -1.0 if value is None else value


@dataclass(frozen=True, slots=True)
class Found:
    """All cells, and what they share.

    Attributes:
        cells: Each attack, column and defense once.
        rows: The test examples with their references; predictions are those of the first run.
        texts: Hash of the test texts.
        facts: Names and values for the page: embedder, data, processor.
        unfinished: Directories of runs that have not ended.
    """

    cells: list[AccessCell]
    rows: list[Row]
    texts: str
    facts: list[tuple[str, str]]
    unfinished: list[str]


def read_cells(directories: Sequence[Path], resamples: int, seed: int) -> Found:
    """Read the runs that declare a cell; others (the decoders of an attacker) are passed over.

    Raises:
        InputError: None declares a cell; a declaration is wrong; runs were tested on different texts; two are of the
            same cell; or a file is damaged.
    """
    declared: dict[Path, Declared] = {}
    unfinished = []
    for directory in directories:
        found = _declared(directory)
        if found is not None and all((directory / name).is_file() for name in (layout.METRICS, layout.PREDICTIONS)):
            declared[directory] = found
        elif found is not None:
            unfinished.append(str(directory))
    if not declared:
        more = f"; not finished: {', '.join(unfinished)}" if unfinished else ""
        raise InputError(f"columns=access: no directory is a finished cell of experiment=access{more}")
    entries = read_entries([*declared])
    _check_texts(entries)
    present = {key for entry in entries for key in entry.results.metrics}
    compared = compare(entries, [key for key in METRICS if key in present], resamples, seed)
    cells = [_cell(one, declared[one.entry.results.directory]) for one in compared]
    _check_once(cells)
    rows = [one.row for one in entries[0].results.recovered]
    listed = sorted([row.index, row.reference] for row in rows)
    texts = blake2b(json.dumps(listed).encode(), digest_size=8).hexdigest()
    return Found(cells, rows, texts, _facts(entries), unfinished)


def _check_once(cells: Sequence[AccessCell]) -> None:
    """Raise InputError if two cells are of one place."""
    places: dict[tuple[str, str, str], AccessCell] = {}
    for cell in cells:
        other = places.setdefault((cell.attack, cell.has, cell.defense), cell)
        if other is not cell:
            raise InputError(
                f"columns=access: {other.source} and {cell.source} are both of attack {cell.attack!r}, {cell.has}, "
                f"defense {cell.defense}; leave one of them out, or name the attack otherwise"
            )


def _declared(directory: Path) -> Declared | None:
    if not directory.is_dir():
        raise InputError(f"{directory}: {missing(directory, 'directory')}")
    path = directory / layout.CONFIG
    node = read_config(path)[1].get("access") if path.is_file() else None
    if node is None:
        return None
    if errors := declaration_errors(node):
        raise InputError("\n".join(f"{path}: {one}" for one in errors))
    return Declared.model_validate(node)


def _check_texts(entries: Sequence[Entry]) -> None:
    first = entries[0]
    for entry in entries:
        if entry.texts != first.texts:
            raise InputError(
                f"columns=access: {entry.results.directory} was tested on other texts than {first.results.directory}; "
                "all cells of a table are of one test set"
            )


def _cell(one: Compared, declared: Declared) -> AccessCell:
    metrics = one.entry.results.metrics
    seconds, texts = number(metrics, "seconds"), number(metrics, "examples")
    return AccessCell(
        attack=declared.attack,
        has=declared.has,
        defense=one.entry.defense,
        presumes=declared.presumes,
        values={key: one.values.get(key, MetricValue(None)) for key in METRICS},
        queries=number(metrics, "queries_per_target"),
        seconds=seconds / texts if seconds is not None and texts else None,
        source=str(one.entry.results.directory),
    )


def _facts(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    processors = dict.fromkeys(name for entry in entries if (name := _processor(entry.results.directory)))
    named = {
        "embedder": ", ".join(dict.fromkeys(entry.embedder for entry in entries)),
        "test texts": f"{len(entries[0].results.recovered):,}",
        "processor": ", ".join(processors),
    }
    return [(name, value) for name, value in named.items() if value]


def _processor(directory: Path) -> str | None:
    path = directory / layout.RECORD
    record: dict[str, Any] = read_json(path) if path.is_file() else {}
    processor = record.get("processor")
    return str(processor["name"]) if isinstance(processor, dict) and "name" in processor else None
