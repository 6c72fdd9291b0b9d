"""Rows of others: predictions for the same test texts, which are scored here as those of a run are.

    {"version": 1, "attack": "my attack", "source": "A. Author, https://...", "texts": "5f0c...",
     "cells": [{"has": "pairs_100", "presumes": "100 texts of the store, and ...", "predictions": "mine_100.jsonl"}]}

Each line of the predictions is ``{"index": 3, "prediction": "i have two dogs"}``; the other keys of a run's
predictions.jsonl are passed over, except ``reference``, which must be the table's text. Metrics are computed here and
never read from the file. docs/access-1.schema.json is made from ``RowFile``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from unembed.core.errors import InputError, did_you_mean
from unembed.metrics.base import Measured
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import metric_of
from unembed.metrics.statistics import resampled_sums
from unembed.reports.access.cells import METRICS, AccessCell, Found, check_once
from unembed.reports.access.columns import KNOWN
from unembed.reports.access.declared import Sentence, Title, said
from unembed.reports.comparison.measuring import MetricValue
from unembed.reports.files import numbered_lines, read_text
from unembed.reports.results import Row

VERSION = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SubmittedCell(_Strict):
    """A cell: the column, what the attack presumes, and the file of predictions, relative to the row's file."""

    has: Annotated[str, Field(json_schema_extra={"enum": [*KNOWN.columns]})]
    presumes: Sentence
    predictions: Annotated[str, Field(min_length=1)]
    defense: Title = "none"
    queries: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class RowFile(_Strict):
    """A row: the attack, who made it and where it is described, the hash of the test texts, and its cells."""

    version: Literal[1]
    attack: Title
    source: Sentence
    texts: str
    cells: Annotated[list[SubmittedCell], Field(min_length=1)]


class Line(BaseModel):
    """A line of predictions; a ``set`` has words in no order."""

    index: int
    prediction: str
    kind: Literal["sequence", "set"] = "sequence"
    reference: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in Row.model_fields:  # of a run's predictions.jsonl
                message = f"unknown key {key}, {did_you_mean(key, cls.model_fields)}"
                raise PydanticCustomError("unknown_key", "{message}", {"message": message})
        return values


def published() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a row's file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | RowFile.model_json_schema()


def read_row(path: Path, found: Found, resamples: int, seed: int) -> list[AccessCell]:
    """The cells of a row's file, scored on the table's texts.

    Raises:
        InputError: The file or its predictions are wrong; names the file, and the line or key.
    """
    row = _read(path)
    if errors := list(_errors(row, found)):
        raise InputError("\n".join(f"{path}: {one}" for one in errors))
    cells = []
    for cell in row.cells:
        scored = _scored(path.parent / cell.predictions, found)
        values = {key: _value(key, scored, resamples, seed) for key in METRICS}
        place = (row.attack, cell.has, cell.defense, cell.presumes)
        cells.append(AccessCell(*place, values, cell.queries, None, row.source, submitted=True))
    return cells


def with_rows(found: Found, paths: Sequence[Path], resamples: int, seed: int) -> list[AccessCell]:
    """The cells of the runs, then those of the submitted rows.

    Raises:
        InputError: See read_row; or a cell is there twice.
    """
    cells = [*found.cells, *(cell for path in paths for cell in read_row(path, found, resamples, seed))]
    check_once(cells)
    return cells


def _read(path: Path) -> RowFile:
    if not path.is_file():
        raise InputError(f"rows={path}: {_no_file(path)}")
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: a row is one JSON object, and this is a {type(content).__name__}")
    try:
        return TypeAdapter(RowFile).validate_python(content)
    except ValidationError as error:
        raise InputError("\n".join(f"{path}: {_message(one)}" for one in error.errors())) from error


def _message(error: Any) -> str:
    """A key of the file and what is wrong with it."""
    known = SubmittedCell if len(error["loc"]) > 1 else RowFile
    return said(error["loc"], error, known.model_fields)


def _errors(row: RowFile, found: Found) -> Iterator[str]:
    """Mistakes that the schema does not exclude: other texts, a defense's title for its option, a cell given twice."""
    if row.texts != found.texts:
        yield f"texts={row.texts}: predictions for another test set; that of this table is {found.texts}"
    options = {title: name for name, title in KNOWN.defenses.items() if title != name}
    places: dict[tuple[str, str], int] = {}
    for number, cell in enumerate(row.cells):
        if (wrong := KNOWN.check(cell.has)) is not None:
            yield f"cells.{number}.has={cell.has}: {wrong}"
        if cell.defense in options:
            yield f"cells.{number}.defense={cell.defense}: that is its title, write {options[cell.defense]}"
        if (first := places.setdefault((cell.has, cell.defense), number)) != number:
            yield f"cells.{number}: has={cell.has} with defense={cell.defense} is cells.{first}, too"


def _scored(path: Path, found: Found) -> list[Scored]:
    """Predictions beside the table's references, by index."""
    if not path.is_file():
        raise InputError(f"{path}: {_no_file(path)}; a cell names its predictions relative to the row's file")
    with path.open("rb") as file:
        if file.read(64).lstrip().startswith(b"["):
            raise InputError(f"{path}: a JSON list; write one object on each line, nothing around them")
    lines: dict[int, Line] = {}
    for number, line in numbered_lines(path, Line):
        if line.index not in found.rows:
            raise InputError(
                f"{path}:{number}: index {line.index} is no test text of this table, which has {min(found.rows)} to "
                f"{max(found.rows)}"
            )
        if line.reference not in (None, found.rows[line.index].reference):
            raise InputError(f"{path}:{number}: reference: not the test text {line.index} of this table")
        if lines.setdefault(line.index, line) is not line:
            raise InputError(f"{path}:{number}: index {line.index} is there twice")
    missing = sorted(found.rows.keys() - lines.keys())
    if missing:
        raise InputError(f"{path}: {len(missing)} test texts have no prediction, the first is index {missing[0]}")
    return [_one(found.rows[index], lines[index]) for index in sorted(lines)]


def _no_file(path: Path) -> str:
    return "a directory, and a file is needed" if path.is_dir() else "no such file"


def _one(row: Row, line: Line) -> Scored:
    replaced = {"prediction": line.prediction, "kind": line.kind, "cosine": None, "in_lexicon": None}
    return row.model_copy(update=replaced).scored


def _value(key: str, scored: Sequence[Scored], resamples: int, seed: int) -> MetricValue:
    metric = metric_of(key)
    assert metric is not None
    measured = Measured.of(metric, scored)
    if measured.value != measured.value:  # NaN: no text has an entity
        return MetricValue(None)
    resampled = metric.combine(resampled_sums(measured.parts, resamples, seed))
    return MetricValue(measured.value, measured.interval(resampled))
