"""Confidence intervals of metrics, the similarity of two corpora, and items taken evenly.

A metric of a test set is split into statistics of each example (``parts``), which are summed, and a function of the
sums (``combine``). A mean has the parts (value, 1) and combines them by division; corpus BLEU has its n-gram counts.
Resampling examples is then a matrix product, and texts are scored only once.

    sums = resampled_sums(parts, resamples=2000, seed=0)      # (n, k) -> (2000, k)
    interval(combine(sums))                                   # Interval(low=29.8, high=32.2)

Two attacks on the same examples are resampled with the same seed and hence the same samples; the differences of their
values over the samples are a paired bootstrap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Item = TypeVar("Item")

SAMPLED_TOGETHER = 4_000_000  # examples sampled at once: bounds memory at about 64 MB for any test set
COMMON = 5000  # n-grams compared
ORDER = 4  # characters of an n-gram


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


def resampled_sums(parts: Floats, resamples: int, seed: int) -> Floats:
    """Sums over n examples sampled with replacement: (n, k) -> (resamples, k).

    The samples depend only on n, ``resamples`` and ``seed``, so they are the same for two attacks on one test set.
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
    """The percentile interval of resampled values, (resamples,); None if all are NaN.

    Undefined resamples (NaN), such as a share of entities if no sampled text has one, are left out.
    """
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        return None
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def significance(differences: Floats) -> float | None:
    """Two-sided p value of a paired bootstrap, (resamples,); None if no difference is defined.

    Twice the share of resamples on the rarer side of zero. Ties count on both sides, and one is added to count and
    total so that the value is never 0. It is the level at which the percentile interval just includes zero.
    """
    defined = differences[~np.isnan(differences)]
    if len(defined) == 0:
        return None
    rarer = min(np.count_nonzero(defined <= 0), np.count_nonzero(defined >= 0))
    return min(1.0, 2 * (rarer + 1) / (len(defined) + 1))


def wilson(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a share, 0 to 1; unlike a bootstrap's, it is not empty if all or none succeed."""
    if not 0 <= successes <= total or total == 0:
        raise ValueError(f"{successes} successes of {total} are no share")
    from scipy.stats import binomtest  # takes half a second to import

    found = binomtest(successes, total).proportion_ci(confidence, method="wilson")
    # Without successes, or with successes only, an end is exactly 0 or 1 despite rounding.
    return Interval(0.0 if successes == 0 else float(found.low), 1.0 if successes == total else float(found.high))


def clustered(counts: Sequence[tuple[int, int]]) -> Interval:
    """The 95 % interval of a share of things that come in groups, 0 to 1: of the words or names of texts.

    Args:
        counts: For each of m groups the k successes of its n things, n at least 1.

    Things of one text are read or missed together, so there are fewer than they seem: with the share r = K / N of all,
    the variance between groups is v = m / (m - 1) sum (k - r n)^2 / N^2 (a ratio's, Cochran 1977, section 6.3), the
    effective number r (1 - r) / v, at most N, and Wilson's interval is taken with that number (Korn and Graubard 1998,
    Survey Methodology 24). Where all or none succeed v is 0, and each group counts as one.
    """
    if not counts:
        raise ValueError("a share of no groups has no meaning")
    read, total = (np.array(part, np.float64) for part in zip(*counts, strict=True))
    size, share = total.sum(), read.sum() / total.sum()
    variance = len(read) / max(1, len(read) - 1) * float(((read - share * total) ** 2).sum()) / size**2
    effective = float(len(read))
    if 0 < share < 1:
        effective = size if variance == 0 else min(size, share * (1 - share) / variance)
    z = 1.959963984540054  # of the normal distribution, 95 %
    middle = (share + z**2 / (2 * effective)) / (1 + z**2 / effective)
    half = z * np.sqrt(share * (1 - share) / effective + z**2 / (4 * effective**2)) / (1 + z**2 / effective)
    low = float(middle - half) if share > 0 else 0.0  # rounding would leave a little more
    return Interval(max(0.0, low), min(1.0, float(middle + half)))


class Share(NamedTuple):
    """A count and its total."""

    part: int
    whole: int

    @property
    def rate(self) -> float | None:
        """0 to 100; None if the total is 0."""
        return 100 * self.part / self.whole if self.whole else None

    @property
    def interval(self) -> Interval | None:
        """Wilson's 95 % interval, 0 to 100; None if the total is 0."""
        if not self.whole:
            return None
        low, high = wilson(self.part, self.whole)
        return Interval(100 * low, 100 * high)


def spearman(first: Floats, second: Floats) -> float | None:
    """Spearman's rank correlation of two lists of at least two numbers, -1 to 1; None if one of them is constant."""
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"a rank correlation needs two lists of one length, got {len(first)} and {len(second)}")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def corpus_similarity(training: Iterable[str], other: Iterable[str], common: int = COMMON) -> float | None:
    """Similarity of two corpora, -1 to 1: Spearman correlation of their counts of character 4-grams.

    llm_attackers_zhu2024, equations 13 and 14. The paper counts the 5,000 "commonly used" 4-grams of English without
    giving their source. Here they are the most common ones of ``training`` (ties in lexicographic order), so that all
    corpora compared with the same training texts use the same 4-grams. Case and spaces count; a 4-gram does not cross
    texts.

    Returns:
        None if undefined: ``training`` has fewer than two different 4-grams, or all counts of a corpus are equal.
    """
    counts = character_ngrams(training)
    chosen = sorted(counts, key=lambda gram: (-counts[gram], gram))[:common]
    if len(chosen) < 2:
        return None
    others = character_ngrams(other)
    first = np.array([counts[gram] for gram in chosen], np.float64)
    return spearman(first, np.array([others[gram] for gram in chosen], np.float64))


def character_ngrams(texts: Iterable[str], order: int = ORDER) -> Counter[str]:
    """Counts of all (overlapping) runs of ``order`` characters."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text[start : start + order] for start in range(len(text) - order + 1))
    return counts


def evenly(items: Sequence[Item], most: int, *, middle: bool = False) -> Sequence[Item]:
    """At most ``most`` of ``items``, evenly spaced: the first of each of ``most`` equal parts, or its ``middle``."""
    size = len(items)
    return items if size <= most else [items[(2 * part + middle) * size // (2 * most)] for part in range(most)]
