"""The page of a trade-off: metrics of a sweep's points with intervals, a sentence on them, a chart and a table.

Intervals are 95 % percentile intervals of a bootstrap over the attacked texts, or over the queries. All points share
their resamples, so the interval of a change is far narrower than those of the two values suggest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from unembed.metrics.base import Measured
from unembed.metrics.retrieval import Ndcg
from unembed.metrics.scored import Description, Scored
from unembed.metrics.scoring import text_metrics
from unembed.metrics.statistics import Interval, interval, resampled_sums
from unembed.reports import numbers, output
from unembed.reports.numbers import DASH, shown, signed
from unembed.reports.output import Cell, Line, Table, macro
from unembed.reports.results import measure
from unembed.reports.svg import Frame, dot, line, padded, path, text

if TYPE_CHECKING:
    from unembed.reports.tradeoff import Point

NAME = "tradeoff"  # of the files
READ = ("bleu", "bleu_sentence", "rouge1", "rougeL", "token_f1", "token_set_f1", "exact_match", "cosine")
NDCG = Ndcg().description
WIDTH, HEIGHT = 680.0, 400.0  # of the chart
NEAR = 13.0  # distance of dots whose labels would overlap


class DefendedValue(NamedTuple):
    """A metric under a defense, and its change from the undefended value, each with its interval; None if undefined.

    The undefended value itself has no change.
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

    def described(self, metric: Description) -> str:
        """``BLEU 84.1 (82.0 to 86.3)``."""
        if self.value is None:
            return f"no {metric.title}"
        ends = "" if self.interval is None else f" ({numbers.interval(metric.kind, self.interval)})"
        return f"{metric.title} {shown(metric.kind, self.value)}{ends}"

    def changed(self, kind: str) -> str:
        """``-4.1, -5.0 to -3.2``."""
        change = self.change or 0.0
        ends = " to ".join(signed(kind, end) for end in self.change_interval or (change, change))
        return f"{signed(kind, change)}, {ends}"

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        low, high = self.interval or (None, None)
        change_low, change_high = self.change_interval or (None, None)
        change = {"change": self.change, "change_low": change_low, "change_high": change_high}
        return {"value": self.value, "low": low, "high": high, **change}


class MeasuredPoint(NamedTuple):
    """A point with its intervals: ``read`` by key of metrics.json, ``searched`` NDCG@10 by name of the search."""

    point: Point
    read: Mapping[str, DefendedValue]
    searched: Mapping[str, DefendedValue]


def with_intervals(
    points: Sequence[tuple[Point, Sequence[Mapping[str, Any]]]], resamples: int, seed: int = 0
) -> list[MeasuredPoint]:
    """Metrics with intervals of each point and its text rows; the first point is the undefended one."""
    metrics = {key: metric for metric in text_metrics() if (key := metric.description.key) in READ}
    ndcg = Ndcg()
    measured: list[tuple[dict[str, Measured[Any] | None], dict[str, Measured[Any] | None]]] = []
    for point, rows in points:
        scored = [Scored(row["reference"], row["prediction"], kind=row["kind"], cosine=row["cosine"]) for row in rows]
        read = {key: Measured.of(metrics[key], scored) if scored else None for key in READ}
        searched = {
            name: None if queries is None else Measured(ndcg, ndcg.known(queries[NDCG.key]))
            for name, queries in point.retrieval.items()
        }
        measured.append((read, searched))

    def values(
        own: Mapping[str, Measured[Any] | None], base: Mapping[str, Measured[Any] | None]
    ) -> dict[str, DefendedValue]:
        return {name: _value(own[name], base[name], resamples, seed) for name in base}

    return [
        MeasuredPoint(point, values(read, measured[0][0]), values(searched, measured[0][1]))
        for (point, _), (read, searched) in zip(points, measured, strict=True)
    ]


def _value(one: Measured[Any] | None, undefended: Measured[Any] | None, resamples: int, seed: int) -> DefendedValue:
    if one is None or np.isnan(one.value):
        return DefendedValue(None)
    resampled = one.metric.combine(resampled_sums(one.parts, resamples, seed))
    own = one.interval(resampled)
    if undefended is None or undefended is one or np.isnan(undefended.value):
        return DefendedValue(one.value, own)
    base = undefended.metric.combine(resampled_sums(undefended.parts, resamples, seed))
    return DefendedValue(one.value, own, one.value - undefended.value, interval(resampled - base))


def chief(measured: Sequence[MeasuredPoint]) -> str:
    """The reconstruction metric of the chart: BLEU, or word F1 for an attack that predicts sets of words."""
    return "bleu" if measured[0].point.reconstruction.get("bleu") is not None else "token_f1"


class _Compared(NamedTuple):
    name: str
    read: DefendedValue
    searched: DefendedValue


def sentence(measured: Sequence[MeasuredPoint], search: str) -> str:
    """A sentence on the chart: how many defenses lower reconstruction, and how many of them also search quality."""
    key = chief(measured)
    base, *others = (_Compared(one.point.name, one.read[key], one.searched[search]) for one in measured)
    compared = [one for one in others if None not in (one.read.value, one.searched.value)]
    return output.sentence("tradeoff", metric=measure(key), ndcg=NDCG, base=base, compared=compared)


