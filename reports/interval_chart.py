"""The chart of runs side by side: a figure of each with its interval, one line a run, whatever the runs differ in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from markupsafe import Markup

from reports.comparison.measuring import Compared
from reports.numbers import shown
from reports.svg import WIDTH, nice_ticks, padded
from reports.wording import measure

LINE, TOP, BOTTOM, MARGIN = 32.0, 6.0, 26.0, 10.0  # units of the drawing; LINE is the height of a run's
NAME = 44  # characters of a run's name that fit beside its value


def side_by_side(compared: Sequence[Compared], metrics: Sequence[str]) -> list[tuple[str, Markup, str]]:
    """Title, SVG and note of a chart for each metric that two runs have; runs in the order given.

    A run on other test texts than the first is named so.
    """
    found = []
    for key in metrics:
        one = measure(key)
        known = [run for run in compared if run.figures[key].value is not None]
        if len(known) > 1:
            note = "A dot a run, with its 95 % interval over the test texts where it has one."
            found.append((one.title, _drawing(f"{one.title}, run by run", known, key), note))
    return found


def _drawing(title: str, compared: Sequence[Compared], key: str) -> Markup:
    figures = [run.figures[key] for run in compared]
    ends = [*chain.from_iterable(figure.interval or (figure.value,) for figure in figures)]
    places = [end for end in ends if end is not None]
    low, high = padded(min(places), max(places))

    def x(value: float) -> float:
        return round(MARGIN + (value - low) / (high - low) * (WIDTH - 2 * MARGIN), 1)

    floor = TOP + LINE * len(compared)
    parts = []
    for tick in nice_ticks(low, high, 4):
        parts.append(Markup('<line class="grid" x1="{x}" x2="{x}" y1="{}" y2="{}"/>').format(TOP, floor, x=x(tick)))
        parts.append(
            Markup('<text class="tick middle" x="{}" y="{:.1f}">{:g}</text>').format(x(tick), floor + 15, tick)
        )
    for number, (run, figure) in enumerate(zip(compared, figures, strict=True)):
        assert figure.value is not None
        base = TOP + LINE * number
        name = run.entry.label + ("" if run.paired else " (other texts)")
        name = name if len(name) <= NAME else f"…{name[1 - NAME :]}"
        value = shown(measure(key).kind, figure.value)
        parts.append(Markup('<text class="label" x="{}" y="{:.1f}">{}</text>').format(MARGIN, base + 12, name))
        parts.append(
            Markup('<text class="tick end" x="{}" y="{:.1f}">{}</text>').format(WIDTH - MARGIN, base + 12, value)
        )
        if figure.interval is not None:
            start, end = map(x, figure.interval)
            points = f"{start},{base + 22:.1f} {end},{base + 22:.1f}"
            parts.append(Markup('<polyline class="line series0" points="{}"/>').format(points))
        parts.append(
            Markup('<circle class="fill series0" cx="{}" cy="{:.1f}" r="3.4"/>').format(x(figure.value), base + 22)
        )
    return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, floor + BOTTOM, title, Markup("").join(parts)
    )
