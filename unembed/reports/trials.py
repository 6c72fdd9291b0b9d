"""Repeated trials of one evaluation with different random numbers: means, standard errors, and a t-test.

    python evaluate.py run=<dir> attack/decoding=sampling trials=10                  # writes trials.json
    python evaluate.py run=<dir> attack/decoding=sampling trials=10 compare=<dir>    # and compares with others
    python evaluate.py run=<dir> compare=<dir>                                       # compares finished trials

trials.json: {"bleu": {"mean": 31.2, "standard_error": 0.04, "values": [31.1, 31.4, ...]}, ...}
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from unembed.core.atomic_files import read_json, write_json
from unembed.core.commands import command
from unembed.core.errors import InputError
from unembed.reports.output import Cell, Line, Table, plain, print_values, terminal
from unembed.reports.wording import measure, ordered
from unembed.runs import layout
from unembed.runs.files import read_lines, validated

TRIALS, T_TEST = "trials.json", "t_test.json"
TITLE = "Two-sided unpaired t-test between trials (Welch); * p < 0.05, not corrected for many metrics"
UNTESTED = {"examples", "queries", "queries_per_target", "seconds"}  # metrics that are not compared

# Their squares would overflow.
_Number = Annotated[float, Field(ge=-1e150, le=1e150)]


class Summary(BaseModel):
    """The result of ``summary`` for a metric, read from an untrusted trials.json."""

    mean: _Number | None
    standard_error: Annotated[_Number, Field(ge=0)] | None
    values: list[_Number | None]


class _Referring(BaseModel):
    """The part of a line of predictions.jsonl that is compared."""

    reference: str


_SUMMARIES = TypeAdapter(dict[str, Summary])


def write_trials(output: Path, count: int) -> None:
    """Write trials.json from the metrics.json of ``count`` trials."""
    metrics = [read_json(layout.trial_folder(output, n) / layout.METRICS) for n in range(count)]
    write_json(output / TRIALS, {key: summary([one[key] for one in metrics]) for key in metrics[0]})


def summary(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard error of the mean (sample, n - 1) and values; null if a value is null."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"mean": None, "standard_error": None, "values": list(values)}
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "standard_error": error, "values": known}


def find(directory: Path, key: str) -> Path:
    """The evaluation that ``directory`` names: itself, or the newest evaluation with trials if it is a run.

    Raises:
        InputError: There is none; ``key`` is the setting that named the directory.
    """
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


@dataclass(frozen=True, slots=True)
class TrialDifference:
    """A metric of two evaluations: mean and standard error of the trials of each, Welch's t and its two-sided p value.

    ``t`` and ``p`` are None if neither side varies.
    """

    key: str
    one: tuple[float, float]
    other: tuple[float, float]
    t: float | None
    p: float | None


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[TrialDifference]:
    """Two-sided unpaired t-tests between the trials of two evaluations, one per metric, uncorrected.

    Zhu et al. (2024) only say unpaired. This is Welch's test, which does not assume equal variances.

    Args:
        one: Content of a trials.json.
        other: Content of another trials.json.
    """
    from scipy.stats import ttest_ind

    tests = []
    for key in (one.key for one in ordered(one) if one.key in other and one.key not in UNTESTED):
        pair = one[key], other[key]
        if any(side["standard_error"] is None or side["mean"] is None or None in side["values"] for side in pair):
            continue  # null, or a single trial
        means = [(float(side["mean"]), float(side["standard_error"])) for side in pair]
        t = p = None
        if any(error > 0 for _, error in means):
            result = ttest_ind(pair[0]["values"], pair[1]["values"], equal_var=False)
            t, p = (float(value) if math.isfinite(value) else None for value in (result.statistic, result.pvalue))
        tests.append(TrialDifference(key, means[0], means[1], t, p))
    return tests


def compare(one: Path, other: Path) -> None:
    """Print the differences between two evaluations with trials, and write them to t_test.json of the first."""
    tests = differences(_read(one), _read(other))
    values = {test.key: {"difference": test.one[0] - test.other[0], "t": test.t, "p": test.p} for test in tests}
    write_json(one / T_TEST, {"other": str(other), **values})
    lines = []
    for test in tests:
        means = (f"{_digits(test.key, mean)} ± {error:.3g}" for mean, error in (test.one, test.other))
        p = "no variance" if test.p is None else f"{test.p:.3g}{' *' if test.p < 0.05 else ''}"
        difference = _digits(test.key, test.one[0] - test.other[0])
        lines.append(Line(measure(test.key).title, "", tuple(map(Cell, (*means, difference, p)))))
    console = terminal()
    print_values(Table(TITLE, ("metric", "this", "the other", "difference", "p"), tuple(lines)), console)
    console.print(plain(f"this: {one}\nthe other: {other}"), soft_wrap=True)
    if _references(one) != _references(other):
        console.print(plain("NOTE: THE TWO WERE TESTED ON DIFFERENT TEXTS; a difference may be that of the texts."))


def _digits(key: str, value: float) -> str:
    return f"{value:.4f}" if measure(key).kind == "cosine" else f"{value:.2f}"


def _read(evaluation: Path) -> dict[str, Any]:
    path = evaluation / TRIALS
    return {key: one.model_dump() for key, one in validated(_SUMMARIES, read_json(path), path).items()}


def _references(evaluation: Path) -> list[str]:
    return [row.reference for row in read_lines(evaluation / layout.PREDICTIONS, _Referring)]
