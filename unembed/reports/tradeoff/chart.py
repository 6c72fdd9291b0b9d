"""The trade-off chart: text recovery against search quality, a numbered dot per defense, the undefended one marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from unembed.reports.svg import Frame, dot, line, padded, path, text
from unembed.reports.tradeoff.metrics import DefendedValue, MeasuredPoint, chief

WIDTH, HEIGHT = 680.0, 400.0
NEAR = 13.0  # distance of dots whose labels would overlap


def tradeoff_chart(measured: Sequence[MeasuredPoint], search: str, y_name: str) -> Markup:
    """SVG of the points that have both metrics; at least the undefended one does.

    Dots carry their number in the table; those of one defense are connected in the order of the sweep, and thin lines
    are the 95 % intervals. Lower means more privacy, further right means better search.
    """
    key = chief(measured)
    placed = [
        (number, one, one.found[search], one.read[key])
        for number, one in enumerate(measured)
        if one.found[search].value is not None and one.read[key].value is not None
    ]
    ends = _ends([found for _, _, found, _ in placed]), _ends([read for _, _, _, read in placed])
    frame = Frame(padded(*ends[0]), padded(*ends[1]), WIDTH, HEIGHT)
    x, y = frame.x, frame.y
    parts = frame.axes("NDCG@10", y_name, x_ticks=8, y_ticks=6)
    for _, _, found, read in placed:
        assert found.value is not None
        assert read.value is not None
        if found.interval is not None:
            parts.append(line(x(found.interval.low), y(read.value), x(found.interval.high), y(read.value), "axis"))
        if read.interval is not None:
            parts.append(line(x(found.value), y(read.interval.low), x(found.value), y(read.interval.high), "axis"))
    dots = [(number, one, x(found.value or 0.0), y(read.value or 0.0)) for number, one, found, read in placed]
    for _, family in groupby(dots, key=lambda dot: dot[1].point.name.partition(" ")[0]):
        parts.append(path([(across, down) for _, _, across, down in family], "series0 thin"))
    for number, one, across, down in reversed(dots):  # the undefended one on top
        radius, style = (4.5, "series0") if number else (6.5, "series1")
        parts.append(dot(across, down, radius, style, f"{number}. {one.point.name}"))
    for across, down, numbers in _labels([(number, across, down) for number, _, across, down in dots]):
        end = across > frame.right - 60
        place = across - 9 if end else across + 9
        parts.append(text(place, down - 7, numbers, "number end" if end else "number"))
    return frame.svg(f"{y_name} against NDCG@10, a dot a defense", parts)


def _labels(dots: Sequence[tuple[int, float, float]]) -> list[tuple[float, float, str]]:
    """Position and text of the labels; overlapping dots share a label at the first of them."""
    groups: list[tuple[float, float, list[int]]] = []
    for number, across, down in dots:
        near = next((one for one in groups if math.hypot(one[0] - across, one[1] - down) < NEAR), None)
        if near is None:
            groups.append((across, down, [number]))
        else:
            near[2].append(number)
    return [(across, down, ", ".join(map(str, numbers))) for across, down, numbers in groups]


def _ends(values: Sequence[DefendedValue]) -> tuple[float, float]:
    ends = [end for one in values for end in (one.value, *(one.interval or ())) if end is not None]
    return min(ends), max(ends)
