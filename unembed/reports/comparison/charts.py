"""Charts of a comparison: a metric by run, and a metric against a property in which the runs differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unembed.core.commands import command
from unembed.core.errors import InputError
from unembed.reports.charts import COLOURS, Chart, NamedValue, Series, line_chart, row_chart, scatter
from unembed.reports.comparison.entries import Entry
from unembed.reports.comparison.measuring import Compared
from unembed.reports.comparison.seeds import means, settings
from unembed.reports.numbers import shown
from unembed.reports.wording import measure

Point = tuple[Entry, float, float]  # a run, its x value, its y value


@dataclass(frozen=True, slots=True)
class Axis:
    """A property of runs: its title, how to read it, and whether its axis is logarithmic."""

    title: str
    of: Callable[[Entry], float | None]
    powers: bool = True

    def place(self, entry: Entry) -> float | None:
        """The x value of a run; None if it is unknown, or zero on a logarithmic axis."""
        value = self.of(entry)
        if value is None or (self.powers and value <= 0):
            return None
        return math.log10(value) if self.powers else value


AXES: Mapping[str, Axis] = {
    "training_texts": Axis("training texts, power of ten", lambda entry: entry.training_texts),
    "parameters": Axis("parameters, power of ten", lambda entry: entry.parameters),
    "embedded_words": Axis("words of an embedded text", lambda entry: entry.embedded_words, powers=False),
    "corpus_similarity": Axis("similarity of the corpora", lambda entry: entry.corpus_similarity, powers=False),
}


def check_axis(name: str, entries: Sequence[Entry]) -> None:
    """Raise InputError if fewer than two comparable runs differ in the requested property."""
    axis, fitting = AXES[name], _fitting(name, entries)
    if len({axis.place(entry) for entry in fitting} - {None}) < 2:
        known = [(entry.label, axis.of(entry)) for entry in fitting]
        values = ", ".join(f"{label}: {'unknown' if value is None else f'{value:g}'}" for label, value in known)
        rule = "" if name == "corpus_similarity" else " on the same test texts"
        raise InputError(
            f"x={name}: at least two runs{rule} must differ in it ({values}); "
            f"{command('evaluate', 'run=<dir>')} records what is unknown"
        )


def side_by_side(compared: Sequence[Compared], metrics: Sequence[str]) -> list[Chart]:
    """A chart for each metric that at least two runs have; runs in the given order.

    Runs with other test texts than the first are marked as such.
    """
    found = []
    for key in metrics:
        one = measure(key)
        rows = []
        for run in compared:
            value, interval = run.values[key].value, run.values[key].interval
            if value is not None:
                name = run.entry.label + ("" if run.paired else " (other texts)")
                rows.append(NamedValue(name, shown(one.kind, value), value, interval))
        if len(rows) > 1:
            note = "A dot a run, with its 95 % interval over the test texts where it has one."
            found.append((one.title, row_chart(f"{one.title}, run by run", rows), note))
    return found


def charts(compared: Sequence[Compared], metrics: Sequence[str], chosen: str | None) -> list[Chart]:
    """A chart for each metric against ``chosen``, or against each property in which the runs differ."""
    found = []
    compared = means(settings(compared, metrics))
    for name, axis in AXES.items():
        if chosen in (None, name):
            fitting = _fitting(name, [one.entry for one in compared])
            draw = _scatter if name == "corpus_similarity" else _lines
            for key in metrics:
                points = _points([one for one in compared if one.entry in fitting], key, axis)
                if len({place for _, place, _ in points}) > 1:
                    found += draw(points, key, axis)
    return found


def _fitting(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """The runs comparable in one chart: for corpus similarity any, otherwise those with the same test texts."""
    return [entry for entry in entries if name == "corpus_similarity" or entry.texts == entries[0].texts]


def _points(compared: Sequence[Compared], key: str, axis: Axis) -> list[Point]:
    placed = [(one.entry, axis.place(one.entry), one.values[key].value) for one in compared]
    return [(entry, place, value) for entry, place, value in placed if place is not None and value is not None]


def _lines(points: Sequence[Point], key: str, axis: Axis) -> list[Chart]:
    """One line per class of attack and embedder, so that only sizes of the same attack are connected."""
    several = {part: len({getattr(entry, part) for entry, _, _ in points}) > 1 for part in ("attack_class", "embedder")}
    shown = [part for part, differs in several.items() if differs] or ["embedder"]
    lines: dict[str, list[tuple[float, float]]] = {}
    for entry, place, value in points:
        lines.setdefault(", ".join(getattr(entry, part) for part in shown), []).append((place, value))
    series = [Series(name, sorted(line), dots=True) for name, line in lines.items()]
    title = f"{measure(key).title} by {axis.title.partition(',')[0]}"
    note = "One dot a run, or the mean of its seeds, on the reference's test texts; one line an attack and embedder."
    return [
        (title, line_chart(title, series[start : start + COLOURS], axis.title), note)
        for start in range(0, len(series), COLOURS)
    ]


def _scatter(points: Sequence[Point], key: str, axis: Axis) -> list[Chart]:
    """One dot a run; the y axis runs from 0 to 100."""
    one = measure(key)
    scale, name = (100.0, f"{one.title}, times 100") if one.kind == "cosine" else (1.0, one.title)
    if one.kind not in ("percent", "score", "cosine"):
        return []
    note = "One dot a run: Spearman's correlation of 4-grams in training and test text, lower for a small test set."
    title = f"{one.title} by similarity of the corpora"
    dots = [(place, scale * value) for _, place, value in points]
    return [(title, scatter(title, dots, axis.title, name), note)]
