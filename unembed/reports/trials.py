"""Repeated trials of one evaluation with different random numbers: means, standard errors, and a t-test.

    python evaluate.py run=<dir> attack/decoding=sampling trials=10                  # writes trials.json
    python evaluate.py run=<dir> attack/decoding=sampling trials=10 compare=<dir>    # and compares with others
    python evaluate.py run=<dir> compare=<dir>                                       # compares finished trials

trials.json: {"bleu": {"mean": 31.2, "standard_error": 0.04, "values": [31.1, 31.4, ...]}, ...}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter

from unembed.core.atomic_files import read_json, write_json
from unembed.core.commands import command
from unembed.core.errors import InputError
from unembed.reports.comparison.measuring import Spread, welch
from unembed.reports.output import Cell, Line, Table, plain, print_values, terminal
from unembed.reports.results import measure, ordered
from unembed.runs import layout
from unembed.runs.files import read_rows, validated

TRIALS, T_TEST = "trials.json", "t_test.json"
TITLE = "Two-sided unpaired t-test between trials (Welch); * p < 0.05, not corrected for many metrics"
UNTESTED = {"examples", "queries", "queries_per_target", "seconds"}  # metrics that are not compared

# Their squares would overflow.
_Number = Annotated[float, Field(ge=-1e150, le=1e150)]


class Summary(BaseModel):
    """A metric of several trials: mean, standard error of the mean (n - 1) and values; None if a value is None."""

    mean: _Number | None
    standard_error: Annotated[_Number, Field(ge=0)] | None
    values: list[_Number | None]


def write_trials(output: Path, count: int) -> None:
    """Write trials.json from the metrics.json of ``count`` trials."""
    metrics = [read_json(layout.trial_folder(output, n) / layout.METRICS) for n in range(count)]
    write_json(output / TRIALS, {key: summary([one[key] for one in metrics]).model_dump() for key in metrics[0]})


def summary(values: Sequence[float | None]) -> Summary:
    """The summary of a metric; None has no mean, and a single trial no standard error."""
    spread = Spread.of(values)
    error = None if spread.deviation is None else spread.deviation / math.sqrt(len(values))
    return Summary(mean=spread.mean, standard_error=error, values=list(values))


def find(directory: Path, key: str) -> Path:
    """The evaluation that ``directory`` names: itself, or the newest evaluation with trials if it is a run."""
    if not directory.is_dir():
        raise InputError(f"{key}={directory}: there is no such directory")
    if (directory / TRIALS).is_file():
        return directory
    within = sorted((directory / "evaluations").glob(f"*/{TRIALS}"), key=lambda path: path.stat().st_mtime)
    if within:
        return within[-1].parent
    raise InputError(
        f"{key}={directory}: no {TRIALS} in it or in its evaluations; make one with "
        + command("evaluate", "attack/decoding=sampling", "trials=10", run=directory)
    )


class TrialDifference(NamedTuple):
    """A metric of two evaluations: its summaries, Welch's t and its two-sided p value, None if neither side varies."""

    key: str
    one: Summary
    other: Summary
    t: float | None
    p: float | None


def differences(one: Mapping[str, Summary], other: Mapping[str, Summary]) -> list[TrialDifference]:
    """Two-sided unpaired t-tests between the trials of two evaluations, one per metric, uncorrected.

    Zhu et al. (2024) only say unpaired. This is Welch's test, which does not assume equal variances.
    """
    tests = []
    for key in (metric.key for metric in ordered(one) if metric.key in other and metric.key not in UNTESTED):
        if None not in (one[key].standard_error, other[key].standard_error):  # null, or a single trial
            result = welch(one[key].values, other[key].values)
            t, p = (None, None) if result is None else (float(result.statistic), float(result.pvalue))
            tests.append(TrialDifference(key, one[key], other[key], t, p))
    return tests


def compare(one: Path, other: Path) -> None:
    """Print the differences between two evaluations with trials, and write them to t_test.json of the first."""
    lines, values = [], {}
    for test in differences(_read(one), _read(other)):
        digits = 4 if measure(test.key).kind == "cosine" else 2
        difference = (test.one.mean or 0.0) - (test.other.mean or 0.0)
        values[test.key] = {"difference": difference, "t": test.t, "p": test.p}
        means = (f"{side.mean:.{digits}f} ± {side.standard_error:.3g}" for side in (test.one, test.other))
        p = "no variance" if test.p is None else f"{test.p:.3g}{' *' if test.p < 0.05 else ''}"
        cells = (*means, f"{difference:.{digits}f}", p)
        lines.append(Line(measure(test.key).title, "", [*map(Cell, cells)]))
    write_json(one / T_TEST, {"other": str(other), **values})
    console = terminal()
    print_values(Table(TITLE, ("metric", "this", "the other", "difference", "p"), lines), console)
    console.print(plain(f"this: {one}\nthe other: {other}"), soft_wrap=True)
    texts = [[row.reference for row in read_rows(path / layout.PREDICTIONS)] for path in (one, other)]
    if texts[0] != texts[1]:
        console.print(plain("NOTE: THE TWO WERE TESTED ON DIFFERENT TEXTS; a difference may be that of the texts."))


def _read(evaluation: Path) -> dict[str, Summary]:
    path = evaluation / TRIALS
    return validated(TypeAdapter(dict[str, Summary]), read_json(path), path)
