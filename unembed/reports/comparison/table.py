"""Tables of a comparison: runs and settings with their metrics, and the differences between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unembed.core.commands import command
from unembed.reports.comparison.entries import Entry
from unembed.reports.comparison.measuring import Compared, Difference, MetricValue, baseline_values, better
from unembed.reports.comparison.seeds import Setting, Spread, settings, spread
from unembed.reports.numbers import DASH, interval, number, shown, signed
from unembed.reports.tables import Cell, Line, Table
from unembed.reports.wording import measure

SMALLEST = 2000  # resamples: the smallest p value shown is 2 / 2000, for t-tests too


def tables(compared: Sequence[Compared], metrics: Sequence[str], resamples: int) -> list[Table]:
    """The table of all runs, with seeds of one setting as their mean; a table by seed; and the differences.

    The differences need two settings with the same test texts.
    """
    found = settings(compared, metrics)
    several = [one for setting in found if len(setting.runs) > 1 for one in setting.runs]
    made = [_of_settings(compared, found, metrics, resamples)]
    if several:
        made.append(_seed_by_seed(compared, several, metrics))
    others = [one for one in found[1:] if one.differences]
    if others:
        made.append(_differences(found[0], others, metrics, resamples, seeds=bool(several)))
    return made


def _of_settings(
    compared: Sequence[Compared], found: Sequence[Setting], metrics: Sequence[str], resamples: int
) -> Table:
    names = _fact_names(compared)
    lines = []
    for setting in found:
        if len(setting.runs) == 1:
            lines.append(_line(setting.runs[0], names, metrics))
        else:
            below = "; ".join(part for part in (setting.seeds, setting.runs[0].entry.apart) if part)
            facts = _mean_facts(setting)
            values = (spread_cell(key, setting.values[key]) for key in metrics)
            lines.append(Line(setting.label, below, (*(Cell(facts[name]) for name in names), *values)))
    baselines = _baselines(compared, metrics, names)
    notes = [
        f"Below a value, its 95 % interval over {_tested(compared)} test texts: {resamples:,} bootstrap resamples of "
        "the texts, percentiles; of exact matches, Wilson's. It does not tell how another training run would do.",
    ]
    if any(len(setting.runs) > 1 for setting in found):
        notes.append(
            "Of several seeds: the mean and, below it, ± the standard deviation over the seeds (n - 1); training time "
            "and queries are means, too."
        )
    if baselines:
        notes.append(
            "Nearest neighbour: the training text with the closest vector. A run keeps its metrics and not its texts, "
            f"so it has no bootstrap; {command('train', 'attack=nearest_neighbor')} makes a run with intervals of it."
        )
    warnings = tuple(_warnings(compared))
    return Table(
        "Runs side by side", _columns(names, metrics), (*lines, *baselines), len(names), warnings, tuple(notes)
    )


def _seed_by_seed(compared: Sequence[Compared], several: Sequence[Compared], metrics: Sequence[str]) -> Table:
    """Each run of the settings with several seeds, with its interval over the test texts."""
    names = _fact_names(compared)
    lines = tuple(_line(one, names, metrics) for one in several)
    return Table("Seed by seed", _columns(names, metrics), lines, len(names))


def _columns(names: Sequence[str], metrics: Sequence[str]) -> tuple[str, ...]:
    return ("run", *names, *(measure(key).title for key in metrics))


def _line(one: Compared, names: Sequence[str], metrics: Sequence[str]) -> Line:
    facts = _facts(one.entry)
    cells = (*(Cell(facts[name]) for name in names), *(value_cell(key, one.values[key]) for key in metrics))
    return Line(one.entry.label, one.entry.settings, cells)


def _fact_names(compared: Sequence[Compared]) -> list[str]:
    """The columns that describe a run; the defense only if there is one."""
    defended = any(one.entry.defense not in ("none", "unknown") for one in compared)
    return [name for name in _facts(compared[0].entry) if name != "defense" or defended]


def _warnings(compared: Sequence[Compared]) -> list[str]:
    reference = compared[0]
    size = len(reference.entry.results.recovered)
    cut = [(one.entry.label, number(one.entry.results.metrics, "partial")) for one in compared]
    return [
        f"CUT SHORT: a limit of queries ended {label} early for {texts:,.0f} of its texts."
        for label, texts in cut
        if texts is not None
    ] + [
        f"OTHER TEST TEXTS: {one.entry.label} was tested on {len(one.entry.results.recovered):,} texts, "
        f"{reference.entry.label} on {size:,}, and {one.common:,} are the same. Their metrics also differ because the "
        "texts do, so there is no paired difference between them."
        for one in compared[1:]
        if not one.paired
    ]


def _tested(compared: Sequence[Compared]) -> str:
    sizes = sorted({len(one.entry.results.recovered) for one in compared})
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


def _facts(entry: Entry) -> dict[str, str]:
    return {
        "attack": entry.attack,
        "parameters": shown("size", entry.parameters),
        "embedder": entry.embedder,
        "data": entry.data,
        "defense": entry.defense,
        "training": shown("seconds", entry.training_seconds),
        "queries": shown("count", entry.results.metrics.get("queries")),
    }


def _mean_facts(setting: Setting) -> dict[str, str]:
    """The shared properties of a setting's runs, and the means of their training times and queries."""
    entries = [one.entry for one in setting.runs]
    time = spread([entry.training_seconds for entry in entries]).mean
    asked = spread([number(entry.results.metrics, "queries") for entry in entries]).mean
    return _facts(entries[0]) | {"training": shown("seconds", time), "queries": shown("count", asked)}


