"""Basic elements of all charts: scales with ticks, axes, and SVG shapes.

    frame = Frame(x=(0, 500), y=(0, 100))
    frame.svg("BLEU by step", [*frame.axes("step"), frame.curve([(0, 20.0), (500, 84.3)], "series0")])

The SVG uses CSS classes of the page (``series0``, ``grid``, ``axis``), so that charts follow the reader's light or dark
mode and are a few kilobytes large. Libraries need more: matplotlib takes 0.7 s to import and has fixed colours; pygal's
charts are eight times as large, contain a script, and are not deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

Point = tuple[float, float]

WIDTH, HEIGHT = 340.0, 242.0  # about the width of a phone, so that text is never scaled down
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 12.0, 30.0, 46.0


class Scale(NamedTuple):
    """Maps data from ``low`` to ``high`` onto the drawing from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of ``value`` in the drawing."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """About ``count`` round values with their labels."""
        values = nice_ticks(self.low, self.high, count)
        name = _names(values)
        return [(value, name(value)) for value in values]


class Frame:
    """The plot between the axes of a chart: ends of the data, from left to right and from bottom to top."""

    def __init__(self, x: Point, y: Point, width: float = WIDTH, height: float = HEIGHT) -> None:
        self.width, self.height, self.floor = width, height, height - _BOTTOM
        self.left, self.right, self.top = _LEFT, width - _RIGHT, _TOP
        self.x, self.y = Scale(*x, self.left, self.right), Scale(*y, self.floor, _TOP)

    def axes(
        self, x_label: str, y_label: str = "", x_ticks: int = 5, y_ticks: int = 5, whole: bool = False
    ) -> list[Markup]:
        """Horizontal grid lines with values, and values and title of the x axis.

        Args:
            x_label: Title of the x axis.
            y_label: Title of the y axis, above it.
            x_ticks: Approximate number of x values; 0 if other labels are written there.
            y_ticks: Approximate number of y values.
            whole: Only whole numbers on the y axis.
        """
        parts = []
        for value, name in self.y.ticks(y_ticks):
            if not whole or value == int(value):
                parts.append(line(self.left, self.y(value), self.right, self.y(value), "grid"))
                parts.append(text(self.left - 6, self.y(value) + 3.5, name, "tick end"))
        parts.append(line(self.left, self.floor, self.right, self.floor, "axis"))
        if x_ticks:
            parts += [
                text(self.x(value), self.floor + 15, name, "tick middle") for value, name in self.x.ticks(x_ticks)
            ]
        below = 34 if x_ticks else 42
        parts.append(text((self.left + self.right) / 2, self.floor + below, x_label, "label middle"))
        return [*parts, text(self.left, 14, y_label, "label")] if y_label else parts

    def curve(self, points: Sequence[Point], style: str) -> Markup:
        """A line through points in data coordinates."""
        return path([(self.x(x), self.y(y)) for x, y in points], style)

    def svg(self, title: str, parts: Sequence[Markup]) -> Markup:
        """The complete SVG; ``title`` is read by screen readers."""
        return drawing(title, self.width, self.height, parts)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values (1, 2 or 5 times a power of ten) between ``low`` and ``high``, both included."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def widened(low: float, high: float, least: float = 1e-9) -> Point:
    """The interval, widened around its middle to at least ``least``, so that a scale exists."""
    least = max(least, 1e-9 * max(abs(low), abs(high)))
    if high - low >= least:
        return low, high
    middle = (low + high) / 2
    return middle - least / 2, middle + least / 2


def padded(low: float, high: float) -> Point:
    """The interval with 6 % padding on both sides."""
    low, high = widened(low, high, least=1e-6 * max(1e-3, abs(high)))
    air = 0.06 * (high - low)
    return low - air, high + air


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    """A straight line."""
    return Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(style, x1, x2, y1, y2)


def path(points: Sequence[Point], style: str) -> Markup:
    """A line through points in drawing coordinates."""
    return Markup('<polyline class="line {}" points="{}"/>').format(style, " ".join(f"{x},{y}" for x, y in points))


def bar(x: float, y: float, width: float, floor: float, style: str) -> Markup:
    """A bar from ``y`` down to ``floor``."""
    return Markup('<rect class="fill {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1"/>').format(
        style, x, y, max(0.5, width), max(0.0, floor - y)
    )


def dot(x: float, y: float, radius: float, style: str, title: str = "") -> Markup:
    """A dot; ``title`` is its tooltip."""
    inner = Markup("><title>{}</title></circle>").format(title) if title else Markup("/>")
    return Markup('<circle class="fill {}" cx="{}" cy="{}" r="{}"{}').format(style, x, y, radius, inner)


def text(x: float, y: float, content: str, style: str) -> Markup:
    """Text that starts at ``x``, unless the style is ``middle`` or ``end``."""
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(style, x, y, content)


def drawing(title: str, width: float, height: float, parts: Sequence[Markup]) -> Markup:
    """The complete SVG; ``title`` is read by screen readers."""
    return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        width, height, title, Markup("").join(parts)
    )


def _names(values: Sequence[float]) -> Callable[[float], str]:
    """The format of tick values: as many decimals as their step needs, thousands as k, extremes in powers of ten."""
    step = values[1] - values[0] if len(values) > 1 else abs(values[0]) if values else 1.0
    largest = max((abs(value) for value in values), default=1.0)
    if step >= 1000:
        return lambda value: f"{value / 1000:g}k" if value else "0"
    if largest < 1e-3:
        return lambda value: f"{value:.1e}".replace("e-0", "e-") if value else "0"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return lambda value: f"{value:.{decimals}f}"
