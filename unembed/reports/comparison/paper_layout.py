"""The layout of a paper's table: which run belongs in which cell, and the paper's value there.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from unembed.core.errors import InputError, did_you_mean, missing

TRAINED = "trained."  # before a condition on the training of an evaluated run
OF_THE_VALUE = ("metric", "file", "table", "select", "mean")  # keys of a row or column that are no conditions


@dataclass(frozen=True, slots=True)
class Place:
    """A cell: the conditions on its runs, where its value stands in their files, and the paper's value.

    Attributes:
        row: Label of the row.
        column: Label of the column.
        conditions: Allowed values by group or dotted key.
        metric: A key of metrics.json, or of the selected element of ``file``; dots lead into inner objects.
        file: Name of the file that holds the value; None for metrics.json.
        table: Key of the list in ``file``; None if the file is one object.
        select: Values of the element of that list, by dotted key.
        mean: Whether the cell is the mean over its runs, instead of the value of one.
        paper: The paper's value; None if it gives none.
    """

    row: str
    column: str
    conditions: Mapping[str, tuple[Any, ...]]
    metric: str
    file: str | None
    table: str | None
    select: Mapping[str, Any]
    mean: bool
    paper: float | None


class _Value(BaseModel):
    """The keys of a row or column that say where its value stands."""

    metric: str = ""
    file: str | None = None
    table: str | None = None
    select: dict[str, Any] = {}
    mean: bool = False


class Layout(BaseModel):
    """A layout file."""

    model_config = ConfigDict(extra="forbid")

    title: str
    source: str
    rows: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    columns: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    paper: dict[str, dict[str, FiniteFloat]] = {}
    notes: list[str] = []

    @model_validator(mode="after")
    def _paper_fits(self) -> Layout:
        for row, values in self.paper.items():
            if row not in self.rows:
                raise ValueError(f"paper: {row!r} is no row, {did_you_mean(row, self.rows)}")
            for column in values:
                if column not in self.columns:
                    raise ValueError(f"paper.{row}: {column!r} is no column, {did_you_mean(column, self.columns)}")
        return self

    @model_validator(mode="after")
    def _values_are_found(self) -> Layout:
        for kind, parts in (("rows", self.rows), ("columns", self.columns)):
            for label, part in parts.items():
                try:
                    _Value.model_validate({key: value for key, value in part.items() if key in OF_THE_VALUE})
                except ValidationError as error:
                    first = error.errors()[0]
                    raise ValueError(f"{kind}.{label}.{first['loc'][0]}: {first['msg']}") from error
        return self

    @model_validator(mode="after")
    def _one_metric_a_cell(self) -> Layout:
        for place in self.places():
            if not place.metric:
                raise ValueError(f"row {place.row!r}, column {place.column!r}: neither names a metric")
        return self

    def places(self) -> Iterator[Place]:
        """The cells, row by row; what a column says wins over its row."""
        for row, of_row in self.rows.items():
            for column, of_column in self.columns.items():
                both = {**of_row, **of_column}
                conditions = {
                    key: tuple(value) if isinstance(value, list) else (value,)
                    for key, value in both.items()
                    if key not in OF_THE_VALUE
                }
                yield Place(
                    row,
                    column,
                    conditions,
                    metric=str(both.get("metric", "")),
                    file=both.get("file"),
                    table=both.get("table"),
                    select=both.get("select", {}),
                    mean=bool(both.get("mean", False)),
                    paper=self.paper.get(row, {}).get(column),
                )


def read_layout(name: str, folder: Path) -> Layout:
    """Read a layout: a paper's table by its name, ``geia_table3``, or a .yaml file of one's own.

    Args:
        name: The layout.
        folder: The papers' files.

    Raises:
        InputError: There is none of that name; or the file is not YAML, or has a key or value that a layout has not.
    """
    if name.endswith(".yaml"):
        if not Path(name).is_file():
            raise InputError(f"layout={name}: {missing(Path(name))}")
        return _checked(_content(Path(name)), name)
    paper, _, table = name.partition("_")
    path = folder / f"{paper}.yaml"
    tables = _content(path) if path.is_file() else {}
    if table not in tables:
        known = [f"{path.stem}_{table}" for path in sorted(folder.glob("*.yaml")) for table in _content(path)]
        raise InputError(f"layout={name}: no such layout, {did_you_mean(name, known)}; or name a .yaml file")
    return _checked(tables[table], name)


def _content(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})") from error


def _checked(content: Any, where: str) -> Layout:
    try:
        return Layout.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        hint = f", {did_you_mean(key, Layout.model_fields)}" if first["type"] == "extra_forbidden" else ""
        said = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}: {key}: {said}{hint}" if key else f"{where}: {said}") from error
