"""Means and standard deviations over runs that differ only in their seeds, and tests between settings.

    found = settings(compared, ["bleu"])            # compared: as comparison.compare gives it
    found[0].runs, found[0].values["bleu"]         # three runs; Spread(mean=31.2, deviation=0.4)
    found[1].differences["bleu"]                    # from found[0]: of means over seeds, by Welch's t-test

A paired bootstrap over test texts covers the choice of texts, not the choice of the seed: two seeds of one setting may
well differ significantly. So seeds of one setting are not tested against each other, and two settings with several
seeds each are tested over the seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from unembed.metrics.statistics import Interval
from unembed.reports.comparison.entries import Entry
from unembed.reports.comparison.measuring import Compared, Difference, MetricValue, text_difference


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean of a metric over seeds and its sample standard deviation (n - 1), which is None for a single run."""

    mean: float | None
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The runs of one setting, compared with the reference's setting.

    Attributes:
        runs: One per seed, in the given order.
        values: By metric.
        differences: From the reference's setting, by metric; None if either value is missing; empty if the texts differ
            or both are seeds of one setting.
    """

    runs: tuple[Compared, ...]
    values: Mapping[str, Spread]
    differences: Mapping[str, Difference | None]

    @property
    def label(self) -> str:
        """The label of the first run, and the number of the others."""
        more = len(self.runs) - 1
        return self.runs[0].entry.label + (f" and {more} more" if more else "")

    @property
    def seeds(self) -> str:
        """The seeds, and whether they are of training or test; empty for a single run."""
        if len(self.runs) == 1:
            return ""
        trained = [one.entry.seeds[0] for one in self.runs]
        if len(set(trained)) > 1:
            return f"{len(self.runs)} seeds: {', '.join(map(str, trained))}"
        return f"{len(self.runs)} seeds of the test: {', '.join(str(one.entry.seeds[1]) for one in self.runs)}"


def settings(compared: Sequence[Compared], metrics: Sequence[str]) -> list[Setting]:
    """The runs grouped by setting; the setting of the first run is the reference."""
    groups = [[compared[place] for place in places] for places in grouped([one.entry for one in compared])]
    return [Setting(tuple(own), _spreads(own, metrics), _differences(own, groups[0], metrics)) for own in groups]


def grouped(entries: Sequence[Entry]) -> list[list[int]]:
    """Indices of the entries of each setting: the same test texts, and each seed once."""
    groups: list[list[int]] = []
    for place, entry in enumerate(entries):
        found = next((group for group in groups if _joins(entry, [entries[other] for other in group])), None)
        if found is None:
            groups.append([place])
        else:
            found.append(place)
    return groups


def means(found: Sequence[Setting]) -> list[Compared]:
    """One entry for each setting with the means of its values."""
    return [
        one.runs[0]
        if len(one.runs) == 1
        else replace(one.runs[0], values={key: MetricValue(spread.mean) for key, spread in one.values.items()})
        for one in found
    ]


def _joins(entry: Entry, group: Sequence[Entry]) -> bool:
    alike = entry.setting is not None and entry.setting == group[0].setting and entry.texts == group[0].texts
    return alike and entry.seeds not in [other.seeds for other in group]


def spread(values: Sequence[float | None]) -> Spread:
    """Mean and standard deviation; both None if a value is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Spread(None)
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def _spreads(runs: Sequence[Compared], metrics: Sequence[str]) -> dict[str, Spread]:
    return {key: spread([one.values[key].value for one in runs]) for key in metrics}


def _differences(
    own: Sequence[Compared], reference: Sequence[Compared], metrics: Sequence[str]
) -> dict[str, Difference | None]:
    first, other = own[0].entry, reference[0].entry
    several = len(own) > 1 or len(reference) > 1
    seeds_alone = first.setting is not None and first.setting == other.setting
    if not own[0].paired or (seeds_alone and (several or first.seeds != other.seeds)):
        return {}
    if len(own) > 1 and len(reference) > 1:
        return {key: _over_seeds(own, reference, key) for key in metrics}
    return {key: text_difference(own, reference, key) for key in metrics}


def _over_seeds(own: Sequence[Compared], reference: Sequence[Compared], key: str) -> Difference | None:
    """Welch's t-test, two-sided; None if a value is missing, or if neither side has varying values."""
    from scipy.stats import ttest_ind

    sides = [[one.values[key].value for one in runs] for runs in (own, reference)]
    if any(value is None for side in sides for value in side) or all(len(set(side)) == 1 for side in sides):
        return None
    result = ttest_ind(*sides, equal_var=False)
    low, high = result.confidence_interval(0.95)
    difference = statistics.fmean(sides[0]) - statistics.fmean(sides[1])  # type: ignore[arg-type]
    if math.isnan(result.pvalue):
        return None
    return Difference(difference, Interval(float(low), float(high)), float(result.pvalue), over="seeds")
