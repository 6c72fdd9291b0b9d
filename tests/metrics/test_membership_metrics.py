"""Membership metrics against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.metrics.membership import Threshold, fewest, roc_auc, roc_intervals, true_positive_rate

MEMBERS, OTHERS = np.array([4.0, 3.0, 2.0]), np.array([3.0, 1.0, 0.0, 0.0])


def test_area_under_the_curve_and_shares() -> None:
    # 4 is above all four others, 3 above three and level with one, 2 above three
    assert roc_auc(MEMBERS, OTHERS) == pytest.approx((4 + 3.5 + 3) / 12)
    assert roc_auc(OTHERS, OTHERS) == 0.5
    assert roc_auc(MEMBERS + 9, OTHERS) == 1
    assert roc_auc(MEMBERS - 9, OTHERS) == 0
    assert true_positive_rate(MEMBERS, OTHERS, 0.25) == 1  # all are above 1, the second largest
    assert true_positive_rate(MEMBERS, np.array([3.0, 3.0, 0.0, 0.0]), 0.25) == pytest.approx(1 / 3)
    assert true_positive_rate(MEMBERS, OTHERS, 0.2) is None  # four texts say nothing of one in five
    assert true_positive_rate(MEMBERS, OTHERS, 1.0) == 1
    many = np.arange(1000.0)
    assert true_positive_rate(np.array([998.0, 998.5, 999.0]), many, 0.001) == pytest.approx(2 / 3)


def test_intervals_hold_the_values_and_are_repeated() -> None:
    generator = np.random.default_rng(0)
    members, others = generator.normal(2, 1, 300), generator.normal(0, 1, 400)
    area, share = roc_intervals(members, others, 0.05, resamples=200)
    assert area.low < roc_auc(members, others) < area.high
    found = true_positive_rate(members, others, 0.05)
    assert share.low < found < share.high
    assert roc_intervals(members, others, 0.05, resamples=200) == (area, share)


def test_threshold_is_exceeded_as_often_as_was_asked_for() -> None:
    references = np.arange(1, 100, dtype=np.float64)  # 99: the largest but four is exceeded by 5 of 100 texts
    threshold = Threshold.at(references[::-1], 0.05)
    assert threshold.value == 95
    assert threshold.actual == pytest.approx((0.0166, 0.1010), abs=1e-3)  # quantiles of Beta(5, 95)
    p_values = threshold.p_values(np.array([0.0, 95.0, 95.5, 99.0, 100.0]))
    assert p_values.tolist() == [1.0, 0.06, 0.05, 0.02, 0.01]
    assert [p <= 0.05 for p in p_values] == [score > threshold.value for score in (0, 95, 95.5, 99, 100)]
    drawn = np.random.default_rng(0).normal(size=(400, 100))
    above = [row[0] > Threshold.at(row[1:], 0.1).value for row in drawn]
    assert np.mean(above) == pytest.approx(0.1, abs=0.03)


def test_too_few_texts_are_refused() -> None:
    assert [fewest(rate) for rate in (0.5, 0.01, 0.001)] == [1, 99, 999]
    with pytest.raises(ValueError, match="needs 999 references, got 500"):
        Threshold.at(np.zeros(500), 0.001)
    with pytest.raises(ValueError, match="0 members"):
        roc_auc(np.zeros(0), OTHERS)