def tradeoff_chart(measured: Sequence[MeasuredPoint], search: str, y_name: str) -> Markup:
    """SVG of the points that have both metrics; at least the undefended one does.

    Dots carry their number in the table; those of one defense are connected in the order of the sweep, and thin lines
    are the 95 % intervals. Lower means more privacy, further right means better search.
    """
    key = chief(measured)
    placed = [
        (number, one, one.searched[search], one.read[key])
        for number, one in enumerate(measured)
        if one.searched[search].value is not None and one.read[key].value is not None
    ]
    ends = _ends([searched for _, _, searched, _ in placed]), _ends([read for _, _, _, read in placed])
    frame = Frame(padded(*ends[0]), padded(*ends[1]), WIDTH, HEIGHT)
    x, y = frame.x, frame.y
    parts = frame.axes("NDCG@10", y_name, x_ticks=8, y_ticks=6)
    for _, _, searched, read in placed:
        assert searched.value is not None
        assert read.value is not None
        if searched.interval is not None:
            left, right = (x(end) for end in searched.interval)
            parts.append(line(left, y(read.value), right, y(read.value), "axis"))
        if read.interval is not None:
            bottom, top = (y(end) for end in read.interval)
            parts.append(line(x(searched.value), bottom, x(searched.value), top, "axis"))
    dots = [(number, one, x(searched.value or 0.0), y(read.value or 0.0)) for number, one, searched, read in placed]
    for _, family in groupby(dots, key=lambda dot: dot[1].point.name.partition(" ")[0]):
        parts.append(path([(across, down) for _, _, across, down in family], "series0 thin"))
    for number, one, across, down in reversed(dots):  # the undefended one on top
        radius, style = (4.5, "series0") if number else (6.5, "series1")
        parts.append(dot(across, down, radius, style, f"{number}. {one.point.name}"))
    groups: list[tuple[float, float, list[str]]] = []  # overlapping dots share a label at the first of them
    for number, _, across, down in dots:
        near = (names for left, top, names in groups if math.hypot(left - across, top - down) < NEAR)
        if (names := next(near, None)) is None:
            groups.append((across, down, [str(number)]))
        else:
            names.append(str(number))
    for across, down, names in groups:
        end = across > frame.right - 60
        place = across - 9 if end else across + 9
        parts.append(text(place, down - 7, ", ".join(names), "number end" if end else "number"))
    return frame.svg(f"{y_name} against NDCG@10, a dot a defense", parts)


def _ends(values: Sequence[DefendedValue]) -> tuple[float, float]:
    ends = [end for one in values for end in (one.value, *(one.interval or ())) if end is not None]
    return min(ends), max(ends)


def write_results(
    folder: Path,
    measured: Sequence[MeasuredPoint],
    facts: Mapping[str, Any],
    notes: Sequence[str],
    searches: Sequence[str],
) -> str:
    """Write the three files and print the table; return the summary sentence.

    Of the points ``measured``, the undefended one is first; ``facts`` say what was attacked and searched, for the
    page's header and the JSON; of the searches, the chart shows the first.
    """
    first = searches[0]
    summary, table = sentence(measured, first), _table(measured, notes, searches)
    y_name = measure(chief(measured)).title
    chart = tradeoff_chart(measured, first, y_name)
    page = {
        "heading": "What a defense keeps and what it costs",
        "run": str(facts["run"]),
        "facts": [(name, str(value)) for name, value in facts.items() if name not in ("run", "left_out")],
        "lead": summary,
        "sections": [
            ("plot", f"{y_name} against NDCG@10", macro("tradeoff", chart=chart, search=first)),
            ("table", table.title, macro("table_of", table=table, style="wide points")),
        ],
    }
    points = [_plain(one, searches) for one in measured]
    values = {**facts, "sentence": summary, "searches": list(searches), "points": points}
    output.write(folder / NAME, page, [table], values)
    output.print_values(table, output.terminal())
    return summary


def _table(measured: Sequence[MeasuredPoint], notes: Sequence[str], searches: Sequence[str]) -> Table:
    columns = ["defense", *(measure(key).title for key in READ), *(f"NDCG@10, {name}" for name in searches)]
    lines = []
    for number, one in enumerate(measured):
        read = [_cell(one.read[key], measure(key).kind, more_is_good=False) for key in READ]
        searched = [_cell(one.searched[name], "cosine", more_is_good=True) for name in searches]
        below = "" if one.point.reconstruction else f"{one.point.width} dimensions, more than the attack takes"
        lines.append(Line(f"{number}. {one.point.name}", below, (*read, *searched)))
    return Table("Defense by defense", columns, lines, notes=notes)


def _cell(value: DefendedValue, kind: str, *, more_is_good: bool) -> Cell:
    """A value with its change below, coloured from the view of the store's owner if the change is significant."""
    if value.value is None:
        return Cell(DASH)
    if value.change is None:
        ends = value.interval
        return Cell(shown(kind, value.value), () if ends is None else (numbers.interval(kind, ends),))
    below = [signed(kind, value.change)]
    if value.change_interval is not None:
        below.append(" to ".join(signed(kind, end) for end in value.change_interval))
    gain = more_is_good if value.higher else (not more_is_good) if value.lower else None
    return Cell(shown(kind, value.value), tuple(below), gain)


def _plain(one: MeasuredPoint, searches: Sequence[str]) -> dict[str, Any]:
    retrieval = {
        name: None if values is None else {key: sum(own) / len(own) for key, own in values.items()}
        for name, values in ((name, one.point.retrieval[name]) for name in searches)
    }
    return {
        "name": one.point.name,
        "overrides": one.point.overrides,
        "width": one.point.width,
        "reconstruction": one.point.reconstruction or None,
        "retrieval": retrieval,
        "intervals": {
            **{key: value.plain() for key, value in one.read.items()},
            **{f"{NDCG.key}, {name}": value.plain() for name, value in one.searched.items()},
        },
    }
