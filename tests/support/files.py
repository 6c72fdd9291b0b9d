"""JSON and JSON lines, written and read: texts for a data module, and what a run leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unembed.runs import layout


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write JSON lines; folders that are missing are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, which ends with a line break."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def load(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def metrics_of(run: Path, name: str = layout.METRICS) -> dict[str, Any]:
    """metrics.json without the seconds, which differ from run to run."""
    return {key: value for key, value in load(run / name).items() if key != "seconds"}


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The lines of predictions.jsonl."""
    return read_lines(run / layout.PREDICTIONS)


def predictions_of(run: Path) -> list[str]:
    """The texts of predictions.jsonl."""
    return [row["prediction"] for row in rows_of(run)]
