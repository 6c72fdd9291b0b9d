"""Finished runs in the layout of a paper's table, with the paper's values below ours.

    unembed compare layout=geia_table3 runs/geia_table3/*        # table3 of configs/layout/geia.yaml

A file of configs/layout holds a paper's tables by their names; one of your own holds one table:

    title: "GEIA, table 3: named entities and stop words"
    source: "Li et al. 2023, section 4.3"
    rows:                                  # label: what the runs of this row have
      SRoBERTa: {embedder: sroberta}
    columns:                               # the same; a row or a column also names the metric
      GEIA, NERR: {attack: geia_gpt2_medium, metric: entity_recovery}
    paper:
      SRoBERTa: {"GEIA, NERR": 33.2}
    notes: ["..."]

A condition is a group and the chosen option (``embedder``), or a dotted key of config.yaml and its value
(``attack.decoding.beams``); a list allows several. ``trained.`` before it means the run's training, which matters for
an evaluation on other data. A metric is a key of metrics.json. A value of another file of the run is found by ``file``,
the list in it (``table``), and the values that the list's element has (``select``):

    Step 50: {file: corrections.json, table: table, select: {step: 50, beams: 8}, metric: bleu_sentence}

``mean: true`` takes the mean over all runs that belong in the cell, such as over the data sets of a benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError, did_you_mean, missing
from unembed.reports.comparison.entries import grouped, origin_config, read_entries, setting_and_texts
from unembed.reports.comparison.measuring import Compared, MetricValue, compare
from unembed.reports.comparison.tables import metric_cell
from unembed.reports.numbers import DASH, number, shown
from unembed.reports.output import Cell, Line, Table, paragraphs
from unembed.reports.results import chosen, measure
from unembed.runs import layout as files
from unembed.runs.files import read_config

TRAINED = "trained."  # before a condition on the training of an evaluated run
ABSENT = object()
TRADE_OFF = "tradeoff.json"  # a sweep of defenses has no metrics.json of its own


class Source(BaseModel):
    """Where the value of a cell stands in the files of its runs.

    Attributes:
        metric: A key of metrics.json, or of the selected element of ``file``; dots lead into inner objects.
        file: Name of the file that holds the value; None for metrics.json.
        table: Key of the list in ``file``; None if the file is one object.
        select: Values of the element of that list, by dotted key.
        mean: Whether the cell is the mean over its runs, instead of the value of one.
    """

    metric: str = ""
    file: str | None = None
    table: str | None = None
    select: dict[str, Any] = {}
    mean: bool = False


class Part(Source, extra="allow"):
    """A row or a column: what it says of the source, and conditions under other keys."""


class Place(NamedTuple):
    """A cell: the allowed values by group or dotted key, the source of its value, and the paper's value."""

    row: str
    column: str
    conditions: Mapping[str, Sequence[Any]]
    source: Source
    paper: float | None


class Layout(BaseModel):
    """A layout file."""

    model_config = ConfigDict(extra="forbid")

    title: str
    source: str
    rows: Annotated[dict[str, Part], Field(min_length=1)]
    columns: Annotated[dict[str, Part], Field(min_length=1)]
    paper: dict[str, dict[str, FiniteFloat]] = {}
    notes: list[str] = []

    @model_validator(mode="after")
    def _fits(self) -> Layout:
        for row, values in self.paper.items():
            if row not in self.rows:
                raise ValueError(f"paper: {row!r} is no row, {did_you_mean(row, self.rows)}")
            for column in values:
                if column not in self.columns:
                    raise ValueError(f"paper.{row}: {column!r} is no column, {did_you_mean(column, self.columns)}")
        for place in self.places():
            if not place.source.metric:
                raise ValueError(f"row {place.row!r}, column {place.column!r}: neither names a metric")
        return self

    def places(self) -> Iterator[Place]:
        """The cells, row by row; what a column says wins over its row."""
        for row, of_row in self.rows.items():
            for column, of_column in self.columns.items():
                both = of_row.model_dump(exclude_unset=True) | of_column.model_dump(exclude_unset=True)
                conditions = {
                    key: value if isinstance(value, list) else [value]
                    for key, value in both.items()
                    if key not in Source.model_fields
                }
                paper = self.paper.get(row, {}).get(column)
                yield Place(row, column, conditions, Source.model_validate(both), paper)


def read_layout(name: str, folder: Path) -> Layout:
    """Read a layout: a paper's table by its name, ``geia_table3``, from the papers' folder, or a .yaml file of one's
    own.
    """
    if name.endswith(".yaml"):
        if not Path(name).is_file():
            raise InputError(f"layout={name}: {missing(Path(name))}")
        content = _yaml(Path(name))
    else:
        paper, _, table = name.partition("_")
        path = folder / f"{paper}.yaml"
        tables = _yaml(path) if path.is_file() else {}
        if table not in tables:
            known = [f"{path.stem}_{table}" for path in sorted(folder.glob("*.yaml")) for table in _yaml(path)]
            raise InputError(f"layout={name}: no such layout, {did_you_mean(name, known)}; or name a .yaml file")
        content = tables[table]
    try:
        return Layout.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        hint = f", {did_you_mean(key, Layout.model_fields)}" if first["type"] == "extra_forbidden" else ""
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{name}: {key}: {message}{hint}" if key else f"{name}: {message}") from error


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})") from error


