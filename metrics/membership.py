"""Membership: how well scores tell the texts of a store from others, and a threshold with a known rate of errors.

    roc_auc(members, others)                       # 0.5: no better than chance; 1: told apart without error
    true_positive_rate(members, others, 0.001)     # share of members found at 0.1 % false positives
    threshold = Threshold.at(references, 0.001)    # references: scores of texts that are no members
    threshold.value, threshold.actual              # a score above it; the interval of the rate of false positives

The area under the curve says little of membership: an attacker who wants to be believed must be right on few texts, so
the rate at very few false positives counts (Carlini et al. 2022, section III).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unembed.metrics.statistics import Floats, Interval, interval


def roc_auc(members: Floats, others: Floats) -> float:
    """Probability that a member's score is above that of another text; ties count half. (m,), (n,) -> 0 to 1."""
    _check(members, others)
    ordered = np.sort(others)
    below, up_to = np.searchsorted(ordered, members, "left"), np.searchsorted(ordered, members, "right")
    return float((below + up_to).sum()) / (2 * len(members) * len(others))


def true_positive_rate(members: Floats, others: Floats, rate: float) -> float | None:
    """Share of members above the score that at most ``rate`` of the others exceed; (m,), (n,) -> 0 to 1.

    None where there are fewer than 1 / ``rate`` others: their highest score says nothing of so small a rate.
    """
    _check(members, others)
    allowed = int(rate * len(others) + 1e-9)
    if allowed < 1:
        return None
    return float((members > np.sort(others)[-allowed - 1]).mean()) if allowed < len(others) else 1.0


def roc_intervals(
    members: Floats, others: Floats, rate: float, resamples: int = 500, seed: int = 0
) -> tuple[Interval | None, Interval | None]:
    """95 % bootstrap intervals of ``roc_auc`` and ``true_positive_rate``; members and others are resampled apart."""
    _check(members, others)
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        some, rest = generator.choice(members, len(members)), generator.choice(others, len(others))
        share = true_positive_rate(some, rest, rate)
        found.append((roc_auc(some, rest), np.nan if share is None else share))
    values = np.array(found)
    return interval(values[:, 0]), interval(values[:, 1])


@dataclass(frozen=True, slots=True)
class Threshold:
    """A score that few texts exceed which are no members.

    Attributes:
        value: Larger scores count as members.
        rate: The rate of false positives that was asked for, 0 to 1.
        actual: 95 % interval of the rate of this threshold, for texts like the references.
        references: Their scores in ascending order, (n,).
    """

    value: float
    rate: float
    actual: Interval
    references: Floats

    @classmethod
    def at(cls, references: Floats, rate: float) -> Threshold:
        """The threshold that a text like the n references exceeds with a probability of at most ``rate``.

        It is the j-th largest of their scores with j = floor(rate (n + 1)): the probability that another text exceeds
        that is j / (n + 1), and the rate of one such threshold is distributed as Beta(j, n + 1 - j).
        """
        ordered = np.sort(references)
        j = int(rate * (len(ordered) + 1) + 1e-9)
        if j < 1:
            raise ValueError(f"a rate of {rate:g} needs {fewest(rate):,} references, got {len(ordered)}")
        from scipy.stats import beta  # takes half a second to import

        spread = beta(j, len(ordered) + 1 - j)
        return cls(float(ordered[-j]), rate, Interval(float(spread.ppf(0.025)), float(spread.ppf(0.975))), ordered)

    def p_values(self, scores: Floats) -> Floats:
        """Probability of a score at least as large where the text is no member, (n,): (1 + such references) / (n + 1).

        A score is above the threshold exactly where this is at most ``rate``.
        """
        above = len(self.references) - np.searchsorted(self.references, scores, "left")
        return np.asarray((1 + above) / (len(self.references) + 1), np.float64)


def fewest(rate: float) -> int:
    """Number of references that a threshold at this rate needs at least."""
    return int(np.ceil(1 / rate - 1 - 1e-9))


def _check(members: Floats, others: Floats) -> None:
    if not len(members) or not len(others):
        raise ValueError(f"scores of {len(members)} members and {len(others)} others tell nothing apart")
