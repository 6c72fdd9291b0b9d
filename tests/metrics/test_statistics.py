"""Intervals, p values and the similarity of corpora: values worked out by hand, and SciPy as an independent oracle."""

from __future__ import annotations

import math
from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest
import sacrebleu
import scipy.stats

from unembed.core.examples import Span
from unembed.metrics.base import Description, Mean, Measured, Ratio
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import metric_of, score, text_metrics
from unembed.metrics.statistics import (
    character_ngrams,
    corpus_similarity,
    evenly,
    interval,
    resampled_sums,
    significance,
    spearman,
    wilson,
)

ROWS = [
    Scored("Ada is in Paris with Ben", "Ada is in Paris with a dog", (Span(0, 3, "n"), Span(10, 15, "c")), cosine=0.9),
    Scored("the invoice is due on Monday", "the invoice came on Friday", (Span(22, 28, "date"),), cosine=0.8),
    Scored("call me", "purple", cosine=0.1),
    Scored("I said: wait!", "I said: wait!", cosine=1.0),
    Scored("one two three four five", "one two four three five six", cosine=0.7),
    Scored("my name is Ada", "my name is Ada .", (Span(11, 14, "name"),), cosine=0.95),
]  # fmt: skip
SAMPLED = [[0, 1, 2, 3, 4, 5], [0, 0, 0, 3, 3, 3], [2, 2, 2, 2, 2, 2], [1, 4, 4, 2, 2, 5], [2, 2, 2, 2, 2, 3]]


def repeated(rows: list[Scored], places: list[int]) -> tuple[np.ndarray, list[Scored]]:
    """How often each row was sampled, and the sampled rows."""
    return np.bincount(places, minlength=len(rows)).astype(float), [rows[place] for place in places]


KEYS = sorted(
    metric.description.key
    for metric in text_metrics()
    if metric.summable and score(ROWS)[metric.description.key] is not None
)


def measured(key: str, rows: list[Scored]) -> Measured[Scored]:
    metric = metric_of(key)
    return Measured.of(metric, rows)


@pytest.mark.parametrize("key", KEYS)
def test_sums_of_sampled_examples_give_the_metric_of_a_test_set_of_these(key: str) -> None:
    sums = measured(key, ROWS)
    assert len(sums.parts) == len(ROWS)
    for places in SAMPLED:
        times, sampled = repeated(ROWS, places)
        expected = score(sampled)[key]
        assert sums.metric.combine(times @ sums.parts) == pytest.approx(
            math.nan if expected is None else expected, nan_ok=True
        )
    assert sums.value == pytest.approx(score(ROWS)[key])


def test_bleu_of_sums_is_sacrebleus() -> None:
    generator = np.random.default_rng(7)
    vocabulary = np.array([*"abcdef"])

    def sentence() -> str:
        return " ".join(generator.choice(vocabulary, generator.integers(1, 9)))

    for _ in range(50):
        rows = [Scored(sentence(), sentence()) for _ in range(generator.integers(1, 5))]
        predictions, references = [row.prediction for row in rows], [[row.reference for row in rows]]
        longest = max(len(text.split()) for row in rows for text in (row.reference, row.prediction))
        matched = any(set(row.reference.split()) & set(row.prediction.split()) for row in rows)
        for tokens, smoothing, key in (("13a", "exp", "bleu"), ("none", "none", "bleu4")):
            oracle = sacrebleu.BLEU(tokenize=tokens, smooth_method=smoothing)
            expected = oracle.corpus_score(predictions, references).score if longest >= 4 or not matched else math.nan
            assert measured(key, rows).value == pytest.approx(expected, nan_ok=True)
        oracle = sacrebleu.BLEU(tokenize="none", smooth_method="none")
        whole = oracle.corpus_score(predictions, references)
        two = whole.bp * whole.precisions[1] if longest >= 2 or not matched else math.nan
        assert measured("bleu2", rows).value == pytest.approx(two, nan_ok=True)
    assert measured("bleu", [Scored("a b c d e", "")]).value == 0.0
    assert measured("token_f1", [Scored("a b c d e", "")]).value == 0.0


def test_resampled_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = np.column_stack([np.ones(7), np.arange(7.0), 2 * np.arange(7.0)])
    sums = resampled_sums(parts, 500, seed=3)
    assert sums.shape == (500, 3)
    assert (sums[:, 0] == 7).all()
    assert (sums[:, 2] == 2 * sums[:, 1]).all()
    assert len(np.unique(sums[:, 1])) > 10
    assert (sums == resampled_sums(parts, 500, seed=3)).all()
    assert (sums != resampled_sums(parts, 500, seed=4)).any()
    # The samples do not depend on what is summed: that is what pairs two attacks.
    assert (resampled_sums(parts[:, 1:2], 500, seed=3)[:, 0] == sums[:, 1]).all()
    monkeypatch.setattr("unembed.metrics.statistics.SAMPLED_TOGETHER", 30)
    sums = resampled_sums(np.arange(10.0)[:, None], 8, seed=0)[:, 0]  # three, three and two resamples at a time
    assert len(set(sums)) > 3
    with pytest.raises(ValueError, match="no examples"):
        resampled_sums(np.empty((0, 2)), 8, seed=0)


class Numbers(Mean[float]):
    description = Description("a", "A", "")

    def of_example(self, row: float) -> float:
        return row


class Quotients(Ratio[tuple[int, int]]):
    description = Description("b", "B", "")

    def of_example(self, row: tuple[int, int]) -> tuple[int, int]:
        return row


