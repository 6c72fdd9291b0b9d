"""Metrics of several runs with confidence intervals, and paired differences between runs on the same texts.

    entries = read_entries([Path("runs/a"), Path("runs/b")])
    compared = compare(entries, ["bleu", "token_f1"], resamples=2000, seed=0)      # the first entry is the reference

Intervals are 95 % percentile bootstraps over examples. Shares of texts (exact match) have Wilson's interval, which is
not empty at 0 and 100 %. All resampling uses one seed, so that attacks on the same texts share their resamples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean
from unembed.metrics.base import Measured
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import metric_of
from unembed.metrics.statistics import Floats, Interval, interval, resampled_sums, significance, wilson
from unembed.reports.comparison.entries import Entry
from unembed.reports.comparison.own_metrics import own_metrics_of
from unembed.reports.numbers import number
from unembed.reports.results import as_scored
from unembed.reports.wording import measure

TOLERANCE = 5e-3  # allowed difference between metrics.json and predictions.jsonl, below the precision of all tables


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric of one run; value None if it does not apply, interval None if it is not a sum over examples."""

    value: float | None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A value minus the reference's on the same texts, with the two-sided p value of no difference.

    Interval and p value are over test texts (paired bootstrap) or over seeds (Welch's t-test).
    """

    value: float
    interval: Interval
    p: float
    over: Literal["texts", "seeds"] = "texts"


@dataclass(frozen=True, slots=True)
class Compared:
    """A run compared with the reference.

    Attributes:
        entry: The run.
        values: By metric.
        differences: By metric, over the test texts; None if either value is missing; empty if the texts differ.
        paired: Whether its test texts are those of the reference.
        common: Number of test texts shared with the reference.
        resampled: By metric, the resampled values followed by the value itself, (resamples + 1,); runs on the same
            texts share their resamples.
    """

    entry: Entry
    values: Mapping[str, MetricValue]
    differences: Mapping[str, Difference | None]
    paired: bool
    common: int
    resampled: Mapping[str, Floats] = field(default_factory=dict)


def check_metrics(entries: Sequence[Entry], metrics: Sequence[str]) -> None:
    """Raise InputError if no run has a requested metric."""
    known = {key for entry in entries for key in entry.results.metrics}
    for name in metrics:
        if name not in known:
            raise InputError(f"metrics: no run has {name!r}; {did_you_mean(name, known)}")


def check_predictions(entries: Sequence[Entry]) -> None:
    """Raise InputError if predictions.jsonl does not have the examples that metrics.json counts."""
    for entry in entries:
        indices = [one.row.index for one in entry.results.recovered]
        path = entry.results.directory / "predictions.jsonl"
        counted = number(entry.results.metrics, "examples")
        if counted != len(indices):
            said = "no number of examples" if counted is None else f"{counted:.0f} examples"
            raise InputError(f"{path}: {len(indices)} predictions, but metrics.json beside it says {said}")
        if len(set(indices)) != len(indices):
            raise InputError(f"{path}: an index occurs twice")


def compare(entries: Sequence[Entry], metrics: Sequence[str], resamples: int, seed: int) -> list[Compared]:
    """Compare all entries with the first.

    Raises:
        InputError: An unknown metric, or predictions that do not reproduce metrics.json; raised before resampling.
    """
    check_metrics(entries, metrics)
    check_predictions(entries)
    sums = [_sums(entry, metrics) for entry in entries]
    all_resampled = [_resampled(one, resamples, seed) for one in sums]
    texts = [entry.texts for entry in entries]
    compared: list[Compared] = []
    for entry, own, resampled, read in zip(entries, sums, all_resampled, texts, strict=True):
        values = {key: _value(entry, key, own.get(key), resampled.get(key)) for key in metrics}
        # The resampled values come from predictions.jsonl, so the value of a difference must too.
        kept = {key: np.append(resampled[key], own[key].value) for key in own}
        one = Compared(entry, values, {}, read == texts[0], len(read & texts[0]), kept)
        first = compared[0] if compared else one
        differences = {key: text_difference([one], [first], key) for key in metrics} if one.paired else {}
        compared.append(replace(one, differences=differences))
    return compared


def text_difference(own: Sequence[Compared], reference: Sequence[Compared], key: str) -> Difference | None:
    """The difference of the means of two sets of runs on the same texts, with the interval over texts.

    None if either value is missing.
    """
    if any(key not in one.resampled for one in (*own, *reference)):
        return None
    sides = [np.mean([one.resampled[key] for one in runs], axis=0) for runs in (own, reference)]
    resampled = sides[0] - sides[1]
    return _difference(float(resampled[-1]), resampled[:-1])


def baseline_values(metrics: Mapping[str, Any], keys: Sequence[str]) -> dict[str, MetricValue]:
    """The metrics of baseline.json; without its texts, only shares of texts have an interval."""
    found = {}
    for key in keys:
        value, size = number(metrics, key), number(metrics, "examples")
        share = key in ("exact_match", "exact_match_no_punctuation") and value is not None and size
        found[key] = MetricValue(value, _wilson(value, round(size)) if share and value is not None and size else None)
    return found


def _sums(entry: Entry, metrics: Sequence[str]) -> dict[str, Measured[Scored]]:
    """Each metric of the run that predictions.jsonl reproduces, examples ordered by index."""
    rows = sorted((one.row for one in entry.results.recovered), key=lambda row: row.index)
    scored = [as_scored(row) for row in rows]
    found, own = {}, own_metrics_of(entry, metrics)
    for key in metrics:
        value, metric = number(entry.results.metrics, key), metric_of(key) or own.get(key)
        if value is None or metric is None or metric.needs == "models" or not metric.summable:
            continue
        try:
            measured = Measured.of(metric, scored)
        except ValueError as error:
            raise InputError(f"{entry.results.directory / 'predictions.jsonl'}: {error}") from error
        if abs(measured.value - value) <= TOLERANCE:
            found[key] = measured
        elif metric.needs == "texts":
            raise InputError(
                f"{entry.results.directory}: predictions.jsonl gives {key}={measured.value:.6g}, metrics.json says "
                f"{value:.6g}: they are not of one test; {command('evaluate', 'run=<dir>')} makes both anew"
            )
    return found


def _resampled(sums: Mapping[str, Measured[Scored]], resamples: int, seed: int) -> dict[str, Floats]:
    """Resampled values, (resamples,) per metric; all metrics of a run share the resamples."""
    if not sums:
        return {}
    resampled = resampled_sums(np.hstack([one.parts for one in sums.values()]), resamples, seed)
    found, start = {}, 0
    for key, one in sums.items():
        columns = one.parts.shape[1]
        found[key] = one.metric.combine(resampled[:, start : start + columns])
        start += columns
    return found


def _value(entry: Entry, key: str, sums: Measured[Scored] | None, resampled: Floats | None) -> MetricValue:
    value = number(entry.results.metrics, key)
    if value is None or sums is None or resampled is None:
        return MetricValue(value)
    return MetricValue(value, sums.interval(resampled))


def _wilson(percent: float, size: int) -> Interval:
    low, high = wilson(round(percent / 100 * size), size)
    return Interval(100 * low, 100 * high)


def _difference(value: float, resampled: Floats) -> Difference | None:
    reach, p = interval(resampled), significance(resampled)
    return None if reach is None or p is None or math.isnan(value) else Difference(value, reach, p)


def better(key: str, difference: Difference) -> bool | None:
    """Whether a difference is an improvement; None if p >= .05 or the metric has no direction."""
    if difference.p >= 0.05 or measure(key).more is None:
        return None
    return (difference.value > 0) == (measure(key).more == "higher")
