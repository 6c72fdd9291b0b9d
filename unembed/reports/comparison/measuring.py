"""Metrics of several runs with confidence intervals, and differences between runs or between settings.

    entries = read_entries([Path("runs/a"), Path("runs/b")])
    compared = compare(entries, ["bleu", "token_f1"], resamples=2000, seed=0)      # the first entry is the reference
    found = settings(compared, ["bleu"])           # seeds of one setting together
    found[1].differences["bleu"]                   # from found[0]

Intervals are 95 % percentile bootstraps over examples. Shares of texts (exact match) have Wilson's interval, which is
not empty at 0 and 100 %. All resampling uses one seed, so that attacks on the same texts share their resamples.

A paired bootstrap over test texts covers the choice of texts, not the choice of the seed: two seeds of one setting may
well differ significantly. So seeds of one setting are not tested against each other, and two settings with several
seeds each are tested over the seeds, by Welch's t-test.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean
from unembed.metrics.base import Measured
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import TextMetric, metric_of
from unembed.metrics.statistics import Floats, Interval, Share, interval, resampled_sums, significance
from unembed.reports.comparison.entries import Entry, grouped, setting_and_texts
from unembed.reports.numbers import number
from unembed.reports.results import as_scored, measure

TOLERANCE = 5e-3  # allowed difference between metrics.json and predictions.jsonl, below the precision of all tables


class MetricValue(NamedTuple):
    """A metric of one run; value None if it does not apply, interval None if it is not a sum over examples."""

    value: float | None
    interval: Interval | None = None

    def plain(self) -> dict[str, float | None]:
        """Plain values for JSON."""
        low, high = self.interval or (None, None)
        return {"value": self.value, "low": low, "high": high}


class Difference(NamedTuple):
    """A value minus the reference's on the same texts, with the two-sided p value of no difference.

    Interval and p value are over test texts (paired bootstrap) or over seeds (Welch's t-test).
    """

    value: float
    interval: Interval
    p: float
    over: Literal["texts", "seeds"] = "texts"


class Compared(NamedTuple):
    """A run compared with the reference: values by metric; ``resampled``, by metric, the resampled values followed by
    the value itself, (resamples + 1,), of which runs on the same texts share the resamples; whether its test texts are
    those of the reference (``paired``), and how many they have in ``common``.
    """

    entry: Entry
    values: Mapping[str, MetricValue]
    resampled: Mapping[str, Floats]
    paired: bool
    common: int


def compare(entries: Sequence[Entry], metrics: Sequence[str], resamples: int, seed: int) -> list[Compared]:
    """Measure all entries; the first is the reference."""
    known = {key for entry in entries for key in entry.results.metrics}
    for name in metrics:
        if name not in known:
            raise InputError(f"metrics: no run has {name!r}; {did_you_mean(name, known)}")
    for entry in entries:
        _check_predictions(entry)
    measured = [_measured(entry, metrics) for entry in entries]
    reference = entries[0].texts
    compared = []
    for entry, own in zip(entries, measured, strict=True):
        samples = _resampled(own, resamples, seed)
        values = {key: MetricValue(number(entry.results.metrics, key)) for key in metrics}
        values |= {key: values[key]._replace(interval=one.interval(samples[key])) for key, one in own.items()}
        # The resampled values come from predictions.jsonl, so the value of a difference must too.
        with_value = {key: np.append(samples[key], one.value) for key, one in own.items()}
        paired, common = entry.texts == reference, len(entry.texts & reference)
        compared.append(Compared(entry, values, with_value, paired, common))
    return compared


def _check_predictions(entry: Entry) -> None:
    """Raise InputError if predictions.jsonl does not have the examples that metrics.json counts."""
    indices = [one.row.index for one in entry.results.recovered]
    path = entry.results.directory / "predictions.jsonl"
    counted = number(entry.results.metrics, "examples")
    if counted != len(indices):
        size = "no number of examples" if counted is None else f"{counted:.0f} examples"
        raise InputError(f"{path}: {len(indices)} predictions, but metrics.json beside it says {size}")
    if len(set(indices)) != len(indices):
        raise InputError(f"{path}: an index occurs twice")


def _measured(entry: Entry, metrics: Sequence[str]) -> dict[str, Measured[Scored]]:
    """Each metric of the run that predictions.jsonl reproduces, examples ordered by index."""
    rows = sorted((one.row for one in entry.results.recovered), key=lambda row: row.index)
    scored = [as_scored(row) for row in rows]
    measured, own = {}, _own_metrics(entry, metrics)
    for key in metrics:
        value, metric = number(entry.results.metrics, key), metric_of(key) or own.get(key)
        if value is None or metric is None or metric.needs == "models" or not metric.summable:
            continue
        try:
            one = Measured.of(metric, scored)
        except ValueError as error:
            raise InputError(f"{entry.results.directory / 'predictions.jsonl'}: {error}") from error
        if abs(one.value - value) <= TOLERANCE:
            measured[key] = one
        elif metric.needs == "texts":
            raise InputError(
                f"{entry.results.directory}: predictions.jsonl gives {key}={one.value:.6g}, metrics.json says "
                f"{value:.6g}: they are not of one test; {command('evaluate', 'run=<dir>')} makes both anew"
            )
    return measured


def _own_metrics(entry: Entry, keys: Sequence[str]) -> dict[str, TextMetric]:
    """The user's own metrics of a run, rebuilt from its config.yaml; imports nothing if none of ``keys`` is one."""
    if not any(one.key in keys for one in entry.results.described):
        return {}
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from unembed.runs.trust import check_trusted
    from unembed.scoring.models import own_metrics

    named = (entry.results.config.get("scoring") or {}).get("metrics") or {}
    config = OmegaConf.create({"scoring": {"metrics": named}})
    check_trusted(config, entry.results.directory)
    return {metric.description.key: metric for metric in own_metrics(instantiate(config.scoring.metrics))}


def _resampled(measured: Mapping[str, Measured[Scored]], resamples: int, seed: int) -> dict[str, Floats]:
    """Resampled values, (resamples,) per metric; all metrics of a run share the resamples."""
    if not measured:
        return {}
    sums = resampled_sums(np.hstack([one.parts for one in measured.values()]), resamples, seed)
    ends = np.cumsum([one.parts.shape[1] for one in measured.values()])[:-1]
    columns = zip(measured.items(), np.split(sums, ends, axis=1), strict=True)
    return {key: one.metric.combine(own) for (key, one), own in columns}


def baseline_values(metrics: Mapping[str, Any], keys: Sequence[str]) -> dict[str, MetricValue]:
    """The metrics of baseline.json; without its texts, only shares of texts have an interval."""
    values = {key: MetricValue(number(metrics, key)) for key in keys}
    if size := round(number(metrics, "examples") or 0):
        for key in ("exact_match", "exact_match_no_punctuation"):
            if key in values and (value := values[key].value) is not None:
                values[key] = MetricValue(value, Share(round(value / 100 * size), size).interval)
    return values


def text_difference(own: Sequence[Compared], reference: Sequence[Compared], key: str) -> Difference | None:
    """The difference of the means of two sets of runs on the same texts, with the interval over texts.

    None if either value is missing.
    """
    if any(key not in one.resampled for one in (*own, *reference)):
        return None
    sides = [np.mean([one.resampled[key] for one in runs], axis=0) for runs in (own, reference)]
    differences = sides[0] - sides[1]
    ends, p = interval(differences[:-1]), significance(differences[:-1])
    value = float(differences[-1])
    return None if ends is None or p is None or math.isnan(value) else Difference(value, ends, p)


def seed_difference(own: Sequence[Compared], reference: Sequence[Compared], key: str) -> Difference | None:
    """Welch's t-test, two-sided; None if a value is missing, or if neither side has varying values."""
    one, other = ([run.values[key].value for run in runs] for runs in (own, reference))
    result = welch(one, other)
    if result is None:
        return None
    low, high = result.confidence_interval(0.95)
    difference = (Spread.of(one).mean or 0.0) - (Spread.of(other).mean or 0.0)
    return Difference(difference, Interval(float(low), float(high)), float(result.pvalue), over="seeds")


def welch(one: Sequence[float | None], other: Sequence[float | None]) -> Any:
    """Scipy's result of Welch's two-sided t-test; None if a value is missing, or if neither side has varying values."""
    from scipy.stats import ttest_ind

    if None in (*one, *other) or len(set(one)) == len(set(other)) == 1:
        return None
    result = ttest_ind(one, other, equal_var=False)
    return None if math.isnan(result.pvalue) else result


def better(key: str, difference: Difference) -> bool | None:
    """Whether a difference is an improvement; None if p >= .05 or the metric has no direction."""
    if difference.p >= 0.05 or measure(key).more is None:
        return None
    return (difference.value > 0) == (measure(key).more == "higher")


class Spread(NamedTuple):
    """Mean of a metric over seeds and its sample standard deviation (n - 1), which is None for a single run."""

    mean: float | None
    deviation: float | None = None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread:
        """Mean and standard deviation; both None if a value is missing."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(None)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


class Setting(NamedTuple):
    """The runs of one setting, one per seed in the given order, compared with the reference's setting.

    ``differences`` by metric; None if either value is missing; empty if the texts differ or both are seeds of one
    setting.
    """

    runs: Sequence[Compared]
    values: Mapping[str, Spread]
    differences: Mapping[str, Difference | None]

    @property
    def label(self) -> str:
        """The label of the first run, and the number of the others."""
        more = len(self.runs) - 1
        return self.runs[0].entry.label + (f" and {more} more" if more else "")

    @property
    def distinct(self) -> str:
        """What distinguishes it: of several runs first the seeds, and whether they are of training or test."""
        entry = self.runs[0].entry
        if len(self.runs) == 1:
            return entry.settings
        training, test = zip(*(one.entry.seeds for one in self.runs), strict=True)
        of, seeds = ("", training) if len(set(training)) > 1 else (" of the test", test)
        listed = f"{len(self.runs)} seeds{of}: {', '.join(map(str, seeds))}"
        return f"{listed}; {entry.apart}" if entry.apart else listed

    @property
    def mean(self) -> Compared:
        """The first run with the means of the setting's values."""
        if len(self.runs) == 1:
            return self.runs[0]
        return self.runs[0]._replace(values={key: MetricValue(one.mean) for key, one in self.values.items()})


def settings(compared: Sequence[Compared], metrics: Sequence[str]) -> list[Setting]:
    """The runs grouped by setting; the setting of the first run is the reference."""
    groups = grouped(compared, lambda one: setting_and_texts(one.entry), lambda one: one.entry.seeds)
    return [
        Setting(
            runs,
            {key: Spread.of([one.values[key].value for one in runs]) for key in metrics},
            _differences(runs, groups[0], metrics),
        )
        for runs in groups
    ]


def _differences(
    own: Sequence[Compared], reference: Sequence[Compared], metrics: Sequence[str]
) -> dict[str, Difference | None]:
    first, other = own[0].entry, reference[0].entry
    several = len(own) > 1 or len(reference) > 1
    seeds_alone = first.setting is not None and first.setting == other.setting
    if not own[0].paired or (seeds_alone and (several or first.seeds != other.seeds)):
        return {}
    test = seed_difference if len(own) > 1 and len(reference) > 1 else text_difference
    return {key: test(own, reference, key) for key in metrics}
