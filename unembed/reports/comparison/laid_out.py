"""Finished runs in the layout of a paper's table, with the paper's values below ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError
from unembed.reports.comparison.entries import origin_config, read_entries
from unembed.reports.comparison.measuring import Compared, MetricValue, compare
from unembed.reports.comparison.paper_layout import TRAINED, Layout, Place
from unembed.reports.comparison.seeds import grouped, spread
from unembed.reports.comparison.table import spread_cell, value_cell
from unembed.reports.numbers import DASH, number, shown
from unembed.reports.results import chosen
from unembed.reports.tables import Cell, Line, Table
from unembed.reports.wording import measure
from unembed.runs import layout as files
from unembed.runs.files import read_config

ABSENT = object()
TRADE_OFF = "tradeoff.json"  # a sweep of defenses has no metrics.json of its own
SHOWN = 8  # of the directories that no cell takes


@dataclass(frozen=True)
class Directory:
    """A run, an evaluation, or a sweep of defenses.

    Attributes:
        path: The directory.
        config: Its config.yaml.
        compared: Its metrics with intervals; None for a sweep of defenses.
    """

    path: Path
    config: Mapping[str, Any]
    compared: Compared | None

    @cached_property
    def trained(self) -> Mapping[str, Any]:
        """The configuration of the training."""
        return origin_config(self.path, dict(self.config)) or {}

    def has(self, conditions: Mapping[str, tuple[Any, ...]]) -> bool:
        """Whether the configuration has one of the allowed values everywhere."""
        return all(self._has(key, allowed) for key, allowed in conditions.items())

    def _has(self, key: str, allowed: tuple[Any, ...]) -> bool:
        config = self.trained if key.startswith(TRAINED) else self.config
        found = value_at(config, key.removeprefix(TRAINED))
        return any(found == value or (value is not None and _same(str(found), str(value))) for value in allowed)

    def value(self, place: Place) -> MetricValue:
        """The value of a cell; its value is None if the files lack it."""
        if place.file is not None:
            path = self.path / place.file
            content = read_json(path) if path.is_file() else {}
            if place.table is not None:
                rows = value_at(content, place.table)
                listed = rows if isinstance(rows, list) else []
                fitting = (row for row in listed if isinstance(row, dict) and _selected(row, place.select))
                content = next(fitting, {})
            inner, _, leaf = place.metric.rpartition(".")
            holder = value_at(content, inner) if inner else content
            return MetricValue(number(holder, leaf) if isinstance(holder, dict) else None)
        if self.compared is None:
            return MetricValue(None)
        known = self.compared.values.get(place.metric)
        return MetricValue(number(self.compared.entry.results.metrics, place.metric)) if known is None else known


def _same(found: str, wanted: str) -> bool:
    """Whether the texts are equal, or name a path that a run has made absolute."""
    return found == wanted or (Path(found).is_absolute() and "/" in wanted and found.endswith(f"/{wanted}"))


def value_at(config: Any, key: str) -> Any:
    """The option of a group, or the value at a dotted key; ``ABSENT`` if there is none."""
    if "." not in key and isinstance(config, dict) and (option := chosen(config, key)) is not None:
        return option
    for part in key.split("."):
        if isinstance(config, list) and part.isdigit() and int(part) < len(config):
            config = config[int(part)]
        elif isinstance(config, dict) and part in config:
            config = config[part]
        else:
            return ABSENT
    return config


def read_directories(paths: Sequence[Path], layout: Layout, resamples: int, seed: int) -> list[Directory]:
    """Read runs, evaluations and sweeps of defenses, with the metrics that the layout shows.

    Raises:
        InputError: One is missing, not finished or damaged.
    """
    sweeps = [path for path in paths if (path / TRADE_OFF).is_file()]
    runs = [path for path in paths if path not in sweeps]
    entries = read_entries(runs) if runs else []
    present = {key for entry in entries for key in entry.results.metrics}
    metrics = dict.fromkeys(place.metric for place in layout.places() if place.file is None)
    compared = compare(entries, [key for key in metrics if key in present], resamples, seed) if entries else []
    return [Directory(one.entry.results.directory, one.entry.results.config, one) for one in compared] + [
        Directory(path, read_config(path / files.CONFIG)[1], None) for path in sweeps
    ]


def paper_table(layout: Layout, directories: Sequence[Directory]) -> Table:
    """The table; a dash where no run belongs, and below each value the paper's.

    Raises:
        InputError: Two runs that are not seeds of one setting belong in one cell, or no run belongs anywhere.
    """
    used: set[Path] = set()
    lines: dict[str, list[Cell]] = {row: [] for row in layout.rows}
    empty = 0
    for place in layout.places():
        found = [one for one in directories if one.has(place.conditions)]
        used.update(one.path for one in found)
        lines[place.row].append(_cell(place, found))
        empty += not found
    if not used:
        raise InputError(_nothing_fits(layout, directories))
    return Table(
        layout.title,
        ("", *layout.columns),
        tuple(Line(row, "", tuple(cells)) for row, cells in lines.items()),
        notes=(
            f"{layout.source}. Below a value, its 95 % interval over the test texts, or ± the standard deviation over "
            "seeds; then the paper's value.",
            *layout.notes,
            *([f"{empty} cells have no run among those given."] if empty else []),
            *_left_over(directories, used),
        ),
    )


def _selected(row: dict[str, Any], select: Mapping[str, Any]) -> bool:
    return all(value_at(row, key) == value for key, value in select.items())


def _cell(place: Place, found: Sequence[Directory]) -> Cell:
    name = _of_metric(place.metric)
    if place.mean:
        values = [one.value(place).value for one in found]
        known = [value for value in values if value is not None]
        cell = Cell(DASH) if not known else _mean_cell(name, known)
    elif len(found) > 1:
        entries = [one.compared.entry for one in found if one.compared is not None]
        if len(entries) < len(found) or len(grouped(entries)) > 1:
            raise InputError(
                f"layout: row {place.row!r}, column {place.column!r}: {found[0].path} and {found[1].path} both belong "
                "there, and differ in more than the seed; leave one of them out"
            )
        cell = spread_cell(name, spread([one.value(place).value for one in found]))
    else:
        cell = value_cell(name, found[0].value(place)) if found else Cell(DASH)
    if place.paper is None:
        return cell
    return Cell(cell.text, (*cell.below, f"paper {shown(measure(name).kind, place.paper)}"))


def _mean_cell(name: str, values: Sequence[float]) -> Cell:
    return Cell(shown(measure(name).kind, sum(values) / len(values)), (f"mean of {len(values)}",))


def _of_metric(key: str) -> str:
    """The metric whose unit a value has: bleu, for ranks.bleu, bleu.mean and bleu/de."""
    parts = [part.partition("/")[0] for part in key.split(".")]
    return next((part for part in reversed(parts) if measure(part).explanation), parts[-1])


def _nothing_fits(layout: Layout, directories: Sequence[Directory]) -> str:
    place = next(layout.places())
    wanted = ", ".join(f"{key}={'|'.join(map(str, allowed))}" for key, allowed in place.conditions.items())
    one = directories[0]
    keys = [key for key in place.conditions if not key.startswith(TRAINED)]
    has = ", ".join(f"{key}={_written(value_at(one.config, key))}" for key in keys)
    return f"layout: no run belongs in the table; its first cell needs {wanted}, and {one.path} has {has}"


def _written(value: Any) -> str:
    return "nothing" if value is ABSENT else str(value)


def _left_over(directories: Sequence[Directory], used: set[Path]) -> list[str]:
    over = [str(one.path) for one in directories if one.path not in used]
    more = f" and {len(over) - SHOWN} more" if len(over) > SHOWN else ""
    return [f"In no cell: {', '.join(over[:SHOWN])}{more}."] if over else []
