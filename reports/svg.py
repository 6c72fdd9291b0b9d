"""The report's charts: small functions from numbers to inline SVG.

The SVG is written by hand and styled by classes of the page (``series0``, ``grid``, ``axis``), so that a chart follows
the reader's light or dark mode, weighs a few kilobytes and looks the same everywhere. All charts are ``WIDTH`` units
wide, about the width of a phone: text in them is never scaled down to something unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 340.0, 242.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 12.0, 30.0, 46.0


@dataclass(frozen=True, slots=True)
class Series:
    """A named line through ``points`` (x, y), drawn in the order given."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """One group of bars over a label: a height for each series, None where there is none."""

    label: str
    note: str
    heights: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Maps data (x from ``left`` to ``right``, y from ``low`` to ``high``) onto the drawing."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)


def line_chart(title: str, series: Sequence[Series], x_label: str, from_zero: bool = False) -> Markup:
    """Curves over a shared x axis; at least one series must hold a point. The y axis holds all points."""
    points = [point for one in series for point in one.points]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = padded(0.0 if from_zero else min(ys), max(ys))
    frame = _Frame(*widened(min(xs), max(xs)), 0.0 if from_zero else low, high)
    parts = [_axes(frame, x_label), _legend([one.name for one in series])]
    for number, one in enumerate(series):
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in one.points)
        parts.append(Markup('<polyline class="line series{}" points="{}"/>').format(number, path))
        if one.dots or len(one.points) == 1:
            parts += [_dot(frame.x(x), frame.y(y), 2.6, f"fill series{number}") for x, y in one.points]
    return _svg(title, parts)


def histogram(title: str, values: Sequence[float], x_label: str, lines: Sequence[tuple[str, float]] = ()) -> Markup:
    """Counts of ``values`` (at least one) in equal bins; ``lines`` are named values marked by a vertical line."""
    marked = [*values, *(value for _, value in lines)]
    left, right = widened(min(marked), max(marked), least=0.05)
    bins = 32
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, max(0, int((value - left) / (right - left) * bins)))] += 1
    frame = _Frame(left, right, 0.0, max(counts) * 1.08)
    parts = [_axes(frame, x_label, whole=True)]
    for number, count in enumerate(counts):
        if count:
            start = frame.x(left + (right - left) * number / bins)
            end = frame.x(left + (right - left) * (number + 1) / bins)
            parts.append(_bar(start + 0.4, frame.y(count), end - start - 0.8, frame.y(0), "fill series0 soft"))
    for number, (_, value) in enumerate(lines):
        parts.append(
            Markup('<line class="rule series{}" x1="{x}" x2="{x}" y1="{}" y2="{}"/>').format(
                number, _TOP - 4, frame.y(0), x=frame.x(value)
            )
        )
    parts.append(_legend([name for name, _ in lines]))
    return _svg(title, parts)


def counted_histogram(title: str, counts: Sequence[int], edges: Sequence[float], x_label: str) -> Markup:
    """Counts that were made before, each between two of ``edges``; empty bins at both ends are left out."""
    full = [number for number, count in enumerate(counts) if count]
    first, last = full[0], full[-1] + 1
    frame = _Frame(*widened(edges[first], edges[last], least=0.05), 0.0, max(counts) * 1.08)
    parts = [_axes(frame, x_label, whole=True)]
    for count, left, right in zip(counts[first:last], edges[first:last], edges[first + 1 : last + 1], strict=True):
        if count:
            start, end = frame.x(left), frame.x(right)
            parts.append(_bar(start + 0.4, frame.y(count), end - start - 0.8, frame.y(0), "fill series0 soft"))
    return _svg(title, parts)


def scatter(title: str, points: Sequence[tuple[float, float]], x_label: str, y_label: str) -> Markup:
    """One dot for each (x, y), y from 0 to 100; at least one point."""
    xs = [x for x, _ in points]
    frame = _Frame(*widened(min(xs), max(xs), least=0.05), 0.0, 100.0)
    parts = [_axes(frame, x_label), _text(_LEFT, 14, y_label, "label")]
    parts.append(Markup('<g class="fill series0 faint">'))
    parts += [Markup('<circle cx="{}" cy="{}" r="2.4"/>').format(frame.x(x), frame.y(y)) for x, y in points]
    parts.append(Markup("</g>"))
    return _svg(title, parts)


def trade_off(
    title: str, points: Sequence[tuple[float, float]], chosen: tuple[float, float], x_label: str, y_label: str
) -> Markup:
    """A curve through ``points`` (x, y), both axes from 0 to 100, with one of them marked; at least one point."""
    frame = _Frame(0.0, 100.0, 0.0, 100.0)
    path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in points)
    parts = [_axes(frame, x_label), _text(_LEFT, 14, y_label, "label")]
    parts.append(Markup('<polyline class="line series0" points="{}"/>').format(path))
    parts += [_dot(frame.x(x), frame.y(y), 2.2, "fill series0") for x, y in points]
    parts.append(_dot(frame.x(chosen[0]), frame.y(chosen[1]), 5.0, "fill series1"))
    return _svg(title, parts)


def grouped_bars(title: str, names: Sequence[str], groups: Sequence[Bars], x_label: str) -> Markup:
    """Bars from 0 to 100 side by side, one group a label, with the group's note (a count) below the label."""
    frame = _Frame(0.0, float(len(groups)), 0.0, 100.0)
    parts = [_axes(frame, x_label, ticks=False), _legend(names)]
    for position, group in enumerate(groups):
        width = min(26.0, (frame.x(1) - frame.x(0)) * 0.76 / len(names))
        centre = frame.x(position + 0.5)
        for number, height in enumerate(group.heights):
            if height is not None:
                start = centre + (number - len(names) / 2) * width
                parts.append(_bar(start, frame.y(height), width - 1.5, frame.y(0), f"fill series{number}"))
        parts.append(_text(centre, HEIGHT - _BOTTOM + 15, group.label, "tick middle"))
        parts.append(_text(centre, HEIGHT - _BOTTOM + 27, group.note, "note middle"))
    return _svg(title, parts)


