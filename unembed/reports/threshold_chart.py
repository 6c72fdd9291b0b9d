"""Precision against recall of a classifier, from the file that attack=bag_of_words writes to its artifacts.

artifacts/threshold.json   {"threshold": 0.2, "curve": [{"threshold": 0.05, "precision": 0.3, "recall": 0.6, ...}]}
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from unembed.reports import charts
from unembed.runs import layout
from unembed.runs.files import read_object, validated

FILE = "threshold.json"


class Threshold(BaseModel):
    """Scores at one threshold on the validation text; 0 to 1, precision None if no word is predicted."""

    threshold: float
    precision: float | None
    recall: float
    f1: float


class Thresholds(BaseModel):
    """The chosen threshold, and the scores at all thresholds."""

    threshold: float
    curve: list[Threshold]


def threshold_charts(run_dir: Path) -> list[charts.Chart]:
    """The chart of the section; empty if the run has no threshold.

    Raises:
        InputError: The file is invalid.
    """
    path = run_dir / layout.ARTIFACTS / FILE
    if not path.exists():
        return []
    found = validated(TypeAdapter(Thresholds), read_object(path), path)
    points = [
        (point, 100 * point.recall, 100 * point.precision) for point in found.curve if point.precision is not None
    ]
    best = next(((point, x, y) for point, x, y in points if point.threshold == found.threshold), None)
    if best is None:
        return []
    chart = charts.trade_off(
        "Precision against recall, a dot a threshold", [(x, y) for _, x, y in points], best[1:], "recall", "precision"
    )
    note = (
        f"Distinct words of the validation text, in percent. Thresholds from {points[0][0].threshold:g}, right, to "
        f"{points[-1][0].threshold:g}, left; the large dot is the chosen one, {found.threshold:g}, with the best F1: "
        f"{100 * best[0].f1:.1f}."
    )
    return [("Precision and recall", chart, note)]
