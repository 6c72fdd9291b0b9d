"""Metrics of a sweep's points with intervals and their change from the undefended point, and a summary sentence.

Intervals are 95 % percentile intervals of a bootstrap over the attacked texts, or over the queries. All points share
their resamples, so the interval of a change is far narrower than those of the two values suggest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unembed.metrics.base import Measured
from unembed.metrics.retrieval import Ndcg
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import text_metrics
from unembed.metrics.statistics import Floats, Interval, interval, resampled_sums
from unembed.reports import numbers
from unembed.reports.numbers import shown, signed
from unembed.reports.tradeoff.sweep import Point

READ = ("bleu", "bleu_sentence", "rouge1", "rougeL", "token_f1", "token_set_f1", "exact_match", "cosine")
RETRIEVED = "ndcg_at_10"
LISTED = 4  # most defenses that the sentence names


@dataclass(frozen=True, slots=True)
class DefendedValue:
    """A metric under a defense; fields are None if undefined.

    Attributes:
        value: The metric itself.
        interval: Interval of the value.
        change: Value minus the undefended value; None for the undefended point itself.
        change_interval: Interval of the change.
    """

    value: float | None
    interval: Interval | None = None
    change: float | None = None
    change_interval: Interval | None = None

    @property
    def lower(self) -> bool:
        """Whether the whole interval of the change lies below zero."""
        return self.change_interval is not None and self.change_interval.high < 0

    @property
    def higher(self) -> bool:
        """Whether the whole interval of the change lies above zero."""
        return self.change_interval is not None and self.change_interval.low > 0

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        low, high = self.interval or (None, None)
        change_low, change_high = self.change_interval or (None, None)
        change = {"change": self.change, "change_low": change_low, "change_high": change_high}
        return {"value": self.value, "low": low, "high": high, **change}


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A point with its intervals: ``read`` by key of metrics.json, ``found`` NDCG@10 by name of the search."""

    point: Point
    read: Mapping[str, DefendedValue]
    found: Mapping[str, DefendedValue]


def with_intervals(
    points: Sequence[tuple[Point, Sequence[Mapping[str, Any]]]], resamples: int, seed: int = 0
) -> list[MeasuredPoint]:
    """Metrics with intervals of each point and its text rows; the first point is the undefended one."""
    metrics = [metric for metric in text_metrics() if metric.description.key in READ]
    read = [
        {m.description.key: Measured.of(m, scored) if scored else None for m in metrics}
        for scored in (_scored(rows) for _, rows in points)
    ]
    found = [
        {
            name: None if one is None else Measured(Ndcg(), Ndcg.known(one[RETRIEVED]))
            for name, one in point.retrieval.items()
        }
        for point, _ in points
    ]
    first = points[0][0]
    return [
        MeasuredPoint(
            point,
            {key: _value(read[place][key], read[0][key], resamples, seed) for key in READ},
            {name: _value(found[place][name], found[0][name], resamples, seed) for name in first.retrieval},
        )
        for place, (point, _) in enumerate(points)
    ]


def _scored(rows: Sequence[Mapping[str, Any]]) -> list[Scored]:
    return [
        Scored(
            row["reference"], row["prediction"], kind=row["kind"], cosine=row["cosine"], language=row.get("language")
        )
        for row in rows
    ]


def _value(
    measured: Measured[Any] | None, undefended: Measured[Any] | None, resamples: int, seed: int
) -> DefendedValue:
    if measured is None or np.isnan(measured.value):
        return DefendedValue(None)
    resampled = _resampled(measured, resamples, seed)
    own = measured.interval(resampled)
    if undefended is None or undefended is measured or np.isnan(undefended.value):
        return DefendedValue(measured.value, own)
    change = interval(resampled - _resampled(undefended, resamples, seed))
    return DefendedValue(measured.value, own, measured.value - undefended.value, change)


def _resampled(measured: Measured[Any], resamples: int, seed: int) -> Floats:
    return measured.metric.combine(resampled_sums(measured.parts, resamples, seed))


def chief(measured: Sequence[MeasuredPoint]) -> str:
    """The reconstruction metric of the chart: BLEU, or word F1 for an attack that predicts sets of words."""
    return "bleu" if measured[0].point.reconstruction.get("bleu") is not None else "token_f1"


def sentence(measured: Sequence[MeasuredPoint], search: str, names: Mapping[str, str]) -> str:
    """A sentence on the chart: how many defenses lower reconstruction, and how many of them also search quality.

    A defense "lowers" a metric where the whole interval of the change lies below zero.

    Args:
        measured: The undefended point first.
        search: Name of the search in the chart.
        names: Names of metrics, by key.
    """
    key = chief(measured)
    undefended, others = measured[0], [one for one in measured[1:] if one.read[key].value is not None]
    name, kind = names[key], "score" if key == "bleu" else "percent"
    opening = (
        f"Undefended, the attack reads texts at {_with(undefended.read[key], kind, name)} and the search reaches "
        f"{_with(undefended.found[search], 'cosine', 'NDCG@10')}"
    )
    compared = [one for one in others if one.found[search].value is not None]
    if not compared:
        return f"{opening}; no other point has both metrics."
    groups = {
        (read, found): [one for one in compared if (one.read[key].lower, one.found[search].lower) == (read, found)]
        for read in (True, False)
        for found in (True, False)
    }
    free, dear, harm, idle = (groups[pair] for pair in ((True, False), (True, True), (False, True), (False, False)))
    clauses = []
    size = f"of {len(compared)} defenses" if len(compared) > 1 else "of one defense"
    if free:
        best = min(free, key=lambda one: one.read[key].change or 0.0)
        clauses.append(
            f"{len(free)} lower{_s(free)} {name} at no loss of NDCG@10 that these queries show, "
            f"most of all {best.point.name} ({name} {_changed(best.read[key], kind)}, "
            f"NDCG@10 {_changed(best.found[search], 'cosine')})"
        )
    if dear:
        mildest = max(dear, key=lambda one: one.found[search].change or 0.0)
        clauses.append(
            f"{len(dear)} lower{_s(dear)} both, {mildest.point.name} costing the search least "
            f"({name} {_changed(mildest.read[key], kind)}, NDCG@10 {_changed(mildest.found[search], 'cosine')})"
        )
    if harm:
        clauses.append(f"{len(harm)} lower{_s(harm)} NDCG@10 alone ({_listed(harm)})")
    if idle:
        clauses.append(f"{len(idle)} lower{_s(idle)} neither ({_listed(idle)})")
    if not free:
        clauses.append(f"none lowers {name} without lowering NDCG@10")
    return (
        f"{opening}; {size}, {', '.join(clauses)} (95 % intervals, each taken alone). The attack was not trained on "
        "these defenses: an attacker who prepares for one may read more."
    )


def _with(value: DefendedValue, kind: str, name: str) -> str:
    if value.value is None:
        return f"no {name}"
    ends = "" if value.interval is None else f" ({numbers.interval(kind, value.interval)})"
    return f"{name} {shown(kind, value.value)}{ends}"


def _changed(value: DefendedValue, kind: str) -> str:
    assert value.change is not None
    low, high = (signed(kind, end) for end in value.change_interval or (value.change, value.change))
    return f"{signed(kind, value.change)}, {low} to {high}"


def _s(some: Sequence[MeasuredPoint]) -> str:
    return "s" if len(some) == 1 else ""


def _listed(some: Sequence[MeasuredPoint]) -> str:
    names = [one.point.name for one in some]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{', '.join(names[:LISTED])}{more}"