def thin(points: Sequence[tuple[float, float]], limit: int) -> list[tuple[float, float]]:
    """At most ``limit`` points: the means of runs of equal length, so that a long noisy curve stays readable."""
    size = math.ceil(len(points) / limit) or 1
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    return [(math.fsum(x for x, _ in run) / len(run), math.fsum(y for _, y in run) / len(run)) for run in runs]


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values (1, 2 or 5 times a power of ten) between ``low`` and ``high``, both included."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def widened(low: float, high: float, least: float = 1e-9) -> tuple[float, float]:
    """The interval, widened around its middle where it is narrower than ``least``, so that a scale exists."""
    least = max(least, 1e-9 * max(abs(low), abs(high)))
    if high - low >= least:
        return low, high
    middle = (low + high) / 2
    return middle - least / 2, middle + least / 2


def padded(low: float, high: float) -> tuple[float, float]:
    """The interval with 6 % of air on both sides."""
    low, high = widened(low, high, least=1e-6 * max(1e-3, abs(high)))
    air = 0.06 * (high - low)
    return low - air, high + air


def _axes(frame: _Frame, x_label: str, ticks: bool = True, whole: bool = False) -> Markup:
    """Horizontal grid lines with their values, and the values and the name of the x axis."""
    parts = []
    values = nice_ticks(frame.low, frame.high, 5)
    name = _names(values)
    for value in values:
        if not whole or value == int(value):
            y = frame.y(value)
            parts.append(
                Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(_LEFT, WIDTH - _RIGHT, y=y)
            )
            parts.append(_text(_LEFT - 6, y + 3.5, name(value), "tick end"))
    floor = HEIGHT - _BOTTOM
    parts.append(
        Markup('<line class="axis" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(_LEFT, WIDTH - _RIGHT, y=floor)
    )
    if ticks:
        values = nice_ticks(frame.left, frame.right, 5)
        name = _names(values)
        parts += [_text(frame.x(value), floor + 15, name(value), "tick middle") for value in values]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, floor + (34 if ticks else 42), x_label, "label middle"))
    return Markup("").join(parts)


def _names(values: Sequence[float]) -> Callable[[float], str]:
    """How to write tick values: as many decimals as their step needs, thousands as k, extremes in powers of ten."""
    step = values[1] - values[0] if len(values) > 1 else abs(values[0]) if values else 1.0
    largest = max((abs(value) for value in values), default=1.0)
    if step >= 1000:
        return lambda value: f"{value / 1000:g}k" if value else "0"
    if largest < 1e-3:
        return lambda value: f"{value:.1e}".replace("e-0", "e-") if value else "0"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return lambda value: f"{value:.{decimals}f}"


def _legend(names: Sequence[str]) -> Markup:
    parts = []
    x = _LEFT
    for number, name in enumerate(names):
        parts.append(_dot(x + 4, 10, 4, f"fill series{number}"))
        parts.append(_text(x + 13, 14, name, "label"))
        x += 28 + 6.6 * len(name)
    return Markup("").join(parts)


def _bar(x: float, y: float, width: float, floor: float, style: str) -> Markup:
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1"/>').format(
        style, x, y, max(0.5, width), max(0.0, floor - y)
    )


def _dot(x: float, y: float, radius: float, style: str) -> Markup:
    return Markup('<circle class="{}" cx="{}" cy="{}" r="{}"/>').format(style, x, y, radius)


def _text(x: float, y: float, text: str, style: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(style, x, y, text)


def _svg(title: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, title, Markup("").join(parts)
    )
