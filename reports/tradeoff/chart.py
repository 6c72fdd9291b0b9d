"""The chart of a sweep: what is read against what is found, a numbered dot a defense, the undefended one marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from reports.svg import nice_ticks, padded
from reports.tradeoff.metrics import Figure, Measured, chief

WIDTH, HEIGHT = 680.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 16.0, 30.0, 44.0
NEAR = 13.0  # units between dots whose numbers would stand on one another


def tradeoff_chart(measured: Sequence[Measured], search: str, y_name: str) -> Markup:
    """SVG of the points that have both figures; at least the undefended one does.

    Dots carry their number in the table; those of one defense are joined in the order of the sweep, and thin lines are
    the 95 % intervals. Lower is better for the store, further right is better for its users.
    """
    key = chief(measured)
    placed = [
        (number, one, one.found[search], one.read[key])
        for number, one in enumerate(measured)
        if one.found[search].value is not None and one.read[key].value is not None
    ]
    left, right = padded(*_ends([found for _, _, found, _ in placed]))
    low, high = padded(*_ends([read for _, _, _, read in placed]))

    def x(value: float) -> float:
        return round(LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    floor = HEIGHT - BOTTOM
    parts = [_text(LEFT, 14, y_name, "label"), _text((LEFT + WIDTH - RIGHT) / 2, floor + 36, "NDCG@10", "label middle")]
    for tick in nice_ticks(low, high, 6):
        parts.append(_line("grid", LEFT, y(tick), WIDTH - RIGHT, y(tick)))
        parts.append(_text(LEFT - 6, y(tick) + 3.5, f"{tick:g}", "tick end"))
    for tick in nice_ticks(left, right, 8):
        parts.append(_text(x(tick), floor + 16, f"{tick:g}", "tick middle"))
    parts.append(_line("axis", LEFT, floor, WIDTH - RIGHT, floor))
    for _, _, found, read in placed:
        assert found.value is not None
        assert read.value is not None
        if found.interval is not None:
            parts.append(_line("axis", x(found.interval.low), y(read.value), x(found.interval.high), y(read.value)))
        if read.interval is not None:
            parts.append(_line("axis", x(found.value), y(read.interval.low), x(found.value), y(read.interval.high)))
    dots = [(number, one, x(found.value or 0.0), y(read.value or 0.0)) for number, one, found, read in placed]
    for _, family in groupby(dots, key=lambda dot: dot[1].point.name.partition(" ")[0]):
        path = " ".join(f"{across},{down}" for _, _, across, down in family)
        parts.append(Markup('<polyline class="line series0 thin" points="{}"/>').format(path))
    for number, one, across, down in reversed(dots):  # the undefended one on top
        style, radius = ("series0", 4.5) if number else ("series1", 6.5)
        parts.append(
            Markup('<circle class="fill {}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>').format(
                style, across, down, radius, f"{number}. {one.point.name}"
            )
        )
    for across, down, numbers in _labels([(number, across, down) for number, _, across, down in dots]):
        end = across > WIDTH - RIGHT - 60
        place = across - 9 if end else across + 9
        parts.append(_text(place, down - 7, numbers, "number end" if end else "number"))
    return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, f"{y_name} against NDCG@10, a dot a defense", Markup("").join(parts)
    )


def _labels(dots: Sequence[tuple[int, float, float]]) -> list[tuple[float, float, str]]:
    """Place and text of the numbers; dots that lie on one another share a label at the first of them."""
    groups: list[tuple[float, float, list[int]]] = []
    for number, across, down in dots:
        near = next((one for one in groups if math.hypot(one[0] - across, one[1] - down) < NEAR), None)
        if near is None:
            groups.append((across, down, [number]))
        else:
            near[2].append(number)
    return [(across, down, ", ".join(map(str, numbers))) for across, down, numbers in groups]


def _ends(figures: Sequence[Figure]) -> tuple[float, float]:
    ends = [end for one in figures for end in (one.value, *(one.interval or ())) if end is not None]
    return min(ends), max(ends)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(style, x1, y1, x2, y2)


def _text(x: float, y: float, text: str, style: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(style, x, y, text)
