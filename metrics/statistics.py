"""How certain a metric's value is, and how alike two corpora are.

A metric of a test set is split into statistics of each example that are summed (``parts``) and a function of the
sums (``combine``). A mean has the parts (value, 1) and combines them by division; corpus BLEU has its n-gram counts.
Resampling examples is then a product of matrices, and a value is never computed from texts twice.

    sums = resampled_sums(parts, resamples=2000, seed=0)      # (n, k) -> (2000, k)
    interval(combine(sums))                                   # Interval(low=29.8, high=32.2)

Two attacks on the same examples are resampled with the same seed, and so with the same samples: the differences of
their values, sample by sample, are the paired bootstrap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SAMPLED_TOGETHER = 4_000_000  # examples sampled at once: bounds memory at some 64 MB, whatever the size of the test set
COMMON = 5000  # n-grams compared
ORDER = 4  # characters of an n-gram


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


def resampled_sums(parts: Floats, resamples: int, seed: int) -> Floats:
    """Sums over examples sampled with replacement, as many as there are: (n, k) -> (resamples, k).

    The samples depend on ``n``, ``resamples`` and ``seed`` alone, so those of two attacks on one test set are the same.

    Raises:
        ValueError: There is no example.
    """
    size = len(parts)
    if size == 0:
        raise ValueError("there is nothing to sample from: no examples")
    generator = np.random.default_rng(seed)
    block = max(1, SAMPLED_TOGETHER // size)
    sums = np.empty((resamples, parts.shape[1]))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        sampled = generator.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
        times = np.bincount(sampled.ravel(), minlength=rows * size).reshape(rows, size)
        sums[start : start + rows] = times @ parts
    return sums


def interval(values: Floats, confidence: float = 0.95) -> Interval | None:
    """The percentile interval of resampled values, (resamples,); None where all are undefined (NaN).

    Resamples in which it is undefined, such as a share of entities where no sampled text has one, are left out.
    """
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        return None
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def significance(differences: Floats) -> float | None:
    """Two-sided p value of a paired bootstrap, (resamples,); None where no difference is defined.

    Twice the share of resamples on the rarer side of zero, ties on both sides, one added to count and total so that it
    is never 0. It is the level at which the percentile interval just reaches zero, so the two never disagree.
    """
    defined = differences[~np.isnan(differences)]
    if len(defined) == 0:
        return None
    rarer = min(np.count_nonzero(defined <= 0), np.count_nonzero(defined >= 0))
    return min(1.0, 2 * (rarer + 1) / (len(defined) + 1))


def wilson(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a share, 0 to 1: unlike a bootstrap, it has a width where all or none succeed.

    Raises:
        ValueError: No trial, or more successes than trials.
    """
    if not 0 <= successes <= total or total == 0:
        raise ValueError(f"{successes} successes of {total} are no share")
    from scipy.stats import binomtest  # takes half a second to import

    found = binomtest(successes, total).proportion_ci(confidence, method="wilson")
    # Rounding must not leave the exact ends, which hold at no and at all successes.
    return Interval(0.0 if successes == 0 else float(found.low), 1.0 if successes == total else float(found.high))


class Share(NamedTuple):
    """A part of a whole, both counted."""

    part: int
    whole: int

    @property
    def rate(self) -> float | None:
        """0 to 100; None of nothing."""
        return 100 * self.part / self.whole if self.whole else None

    @property
    def interval(self) -> Interval | None:
        """Wilson's 95 % interval, 0 to 100; None of nothing."""
        if not self.whole:
            return None
        low, high = wilson(self.part, self.whole)
        return Interval(100 * low, 100 * high)


def spearman(first: Floats, second: Floats) -> float | None:
    """Spearman's rank correlation of two lists of numbers, -1 to 1; None where one of them is constant.

    Raises:
        ValueError: They are not equally long, or hold fewer than two numbers.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"a rank correlation needs two lists of one length, got {len(first)} and {len(second)}")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def corpus_similarity(training: Iterable[str], other: Iterable[str], common: int = COMMON) -> float | None:
    """How alike two corpora are, -1 to 1: Spearman over counts of character 4-grams.

    llm_attackers_zhu2024, equations 13 and 14. The paper counts the 5,000 "commonly used" 4-grams of English without
    saying whose they are. Here they are the most common ones of ``training``, of equals the first in the order of
    characters, so that all corpora that are compared with one training text are measured on the same ones. Case and
    spaces count; a 4-gram lies within one text.

    Returns:
        None where it is undefined: ``training`` has fewer than two different 4-grams, or all counts of one are equal.
    """
    counts = character_ngrams(training)
    chosen = sorted(counts, key=lambda gram: (-counts[gram], gram))[:common]
    if len(chosen) < 2:
        return None
    others = character_ngrams(other)
    first = np.array([counts[gram] for gram in chosen], np.float64)
    return spearman(first, np.array([others[gram] for gram in chosen], np.float64))


def character_ngrams(texts: Iterable[str], order: int = ORDER) -> Counter[str]:
    """How often each run of ``order`` characters occurs; runs that overlap all count."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text[start : start + order] for start in range(len(text) - order + 1))
    return counts
