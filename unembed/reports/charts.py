"""Chart types shared by the pages: lines, histograms, scatter plots, bars, and values with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from unembed.reports.svg import WIDTH, Frame, Point, Scale, bar, dot, drawing, line, padded, path, text, widened

Chart = tuple[str, Markup, str]  # title, SVG, note

COLOURS = 4  # colours for series in the page's style sheet
_BINS = 32  # of a histogram
_LABEL, _NOTE = 6.2, 5.4  # width of a character of a tick's label, and of a note


class Series(NamedTuple):
    """A named line through ``points`` (x, y), drawn in the order given."""

    name: str
    points: Sequence[Point]
    dots: bool = False


class Bars(NamedTuple):
    """A group of bars with its label: one height per series, None for no bar."""

    label: str
    note: str
    heights: Sequence[float | None]


def line_chart(title: str, series: Sequence[Series], x_label: str, from_zero: bool = False) -> Markup:
    """Line chart with a shared x axis; at least one series must have a point. The y axis covers all points."""
    points = [point for one in series for point in one.points]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = padded(0.0 if from_zero else min(ys), max(ys))
    frame = Frame(widened(min(xs), max(xs)), (0.0 if from_zero else low, high))
    parts = [*frame.axes(x_label), *_legend(frame, [one.name for one in series])]
    for number, one in enumerate(series):
        parts.append(frame.curve(one.points, f"series{number}"))
        if one.dots or len(one.points) == 1:
            parts += [dot(frame.x(x), frame.y(y), 2.6, f"series{number}") for x, y in one.points]
    return frame.svg(title, parts)


def trade_off(title: str, points: Sequence[Point], chosen: Point, x_label: str, y_label: str) -> Markup:
    """A line through ``points`` (x, y), both axes 0 to 100, with one point marked; at least one point."""
    frame = Frame((0.0, 100.0), (0.0, 100.0))
    parts = [*frame.axes(x_label, y_label), frame.curve(points, "series0")]
    parts += [dot(frame.x(x), frame.y(y), 2.2, "series0") for x, y in points]
    return frame.svg(title, [*parts, dot(frame.x(chosen[0]), frame.y(chosen[1]), 5.0, "series1")])


def histogram(title: str, values: Sequence[float], x_label: str, lines: Sequence[tuple[str, float]] = ()) -> Markup:
    """Histogram of ``values`` (at least one) in equal bins; ``lines`` are named values marked by vertical lines."""
    marked = [*values, *(value for _, value in lines)]
    counts, edges = np.histogram(values, _BINS, widened(min(marked), max(marked), least=0.05))
    return counted_histogram(title, counts.tolist(), edges.tolist(), x_label, lines)


def counted_histogram(
    title: str, counts: Sequence[int], edges: Sequence[float], x_label: str, lines: Sequence[tuple[str, float]] = ()
) -> Markup:
    """Histogram of given counts, each between two of ``edges``; empty bins at both ends are cut, except at a line."""
    full = [number for number, count in enumerate(counts) if count]
    ends = [edges[full[0]], edges[full[-1] + 1], *(value for _, value in lines)]
    frame = Frame(widened(min(ends), max(ends), least=0.05), (0.0, max(counts) * 1.08))
    parts = frame.axes(x_label, whole=True)
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        if count:
            start, end = frame.x(left), frame.x(right)
            parts.append(bar(start + 0.4, frame.y(count), end - start - 0.8, frame.y(0), "series0 soft"))
    for number, (_, value) in enumerate(lines):
        parts.append(line(frame.x(value), frame.top - 4, frame.x(value), frame.y(0), f"rule series{number}"))
    return frame.svg(title, [*parts, *_legend(frame, [name for name, _ in lines])])


def scatter(title: str, points: Sequence[Point], x_label: str, y_label: str) -> Markup:
    """Scatter plot of (x, y), y from 0 to 100; at least one point."""
    xs = [x for x, _ in points]
    frame = Frame(widened(min(xs), max(xs), least=0.05), (0.0, 100.0))
    dots = [Markup('<circle cx="{}" cy="{}" r="2.4"/>').format(frame.x(x), frame.y(y)) for x, y in points]
    group = Markup('<g class="fill series0 faint">{}</g>').format(Markup("").join(dots))
    return frame.svg(title, [*frame.axes(x_label, y_label), group])


def grouped_bars(title: str, names: Sequence[str], groups: Sequence[Bars], x_label: str) -> Markup:
    """Groups of bars from 0 to 100, with label and note (a count) below each, or each few where they would touch."""
    frame = Frame((0.0, float(len(groups))), (0.0, 100.0))
    parts = [*frame.axes(x_label, x_ticks=0), *_legend(frame, names)]
    room = frame.x(1) - frame.x(0)
    width = min(26.0, room * 0.76 / len(names))
    longest = max(max(_LABEL * len(group.label), _NOTE * len(group.note)) for group in groups)
    every = math.ceil((longest + 3) / room)
    for position, group in enumerate(groups):
        centre = frame.x(position + 0.5)
        for number, height in enumerate(group.heights):
            if height is not None:
                start = centre + (number - len(names) / 2) * width
                parts.append(bar(start, frame.y(height), width - 1.5, frame.y(0), f"series{number}"))
        if position % every == 0:
            parts.append(text(centre, frame.floor + 15, group.label, "tick middle"))
            parts.append(text(centre, frame.floor + 27, group.note, "note middle"))
    return frame.svg(title, parts)


class NamedValue(NamedTuple):
    """A named value of ``row_chart``, with its formatted text and its interval if there is one."""

    name: str
    shown: str
    value: float
    interval: Point | None = None


def row_chart(title: str, rows: Sequence[NamedValue]) -> Markup:
    """One row per named value, at least one: a dot with its interval, in the given order; the axis covers all."""
    margin, height, bottom = 8.0, 34.0, 26.0
    floor = height * len(rows)
    ends = [end for row in rows for end in (row.value, *(row.interval or ()))]
    x = Scale(*padded(min(ends), max(ends)), margin, WIDTH - margin)
    parts: list[Markup] = []
    for value, name in x.ticks(4):
        parts += [line(x(value), 6, x(value), floor, "grid"), text(x(value), floor + 15, name, "tick middle")]
    for number, row in enumerate(rows):
        top, middle = height * number, height * number + 23
        parts.append(text(margin, top + 13, _fitting(row.name), "label"))
        parts.append(text(WIDTH - margin, top + 13, row.shown, "tick end"))
        if row.interval is not None:
            parts.append(path([(x(end), middle) for end in row.interval], "series0"))
        parts.append(dot(x(row.value), middle, 3.4, "series0"))
    return drawing(title, WIDTH, floor + bottom, parts)


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most ``limit`` points, each the mean of equally many, so that a long noisy curve stays readable."""
    size = math.ceil(len(points) / limit) or 1
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in run), fmean(y for _, y in run)) for run in runs]


def _legend(frame: Frame, names: Sequence[str]) -> list[Markup]:
    parts = []
    x = frame.left
    for number, name in enumerate(names):
        parts += [dot(x + 4, 10, 4, f"series{number}"), text(x + 13, 14, name, "label")]
        x += 28 + 6.6 * len(name)
    return parts


def _fitting(name: str, most: int = 44) -> str:
    """``name`` without its middle if it is too long to fit beside a value."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"