@pytest.mark.parametrize("kind", ["mean", "ratio"])
def test_interval_agrees_with_scipy(kind: str) -> None:
    generator = np.random.default_rng(1)
    above, below = generator.gamma(2.0, 10.0, 300), generator.integers(1, 6, 300).astype(float)
    if kind == "mean":
        sums = Measured.of(Numbers(), [*above])
        oracle = scipy.stats.bootstrap((above,), np.mean, n_resamples=5000, method="percentile", random_state=2)
    else:
        sums = Measured.of(Quotients(), [*zip(above / 100, below, strict=True)])

        def share(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
            return a.sum(axis=axis) / b.sum(axis=axis)

        oracle = scipy.stats.bootstrap(
            (above, below), share, paired=True, n_resamples=5000, method="percentile", random_state=2
        )
    found = interval(sums.metric.combine(resampled_sums(sums.parts, 5000, seed=0)))
    width = oracle.confidence_interval.high - oracle.confidence_interval.low
    assert found.low == pytest.approx(oracle.confidence_interval.low, abs=0.06 * width)
    assert found.high == pytest.approx(oracle.confidence_interval.high, abs=0.06 * width)


def test_interval_and_significance_by_hand() -> None:
    assert interval(np.arange(101.0)) == pytest.approx((2.5, 97.5))
    assert interval(np.arange(101.0), confidence=0.8) == pytest.approx((10.0, 90.0))
    assert interval(np.array([math.nan, 1.0, math.nan, 1.0])) == (1.0, 1.0)
    assert interval(np.array([math.nan])) is None
    assert significance(np.array([1.0] * 98 + [-1.0])) == pytest.approx(2 * 2 / 100)
    assert significance(np.array([-1.0] * 99)) == pytest.approx(2 * 1 / 100)
    assert significance(np.array([0.0] * 99)) == 1.0  # two equal attacks
    assert significance(np.array([1.0, -1.0, math.nan])) == 1.0
    assert significance(np.array([math.nan])) is None


def test_significance_agrees_with_a_t_test_on_paired_means() -> None:
    generator = np.random.default_rng(5)
    first = generator.normal(size=400)
    for shift in (0.0, 0.05, 0.12):
        second = first + generator.normal(shift, 1.0, size=400)
        differences = resampled_sums(second[:, None] - first[:, None], 4000, seed=0)[:, 0] / 400
        assert significance(differences) == pytest.approx(scipy.stats.ttest_rel(second, first).pvalue, abs=0.03)


@pytest.mark.parametrize(("successes", "total"), [(0, 10), (10, 10), (1, 2000), (226, 2000), (3, 4)])
def test_wilson_agrees_with_its_formula(successes: int, total: int) -> None:
    for confidence in (0.95, 0.5):
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        share, weight = successes / total, z * z / total
        middle = (share + weight / 2) / (1 + weight)
        reach = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
        expected = (middle - reach, middle + reach)
        assert wilson(successes, total, confidence) == pytest.approx(expected, abs=1e-12)


def test_wilson_by_hand_and_refusals() -> None:
    # z = 1.96 and no success of ten: (0, z^2 / (n + z^2)) = (0, 3.8415 / 13.8415)
    assert wilson(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    for successes, total in ((1, 0), (3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="no share"):
            wilson(successes, total)


def test_spearman_and_corpus_similarity_by_hand() -> None:
    # Ranks 2, 1, 3.5, 3.5 and 1, 2, 3, 4: deviations -.5, -1.5, 1, 1 and -1.5, -.5, .5, 1.5
    found = spearman(np.array([5.0, 1.0, 7.0, 7.0]), np.array([0.1, 0.2, 0.3, 0.4]))
    assert found == pytest.approx(3.5 / math.sqrt(4.5 * 5))
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    assert spearman(np.array([1.0, 2.0]), np.array([3.0, 3.0])) is None
    with pytest.raises(ValueError, match="two lists of one length"):
        spearman(np.array([1.0, 2.0]), np.array([3.0]))
    assert character_ngrams(["abcde", "bcde", "abc", ""]) == {"abcd": 1, "bcde": 2}
    # The three most common 4-grams of the training text are aaaa (3), bbbb (2), cccc (1, before dddd by its name).
    training = ["aaaaaa", "bbbbb", "cccc", "dddd"]
    assert corpus_similarity(training, ["aaaaaaaa", "bbbbb", "cccc", "dddddd"], common=3) == pytest.approx(1.0)
    assert corpus_similarity(training, ["aaaa", "bbbbb", "ccccccc"], common=3) == pytest.approx(-1.0)
    # Ranks 3, 2, 1 against counts 0, 1, 0, whose ranks are 1.5, 3, 1.5: the correlation is 0.
    assert corpus_similarity(training, ["bbbb"], common=3) == pytest.approx(0.0)
    assert corpus_similarity(training, ["xyz"]) is None
    assert corpus_similarity(["abc"], training) is None


def test_corpus_similarity_agrees_with_scipy_and_even_samples() -> None:
    first = ["the cat sat on the mat", "a dog sat on the log"] * 2
    second = ["the mat was on the cat", "no log for the dog"]
    one, other = (Counter(t[i : i + 4] for t in texts for i in range(len(t) - 3)) for texts in (first, second))
    oracle = scipy.stats.spearmanr([one[gram] for gram in one], [other[gram] for gram in one]).statistic
    assert corpus_similarity(first, second) == pytest.approx(oracle)
    assert corpus_similarity(first, first) == pytest.approx(1.0)
    ranked = list(range(9))
    assert [*evenly(ranked, 3, middle=True)] == ranked[1::3]
    assert [*evenly(ranked, 9, middle=True)] == ranked
    assert [*evenly(ranked, 20, middle=True)] == ranked
    assert evenly(["a", "b"], 2) == ["a", "b"]
    assert evenly([str(n) for n in range(10)], 4) == ["0", "2", "5", "7"]
