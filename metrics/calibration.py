"""Calibration: the probability that a text was recovered, given the cosine of its vector with the target.

    calibration = fit([.2, .4, .5, .9], [False, False, True, True])     # cosine, whether the text was recovered
    calibration.probabilities([.3, .95])                                 # of two texts without a known reference
    calibration.share([.3, .95])                                         # Estimate(value, Interval(low, high))

This is isotonic regression: texts are sorted by cosine and split into groups of at least ``SMALLEST``; neighbouring
groups are pooled until the share of recovered texts increases from group to group (pool adjacent violators). With k of
n texts of a group recovered, the probability is (k + 1/2) / (n + 1), the mean of the Beta posterior with Jeffreys'
prior, so that it never reaches 0 or 1.

Cosines are rounded to ``DIGITS``: the last bits of a vector differ between batch sizes and processors. A cosine of 1 is
that of the same words, so those texts are a group of their own, of whatever size, unless its probability falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metrics.statistics import Floats, Interval

SMALLEST = 10  # texts of a group
DIGITS = 4  # of a cosine
SAMPLES = 4000  # from the distributions of the groups, for an interval
PRIOR = 0.5  # successes and failures that Jeffreys' prior counts as seen


class Estimate(NamedTuple):
    """A share, 0 to 1, and its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Group:
    """Texts with cosines from ``low`` to ``high``: how many there are, and how many were recovered."""

    low: float
    high: float
    size: int
    read: int

    @property
    def probability(self) -> float:
        """Probability that a text of this group is recovered, 0 to 1."""
        return (self.read + PRIOR) / (self.size + 2 * PRIOR)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A non-decreasing map from cosines to probabilities; the groups are sorted by cosine."""

    groups: tuple[Group, ...]

    @property
    def size(self) -> int:
        """Number of texts that it was fitted to."""
        return sum(group.size for group in self.groups)

    def places(self, cosines: Sequence[float]) -> np.typing.NDArray[np.intp]:
        """The group of each cosine, (n,): between two groups, the nearer one."""
        ends = zip(self.groups, self.groups[1:], strict=False)
        between = [1.0 - 0.5 * 10.0**-DIGITS if other.low == 1 else (one.high + other.low) / 2 for one, other in ends]
        return np.searchsorted(between, np.round(cosines, DIGITS), side="right")

    def probabilities(self, cosines: Sequence[float]) -> Floats:
        """Probability that each text is recovered, (n,), 0 to 1."""
        found: Floats = np.array([group.probability for group in self.groups])[self.places(cosines)]
        return found

    def share(self, cosines: Sequence[float], seed: int = 0) -> Estimate:
        """The expected share of recovered texts, given their cosines.

        The interval holds for the store that the texts are a random sample of. It covers the uncertainty of the groups
        (samples of each group's Beta posterior) and of the sample (a bootstrap of its rows). It does not cover a
        distribution shift between these texts and those that the calibration was fitted to.

        Raises:
            ValueError: ``cosines`` is empty.
        """
        if len(cosines) == 0:
            raise ValueError("a share of no texts has no meaning")
        generator = np.random.default_rng(seed)
        counts = np.bincount(self.places(cosines), minlength=len(self.groups))
        sizes, read = (np.array([getattr(group, name) for group in self.groups]) for name in ("size", "read"))
        probabilities = generator.beta(read + PRIOR, sizes - read + PRIOR, size=(SAMPLES, len(self.groups)))
        rows = generator.multinomial(len(cosines), counts / counts.sum(), size=SAMPLES)
        shares = (probabilities * rows).sum(axis=1) / len(cosines)
        low, high = np.quantile(shares, [0.025, 0.975])
        value = float(self.probabilities(cosines).mean())
        return Estimate(value, Interval(min(float(low), value), max(float(high), value)))


def fit(cosines: Sequence[float], read: Sequence[bool]) -> Calibration:
    """Fit a calibration to texts with known references.

    Raises:
        ValueError: The lists are not equally long, or hold fewer than ``SMALLEST`` texts.
    """
    if len(cosines) != len(read) or len(cosines) < SMALLEST:
        raise ValueError(f"needs two lists of one length, {SMALLEST} at least; got {len(cosines)} and {len(read)}")
    rounded = np.minimum(np.round(cosines, DIGITS), 1.0)
    recovered = np.asarray(read, dtype=bool)
    same = rounded == 1
    pooled: list[Group] = []
    for group in _groups(rounded[~same], recovered[~same]):
        pooled.append(group)
        while len(pooled) > 1 and _falls(pooled[-2], pooled[-1]):
            last, before = pooled.pop(), pooled.pop()
            pooled.append(Group(before.low, last.high, before.size + last.size, before.read + last.read))
    if same.any():
        group = Group(1.0, 1.0, int(same.sum()), int(recovered[same].sum()))
        if pooled and group.probability < pooled[-1].probability:  # by chance: too few to say otherwise
            last = pooled.pop()
            group = Group(last.low, 1.0, last.size + group.size, last.read + group.read)
        pooled.append(group)
    return Calibration(tuple(pooled))


def _falls(one: Group, other: Group) -> bool:
    return one.read * other.size >= other.read * one.size


def _groups(cosines: Floats, read: np.typing.NDArray[np.bool_]) -> list[Group]:
    """Groups of at least ``SMALLEST`` texts; equal cosines stay together, and a small rest joins the last group."""
    order = np.argsort(cosines, kind="stable")
    found: list[Group] = []
    start = 0
    while start < len(order):
        end = min(start + SMALLEST, len(order))
        if len(order) - end < SMALLEST:
            end = len(order)
        while end < len(order) and cosines[order[end]] == cosines[order[end - 1]]:
            end += 1
        chosen = order[start:end]
        low, high = float(cosines[chosen[0]]), float(cosines[chosen[-1]])
        found.append(Group(low, high, len(chosen), sum(bool(read[place]) for place in chosen)))
        start = end
    return found
