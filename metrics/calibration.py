"""How likely a text is right, given how near its vector came: learned where the truth is known, used where it is not.

    calibration = fit([.2, .4, .5, .9], [False, False, True, True])     # cosine, whether the text was read
    calibration.probabilities([.3, .95])                                 # of two texts whose truth nobody knows
    calibration.share([.3, .95])                                         # Estimate(value, Interval(low, high))

Texts are put in the order of their cosine and cut into groups of at least ``SMALLEST``; neighbouring groups are pooled
until the share of texts that were read rises from each to the next (pool adjacent violators: the best fit among all
that rise). In a group of n texts of which k were read, the probability of another is (k + 1/2) / (n + 1), the mean of
Jeffreys' Beta distribution: a group in which all were read promises nothing for certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metrics.statistics import Floats, Interval

SMALLEST = 10  # texts of a group
SAMPLES = 4000  # from the distributions of the groups, for an interval
PRIOR = 0.5  # successes and failures that Jeffreys' prior counts as seen


class Estimate(NamedTuple):
    """A share, 0 to 1, and its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Group:
    """Texts of neighbouring cosines, ``low`` to ``high``: how many there were, and how many of them were read."""

    low: float
    high: float
    size: int
    read: int

    @property
    def probability(self) -> float:
        """Of a text of this group to be read, 0 to 1."""
        return (self.read + PRIOR) / (self.size + 2 * PRIOR)


@dataclass(frozen=True, slots=True)
class Calibration:
    """From cosines to probabilities that never fall; the groups are in the order of their cosines."""

    groups: tuple[Group, ...]

    @property
    def size(self) -> int:
        """Texts that it was learned from."""
        return sum(group.size for group in self.groups)

    def places(self, cosines: Sequence[float]) -> np.typing.NDArray[np.intp]:
        """The group of each cosine, (n,): between two groups, that of the nearer end."""
        ends = zip(self.groups, self.groups[1:], strict=False)
        return np.searchsorted([(one.high + other.low) / 2 for one, other in ends], cosines, side="right")

    def probabilities(self, cosines: Sequence[float]) -> Floats:
        """Of each text to be read, (n,), 0 to 1."""
        found: Floats = np.array([group.probability for group in self.groups])[self.places(cosines)]
        return found

    def share(self, cosines: Sequence[float], seed: int = 0) -> Estimate:
        """The share of the texts behind ``cosines`` that is read.

        The interval is for the store that the texts are a random sample of: it covers both that the groups hold few
        texts (samples of each group's Beta distribution) and that the sample does (samples of as many rows).
        It does not cover texts for which a cosine means something else than for those that it was learned from.

        Raises:
            ValueError: There is no cosine.
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
    """Learn from texts whose truth is known.

    Raises:
        ValueError: The lists are not equally long, or hold fewer than ``SMALLEST`` texts.
    """
    if len(cosines) != len(read) or len(cosines) < SMALLEST:
        raise ValueError(f"needs two lists of one length, {SMALLEST} at least; got {len(cosines)} and {len(read)}")
    pooled: list[Group] = []
    for group in _groups(cosines, read):
        pooled.append(group)
        while len(pooled) > 1 and _falls(pooled[-2], pooled[-1]):
            last, before = pooled.pop(), pooled.pop()
            pooled.append(Group(before.low, last.high, before.size + last.size, before.read + last.read))
    return Calibration(tuple(pooled))


def _falls(one: Group, other: Group) -> bool:
    return one.read * other.size >= other.read * one.size


def _groups(cosines: Sequence[float], read: Sequence[bool]) -> list[Group]:
    """Neighbours of ``SMALLEST`` texts and more; equal cosines stay together, and a small rest joins the last."""
    order = np.argsort(np.asarray(cosines), kind="stable")
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
