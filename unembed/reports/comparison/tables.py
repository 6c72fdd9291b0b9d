"""Tables and charts of a comparison: runs and settings with their metrics, differences between them, data sets across.

unembed compare runs/*                                                        # tables(), side_by_side(), charts()
unembed compare runs/*/evaluations/* columns=data metrics=bleu,exact_match    # grids()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from unembed.core.commands import command
from unembed.core.errors import InputError
from unembed.reports.charts import COLOURS, Chart, NamedValue, Series, line_chart, row_chart, scatter
from unembed.reports.comparison.entries import Entry, grouped, setting_and_texts
from unembed.reports.comparison.measuring import (
    Compared,
    Difference,
    MetricValue,
    Setting,
    Spread,
    baseline_values,
    better,
    settings,
)
from unembed.reports.numbers import DASH, interval, number, shown, signed
from unembed.reports.output import Cell, Line, Table, paragraphs
from unembed.reports.results import measure

SMALLEST = 2000  # resamples: the smallest p value shown is 2 / 2000, for t-tests too


def tables(compared: Sequence[Compared], metrics: Sequence[str], resamples: int) -> list[Table]:
    """The table of all runs, with seeds of one setting as their mean; a table by seed; and the differences.

    The differences need two settings with the same test texts.
    """
    by_setting = settings(compared, metrics)
    several = [run for one in by_setting if len(one.runs) > 1 for run in one.runs]
    # The columns that describe a run; the defense only if there is one.
    defended = any(one.entry.choice("defense") not in ("none", "unknown") for one in compared)
    names = [name for name in _facts(compared[:1]) if name != "defense" or defended]
    columns = ("run", *names, *(measure(key).title for key in metrics))
    lines = [_line(one.runs, one.label, one.distinct, names, metrics) for one in by_setting]
    baselines = _baselines(compared, metrics, names)
    sizes = [len(one.entry.results.recovered) for one in compared]
    notes = paragraphs("runs_notes", sizes=sizes, resamples=resamples, several=several, baselines=baselines)
    warnings = paragraphs("warnings", compared=compared, reference=compared[0].entry)
    made = [Table("Runs side by side", columns, (*lines, *baselines), len(names), warnings, notes)]
    if several:
        by_seed = [_line([one], one.entry.label, one.entry.settings, names, metrics) for one in several]
        made.append(Table("Seed by seed", columns, by_seed, len(names)))
    if others := [one for one in by_setting[1:] if one.differences]:
        made.append(_difference_table(by_setting[0], others, metrics, resamples, seeds=bool(several)))
    return made


def _line(runs: Sequence[Compared], title: str, below: str, names: Sequence[str], metrics: Sequence[str]) -> Line:
    facts = _facts(runs)
    values = (metric_cell(key, [one.values[key] for one in runs]) for key in metrics)
    return Line(title, below, (*(Cell(facts[name]) for name in names), *values))


def _facts(runs: Sequence[Compared]) -> dict[str, str]:
    """The shared properties of runs, and the means of their training times and queries."""
    entries = [one.entry for one in runs]
    time = Spread.of([entry.training_seconds for entry in entries]).mean
    queries = Spread.of([number(entry.results.metrics, "queries") for entry in entries]).mean
    return {
        "attack": entries[0].choice("attack"),
        "parameters": shown("size", entries[0].parameters),
        "embedder": entries[0].embedder,
        "data": entries[0].data,
        "defense": entries[0].choice("defense"),
        "training": shown("seconds", time),
        "queries": shown("count", queries),
    }


def metric_cell(key: str, values: Sequence[MetricValue]) -> Cell:
    """A value with its interval below; of several seeds, their mean with the standard deviation below; or a dash."""
    kind, spread = measure(key).kind, Spread.of([one.value for one in values])
    if len(values) == 1 and values[0].interval is not None:
        below = [interval(kind, values[0].interval)]
    elif spread.deviation is not None:
        below = [f"± {shown('score' if kind == 'percent' else kind, spread.deviation)}"]
    else:
        below = []
    return Cell(shown(kind, spread.mean), tuple(below))


def _baselines(compared: Sequence[Compared], metrics: Sequence[str], names: Sequence[str]) -> list[Line]:
    """A row for each distinct baseline: runs on the same vectors and texts share one."""
    lines: dict[tuple[Cell, ...], Line] = {}
    for one in compared:
        if one.entry.results.baseline is None:
            continue
        values = baseline_values(one.entry.results.baseline, metrics)
        known = {key: value.value for key, value in values.items()}
        same_texts = [other for other in compared if other.entry.texts == one.entry.texts]
        if any({key: other.values[key].value for key in metrics} == known for other in same_texts):
            continue  # the nearest neighbour is one of the runs
        facts = _facts([one]) | {"attack": DASH, "parameters": DASH, "training": DASH, "queries": "0"}
        cells = (*(Cell(facts[name]) for name in names), *(metric_cell(key, [values[key]]) for key in metrics))
        lines.setdefault(cells, Line("nearest neighbour", f"baseline of {one.entry.label}", cells))
    return [*lines.values()]


def _difference_table(
    reference: Setting, others: Sequence[Setting], metrics: Sequence[str], resamples: int, *, seeds: bool
) -> Table:
    lines = [
        Line(
            one.label,
            one.runs[0].entry.apart if seeds else one.runs[0].entry.settings,
            [_difference_cell(key, one.differences[key], resamples, seeds) for key in metrics],
        )
        for one in others
    ]
    tests = {difference.over for one in others for difference in one.differences.values() if difference is not None}
    notes = paragraphs("difference_notes", tests=tests)
    columns = ("run", *(measure(key).title for key in metrics))
    return Table(f"Difference to {reference.label}", columns, lines, notes=notes)


def _difference_cell(key: str, difference: Difference | None, resamples: int, seeds: bool) -> Cell:
    if difference is None:
        return Cell(DASH)
    kind = measure(key).kind
    ends = " to ".join(signed(kind, end) for end in difference.interval)
    p = p_value(difference.p, resamples if difference.over == "texts" else SMALLEST)
    below = (ends, p, f"over {difference.over}") if seeds else (ends, p)
    return Cell(signed(kind, difference.value), below, better(key, difference))


def p_value(p: float, resamples: int) -> str:
    """``p = .03``; the smallest p value that the resamples can give is a bound: ``p < .001``."""
    if p <= 2 / (resamples + 1):
        return f"p < {2 / resamples:.2g}".replace("0.", ".", 1)
    return f"p = {p:.2g}".replace("0.", ".", 1) if p < 1 else "p = 1"


# ----------------------------------------------------------------------------------------------------- data sets across


def check_grid(entries: Sequence[Entry]) -> None:
    """Check, before resampling, that each run has at most one entry per data set."""
    first: dict[tuple[Path, str], Entry] = {}
    for entry in entries:
        other = first.setdefault((_trained(entry), _data(entry)), entry)
        if other is not entry:
            raise InputError(
                f"columns=data: {other.label} and {entry.label} are of one run on one data set, {_data(entry)}; "
                "leave one of them out"
            )


def grids(compared: Sequence[Compared], metrics: Sequence[str]) -> list[Table]:
    """Tables for each metric: a row for each trained run, a column for each data set, in the given order.

    For transfer of an attack to other kinds of text (Chen et al. 2024, section 5 and appendix G). Runs that differ only
    in their seeds, with the same tests, share a row with their mean; a second table lists them one by one.
    """
    data = list(dict.fromkeys(_data(one.entry) for one in compared))
    tests: dict[Path, dict[str, Compared]] = {}
    for one in compared:
        tests.setdefault(_trained(one.entry), {})[_data(one.entry)] = one
    first = {run: next(iter(own.values())).entry for run, own in tests.items()}

    def shared(run: Path) -> object:
        """What seeds of one setting share: settings and texts of each test; None if unknown."""
        own = {name: setting_and_texts(one.entry) for name, one in tests[run].items()}
        return None if None in own.values() else own

    def line(runs: Sequence[Path], key: str) -> Line:
        title, below = runs[0].name, f"{first[runs[0]].choice('attack')}, {first[runs[0]].embedder}"
        if len(runs) > 1:
            title += f" and {len(runs) - 1} more"
            below += f", {len(runs)} seeds: {', '.join(str(first[run].seeds[0]) for run in runs)}"
        columns = ([tests[run][name].values[key] for run in runs if name in tests[run]] for name in data)
        return Line(title, below, [metric_cell(key, values) for values in columns])

    groups = grouped([*tests], shared, lambda run: first[run].seeds[0])
    several = [run for runs in groups if len(runs) > 1 for run in runs]
    notes = ["Values of two columns also differ because the texts do."]
    if several:
        notes.append("Of several seeds: the mean and, below it, ± the standard deviation over the seeds (n - 1).")
    made = []
    for key in metrics:
        title, columns = f"{measure(key).title} by data", ("run", *data)
        made.append(Table(title, columns, [line(runs, key) for runs in groups], notes=notes))
        if several:
            made.append(Table(f"{title}, seed by seed", columns, [line([run], key) for run in several]))
    return made


def _trained(entry: Entry) -> Path:
    """The trained run; for an evaluation, the one that its configuration names."""
    named = entry.results.config.get("run_dir")
    return Path(named) if isinstance(named, str) else entry.results.directory


def _data(entry: Entry) -> str:
    """The data set, with its languages if some were chosen."""
    node = entry.results.config.get("datamodule")
    chosen = [node.get(key) for key in ("test_languages", "languages")] if isinstance(node, dict) else []
    named: Sequence[object] = next((languages for languages in chosen if languages), [])
    return entry.data + (f" ({', '.join(map(str, named))})" if named else "")


# --------------------------------------------------------------------------------------------------------------- charts


class Axis(NamedTuple):
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


def _analysis(key: str) -> Callable[[Entry], float | None]:
    return lambda entry: number(entry.results.analyses, key)


AXES: Mapping[str, Axis] = {
    "training_texts": Axis("training texts, power of ten", _analysis("training_texts")),
    "parameters": Axis("parameters, power of ten", lambda entry: entry.parameters),
    "embedded_words": Axis("words of an embedded text", _analysis("embedded_words"), powers=False),
    "corpus_similarity": Axis("similarity of the corpora", _analysis("corpus_similarity"), powers=False),
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
    drawn = []
    for key in metrics:
        one = measure(key)
        rows = []
        for run in compared:
            if (value := run.values[key].value) is not None:
                name = run.entry.label + ("" if run.paired else " (other texts)")
                rows.append(NamedValue(name, shown(one.kind, value), value, run.values[key].interval))
        if len(rows) > 1:
            note = "A dot a run, with its 95 % interval over the test texts where it has one."
            drawn.append((one.title, row_chart(f"{one.title}, run by run", rows), note))
    return drawn


def charts(compared: Sequence[Compared], metrics: Sequence[str], chosen: str | None) -> list[Chart]:
    """A chart for each metric against ``chosen``, or against each property in which the runs differ."""
    drawn = []
    compared = [one.mean for one in settings(compared, metrics)]
    for name, axis in AXES.items():
        if chosen in (None, name):
            fitting = _fitting(name, [one.entry for one in compared])
            draw = _scatter if name == "corpus_similarity" else _lines
            for key in metrics:
                points = [
                    (one.entry, place, value)
                    for one in compared
                    if one.entry in fitting
                    and (place := axis.place(one.entry)) is not None
                    and (value := one.values[key].value) is not None
                ]
                if len({place for _, place, _ in points}) > 1:
                    drawn += draw(points, key, axis)
    return drawn


def _fitting(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """The runs comparable in one chart: for corpus similarity any, otherwise those with the same test texts."""
    return [entry for entry in entries if name == "corpus_similarity" or entry.texts == entries[0].texts]


def _lines(points: Sequence[tuple[Entry, float, float]], key: str, axis: Axis) -> list[Chart]:
    """One line per class of attack and embedder, so that only sizes of the same attack are connected."""
    several = {part: len({getattr(entry, part) for entry, _, _ in points}) > 1 for part in ("attack_class", "embedder")}
    parts = [part for part, differs in several.items() if differs] or ["embedder"]
    lines: dict[str, list[tuple[float, float]]] = {}
    for entry, place, value in points:
        lines.setdefault(", ".join(getattr(entry, part) for part in parts), []).append((place, value))
    series = [Series(name, sorted(line), dots=True) for name, line in lines.items()]
    title = f"{measure(key).title} by {axis.title.partition(',')[0]}"
    note = "One dot a run, or the mean of its seeds, on the reference's test texts; one line an attack and embedder."
    return [
        (title, line_chart(title, series[start : start + COLOURS], axis.title), note)
        for start in range(0, len(series), COLOURS)
    ]


def _scatter(points: Sequence[tuple[Entry, float, float]], key: str, axis: Axis) -> list[Chart]:
    """One dot a run; the y axis runs from 0 to 100."""
    one = measure(key)
    scale, name = (100.0, f"{one.title}, times 100") if one.kind == "cosine" else (1.0, one.title)
    if one.kind not in ("percent", "score", "cosine"):
        return []
    note = "One dot a run: Spearman's correlation of 4-grams in training and test text, lower for a small test set."
    title = f"{one.title} by similarity of the corpora"
    dots = [(place, scale * value) for _, place, value in points]
    return [(title, scatter(title, dots, axis.title, name), note)]
