"""results/ holds measurements in one schema, which its README writes down."""

from __future__ import annotations

import csv
import datetime
import re
from pathlib import Path
from typing import get_args

import pytest

from support.pages import ROOT, read
from unembed.metrics.scored import Unit
from unembed.reports.results import measure

README = read(ROOT / "results" / "README.md")
FILES = sorted((ROOT / "results").glob("*.csv"))


def cells(heading: str) -> list[list[str]]:
    """The lines of the README's table with this heading."""
    table = README.split(f"| {heading} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


COLUMNS = [name for column, _ in cells("column") for name in re.findall(r"`(\w+)`", column)]
OTHERS = {name: unit for names, unit, _ in cells("other metrics") for name in re.findall(r"`(\w+)`", names)}


def unit_of(metric: str) -> str:
    """Its unit; the metric of a language (bleu/de) has that of the metric."""
    described = [measure(key) for key in (metric, metric.split("/")[0])]
    return next((one.kind for one in described if one.explanation), OTHERS.get(metric, f"unknown metric {metric}"))


def faults(row: dict[str, str]) -> list[str]:
    """The columns of a line that do not follow the schema."""
    value, low, high = (float(row[name]) if row[name] else None for name in ("value", "low", "high"))
    ordered = low is None and high is None if None in (low, high) else low <= value <= high
    holds = {
        "table": row["table"],
        "row": row["row"],
        "value": value is not None and (row["unit"] != "percent" or 0 <= value <= 100),
        "low": ordered,
        "unit": row["unit"] == unit_of(row["metric"]) and row["unit"] in get_args(Unit),
        "texts": re.fullmatch(r"\d*", row["texts"]),
        "date": datetime.date.fromisoformat(row["date"]),
        "processor": row["processor"],
        "commit": re.fullmatch(r"[0-9a-f]{7,40}", row["commit"]),
        "command": row["command"] or row["note"],
    }
    return [name for name, good in holds.items() if not good]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_line_follows_the_schema(path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    assert reader.fieldnames == COLUMNS
    assert {number: wrong for number, row in enumerate(rows, 2) if (wrong := faults(row))} == {}
    assert len({(row["table"], row["row"], row["metric"]) for row in rows}) == len(rows) > 0
    assert f"({path.name})" in README


def test_a_wrong_line_is_found() -> None:
    with FILES[0].open(encoding="utf-8", newline="") as file:
        good = next(csv.DictReader(file))
    assert faults(good) == []
    for column, wrong in (("metric", "bleuu"), ("unit", "count"), ("low", "101"), ("commit", "main"), ("texts", "2k")):
        assert faults(good | {column: wrong})
    with pytest.raises(ValueError, match="Invalid isoformat"):
        faults(good | {"date": "last week"})
