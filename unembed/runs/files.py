"""Read and validate the files of a run; errors name the file, the line and the field.

read_rows(run / "predictions.jsonl")     # list[Row]
training_of(run)                         # how it was trained, of record.json
data_of(run)                             # the files of texts that it read, of data.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from unembed.core import limits
from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError
from unembed.runs.layout import DATA, RECORD

Content = TypeVar("Content")
Line = TypeVar("Line", bound=BaseModel)


class Searched(BaseModel):
    """The search record of a language model's input; see unembed.attacks.parts.predictions.SearchRecord."""

    verified: bool
    passes: int


class Row(BaseModel):
    """A line of predictions.jsonl; ``spans`` are (start, end, label) in characters of the reference. ``given`` is the
    start of a baseline without vectors. Token ids are set if a language model's input was attacked. ``unseen`` and
    ``in_lexicon`` are of each span (see unembed.metrics.scored.Scored)."""

    index: int
    reference: str
    prediction: str
    kind: Literal["sequence", "set"]
    spans: list[tuple[int, int, str]] = []
    cosine: float | None = None
    language: str | None = None
    attributes: dict[str, str] = {}
    given: str | None = None
    reference_tokens: tuple[int, ...] | None = None
    prediction_tokens: tuple[int, ...] | None = None
    search: Searched | None = None
    unseen: list[bool] | None = None
    in_lexicon: list[bool] | None = None

    @model_validator(mode="after")
    def _of_each_span(self) -> Row:
        for known in (self.unseen, self.in_lexicon):
            if known is not None and len(known) != len(self.spans):
                raise ValueError(f"{len(known)} values of unseen or in_lexicon for {len(self.spans)} spans")
        return self


def read_config(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a configuration and its values, interpolations unresolved."""
    try:
        content = limits.text(path, limits.LARGEST_CONFIG)
        config = yaml.safe_load(content)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected keys and values, found {type(config).__name__}")
    return content, config


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        return read_json(path)
    except FileNotFoundError as error:
        raise _missing(path) from error


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """The JSON objects of a file with one per line; blank lines are skipped."""
    adapter, read = TypeAdapter(kind), []
    try:
        for number, line in limits.lines(path):
            if line.strip():
                where = f"{path}:{number}"
                try:
                    read.append(validated(adapter, json.loads(line.decode()), where, "the line"))
                except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or deeply nested lists
                    raise InputError(f"{where}: not JSON that can be read: {error}") from error
    except FileNotFoundError as error:
        raise _missing(path) from error
    return read


def read_rows(path: Path) -> list[Row]:
    """The lines of predictions.jsonl; at least one."""
    rows = read_lines(path, Row)
    if not rows:
        raise InputError(f"{path}: holds no prediction")
    return rows


def validated(kind: TypeAdapter[Content], value: Any, where: Path | str, whole: str = "") -> Content:
    """Validate ``value`` as ``kind``."""
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or whole
        raise InputError(": ".join(part for part in (str(where), field, first["msg"]) if part)) from error


def _missing(path: Path) -> InputError:
    return InputError(f"{path}: missing; is {path.parent} the directory of a finished run?")


# -- record.json and data.json ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of texts as it was read."""

    path: str
    bytes: int
    sha256: str


def training_of(directory: Path) -> dict[str, Any] | None:
    """The ``training`` entry of record.json, such as steps and planned steps; None if there is none."""
    found = _record(directory).get("training")
    return found if isinstance(found, dict) else None


def undertrained(training: Mapping[str, Any]) -> str | None:
    """A warning that ``trainer.max_time`` ended ``training`` (of record.json) before the planned steps, or None."""
    steps, planned = training.get("steps"), training.get("planned_steps")
    if training.get("cut_short") is not True or not isinstance(steps, int) or not isinstance(planned, int):
        return None
    return (
        f"CUT SHORT: the training stopped at {steps:,} of {planned:,} steps, since trainer.max_time was reached: "
        "the metrics are those of an undertrained attack. Train again with a longer trainer.max_time, or without one "
        "(trainer.max_time=null)."
    )


def tested_weights(directory: Path) -> str | None:
    """The ``file_key`` of the checkpoint that an evaluation tested; None if record.json does not say."""
    found = _record(directory).get("checkpoint")
    return found if isinstance(found, str) else None


def data_of(directory: Path) -> list[DataFile] | None:
    """The files that a run was trained on or an evaluation tested on; None if they were not recorded."""
    path = directory / DATA
    return validated(TypeAdapter(list[DataFile]), read_json(path).get("files"), path) if path.is_file() else None


def absent_data(directory: Path) -> list[str]:
    """The names of the files that an exported run was trained on, whose directories it does not say."""
    return [file.path for file in data_of(directory) or () if not Path(file.path).is_absolute()]


def _record(directory: Path) -> dict[str, Any]:
    return read_json(directory / RECORD) if (directory / RECORD).is_file() else {}
