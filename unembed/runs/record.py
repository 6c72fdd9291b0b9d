"""Reading a run's record of its training (``record.json``) and of its data files (``data.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError
from unembed.runs.layout import DATA, RECORD


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of texts as it was read."""

    path: str
    bytes: int
    sha256: str


_FILES = TypeAdapter(list[DataFile])


def training_of(directory: Path) -> dict[str, Any] | None:
    """The ``training`` entry of record.json, such as steps and planned steps; None if there is none."""
    record = directory / RECORD
    found = read_json(record).get("training") if record.is_file() else None
    return found if isinstance(found, dict) else None


def undertrained(training: Mapping[str, Any]) -> str | None:
    """A warning that ``trainer.max_time`` ended training before the planned steps; else None.

    Args:
        training: ``training`` of record.json.
    """
    steps, planned = training.get("steps"), training.get("planned_steps")
    if training.get("cut_short") is not True or not isinstance(steps, int) or not isinstance(planned, int):
        return None
    return (
        f"CUT SHORT: the training stopped at {steps:,} of {planned:,} steps, since trainer.max_time was reached: "
        "the metrics are those of an undertrained attack. Train again with a longer trainer.max_time, or without one "
        "(trainer.max_time=null)."
    )


def tested_weights(directory: Path) -> str | None:
    """The ``keys.file_key`` of the checkpoint that an evaluation tested; None if record.json does not say."""
    record = directory / RECORD
    found = read_json(record).get("checkpoint") if record.is_file() else None
    return found if isinstance(found, str) else None


def data_of(directory: Path) -> list[DataFile] | None:
    """The files that a run was trained on or an evaluation tested on; None if they were not recorded.

    Raises:
        InputError: data.json has another form.
    """
    path = directory / DATA
    if not path.is_file():
        return None
    try:
        return _FILES.validate_python(read_json(path).get("files"))
    except ValidationError as error:
        raise InputError(f"{path}: not the files that a run has read") from error


def absent_data(directory: Path) -> list[str]:
    """The names of the files that an exported run was trained on, whose directories it does not say."""
    return [file.path for file in data_of(directory) or () if not Path(file.path).is_absolute()]