@dataclass(frozen=True)
class Directory:
    """A run, an evaluation, or a sweep of defenses, which has no metrics of its own to compare."""

    path: Path
    config: dict[str, Any]
    compared: Compared | None

    @cached_property
    def trained(self) -> dict[str, Any]:
        """The configuration of the training."""
        return origin_config(self.path, self.config) or {}

    def has(self, conditions: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the configuration has one of the allowed values everywhere."""
        return all(self._has(key, allowed) for key, allowed in conditions.items())

    def _has(self, key: str, allowed: Sequence[Any]) -> bool:
        config = self.trained if key.startswith(TRAINED) else self.config
        own = value_at(config, key.removeprefix(TRAINED))
        return any(own == value or (value is not None and _same(str(own), str(value))) for value in allowed)

    def value(self, source: Source) -> MetricValue:
        """The value of a cell; its value is None if the files lack it."""
        if source.file is not None:
            path = self.path / source.file
            content: Any = read_json(path) if path.is_file() else {}
            if source.table is not None:
                rows = value_at(content, source.table)
                wanted = source.select.items()
                listed = rows if isinstance(rows, list) else []
                content = next((row for row in listed if all(value_at(row, key) == one for key, one in wanted)), {})
            value = value_at(content, source.metric)
            return MetricValue(number({"value": value}, "value"))
        if self.compared is None:
            return MetricValue(None)
        known = self.compared.values.get(source.metric)
        return MetricValue(number(self.compared.entry.results.metrics, source.metric)) if known is None else known


def _same(own: str, wanted: str) -> bool:
    """Whether the texts are equal, or name a path that a run has made absolute."""
    return own == wanted or (Path(own).is_absolute() and "/" in wanted and own.endswith(f"/{wanted}"))


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
    """Read runs, evaluations and sweeps of defenses, with the metrics that the layout shows."""
    sweeps = [path for path in paths if (path / TRADE_OFF).is_file()]
    runs = [path for path in paths if path not in sweeps]
    entries = read_entries(runs) if runs else []
    present = {key for entry in entries for key in entry.results.metrics}
    metrics = dict.fromkeys(place.source.metric for place in layout.places() if place.source.file is None)
    compared = compare(entries, [key for key in metrics if key in present], resamples, seed) if entries else []
    return [Directory(one.entry.results.directory, one.entry.results.config, one) for one in compared] + [
        Directory(path, read_config(path / files.CONFIG)[1], None) for path in sweeps
    ]


def paper_table(layout: Layout, directories: Sequence[Directory]) -> Table:
    """The table; a dash where no run belongs, and below each value the paper's."""
    used: set[Path] = set()
    cells: dict[str, list[Cell]] = {row: [] for row in layout.rows}
    empty = 0
    for place in layout.places():
        fitting = [one for one in directories if one.has(place.conditions)]
        used.update(one.path for one in fitting)
        cells[place.row].append(_cell(place, fitting))
        empty += not fitting
    if not used:
        raise InputError(_nothing_fits(layout, directories[0]))
    unused = [str(one.path) for one in directories if one.path not in used]
    notes = paragraphs("paper_notes", layout=layout, empty=empty, unused=unused)
    lines = [Line(row, "", own) for row, own in cells.items()]
    return Table(layout.title, ("", *layout.columns), lines, notes=notes)


def _cell(place: Place, fitting: Sequence[Directory]) -> Cell:
    # The metric whose unit the value has: bleu, for ranks.bleu, bleu.mean and bleu/de.
    parts = [part.partition("/")[0] for part in place.source.metric.split(".")]
    metric = next((part for part in reversed(parts) if measure(part).explanation), parts[-1])
    values = [one.value(place.source) for one in fitting]
    if place.source.mean:
        known = [one.value for one in values if one.value is not None]
        mean = f"mean of {len(known)}"
        cell = Cell(shown(measure(metric).kind, sum(known) / len(known)), (mean,)) if known else Cell(DASH)
    else:
        entries = [one.compared.entry for one in fitting if one.compared is not None]
        settings = grouped(entries, setting_and_texts, lambda entry: entry.seeds)
        if len(fitting) > 1 and (len(entries) < len(fitting) or len(settings) > 1):
            raise InputError(
                f"layout: row {place.row!r}, column {place.column!r}: {fitting[0].path} and {fitting[1].path} both "
                "belong there, and differ in more than the seed; leave one of them out"
            )
        cell = metric_cell(metric, values)
    if place.paper is None:
        return cell
    return Cell(cell.text, (*cell.below, f"paper {shown(measure(metric).kind, place.paper)}"))


def _nothing_fits(layout: Layout, one: Directory) -> str:
    conditions = next(layout.places()).conditions
    wanted = ", ".join(f"{key}={'|'.join(map(str, allowed))}" for key, allowed in conditions.items())
    own = {key: value_at(one.config, key) for key in conditions if not key.startswith(TRAINED)}
    has = ", ".join(f"{key}={'nothing' if value is ABSENT else value}" for key, value in own.items())
    return f"layout: no run belongs in the table; its first cell needs {wanted}, and {one.path} has {has}"