def _baselines(compared: Sequence[Compared], metrics: Sequence[str], names: Sequence[str]) -> list[Line]:
    """A row for each distinct baseline: runs on the same vectors and texts share one."""
    lines: dict[tuple[Cell, ...], Line] = {}
    for one in compared:
        if one.entry.results.baseline is not None:
            found = baseline_values(one.entry.results.baseline, metrics)
            if any(_same(other, one, found) for other in compared):
                continue  # the nearest neighbour is one of the runs
            facts = _facts(one.entry) | {"attack": DASH, "parameters": DASH, "training": DASH, "queries": "0"}
            cells = (*(Cell(facts[name]) for name in names), *(value_cell(key, found[key]) for key in metrics))
            lines.setdefault(cells, Line("nearest neighbour", f"baseline of {one.entry.label}", cells))
    return [*lines.values()]


def _same(run: Compared, other: Compared, values: Mapping[str, MetricValue]) -> bool:
    """Whether a run has these values on the same test texts as ``other``."""
    alike = all(run.values[key].value == value.value for key, value in values.items())
    return alike and run.entry.texts == other.entry.texts


def value_cell(key: str, value: MetricValue) -> Cell:
    """A value with its interval below."""
    kind = measure(key).kind
    return Cell(shown(kind, value.value), () if value.interval is None else (interval(kind, value.interval),))


def spread_cell(key: str, found: Spread) -> Cell:
    """A mean with its standard deviation below."""
    kind = measure(key).kind
    if found.deviation is None:
        return Cell(shown(kind, found.mean))
    return Cell(shown(kind, found.mean), (f"± {shown('score' if kind == 'percent' else kind, found.deviation)}",))


def _differences(
    reference: Setting, others: Sequence[Setting], metrics: Sequence[str], resamples: int, *, seeds: bool
) -> Table:
    cells = [tuple(_difference_cell(key, one.differences[key], resamples, seeds) for key in metrics) for one in others]
    lines = [
        Line(one.label, one.runs[0].entry.apart if seeds else one.runs[0].entry.settings, own)
        for one, own in zip(others, cells, strict=True)
    ]
    tests = {found.over for one in others for found in one.differences.values() if found is not None}
    notes = []
    if "texts" in tests:
        notes.append(
            "Both attacks are resampled with the same texts (paired bootstrap), so the interval is narrower than those "
            "of the values suggest. It is over the test texts alone and does not cover the seed: a training with "
            "another seed may differ by more. Several seeds on both sides are tested over the seeds instead."
        )
    if "seeds" in tests:
        notes.append(
            "Over seeds: the difference of the means, with Welch's t-test and its 95 % interval, over trainings with "
            "other seeds; few seeds make it wide."
        )
    notes.append(
        "p: two-sided, of no difference, for each metric alone; coloured where it is below .05. Seeds of one setting "
        "are not tested against each other."
    )
    return Table(f"Difference to {reference.label}", _columns((), metrics), tuple(lines), notes=tuple(notes))


def _difference_cell(key: str, found: Difference | None, resamples: int, seeds: bool) -> Cell:
    if found is None:
        return Cell(DASH)
    kind = measure(key).kind
    low, high = (signed(kind, end) for end in found.interval)
    p = p_value(found.p, resamples if found.over == "texts" else SMALLEST)
    below = (f"{low} to {high}", p, *([f"over {found.over}"] if seeds else []))
    return Cell(signed(kind, found.value), below, better(key, found))


def p_value(p: float, resamples: int) -> str:
    """``p = .03``; the smallest p value that the resamples can give is a bound: ``p < .001``."""
    if p <= 2 / (resamples + 1):
        return f"p < {2 / resamples:.2g}".replace("0.", ".", 1)
    return f"p = {p:.2g}".replace("0.", ".", 1) if p < 1 else "p = 1"
