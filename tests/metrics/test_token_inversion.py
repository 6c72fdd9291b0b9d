"""Metrics on the tokens of a language model's input, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unembed.metrics.base import Measured, Ratio
from unembed.metrics.statistics import Share
from unembed.metrics.token_inversion import (
    FalseDiscovery,
    Inverted,
    TokenExact,
    TokenPartial,
    TokenPartialMean,
    by_position,
    exact_by_cost,
    token_inversion,
)
from unembed.reports.breakdowns import token_charts
from unembed.runs.files import Row, Searched

WHOLE = Inverted(true=(5, 7, 7), found=(5, 7, 7), claimed=True, cost=40)
MIDDLE_WRONG = Inverted(true=(5, 7, 7), found=(5, 1, 7), claimed=True, cost=10)
SHORT = Inverted(true=(3, 4), found=(3,))
LONG = Inverted(true=(9,), found=(9, 9), claimed=False)
ROWS = [WHOLE, MIDDLE_WRONG, SHORT, LONG]


def counted(metric: Ratio[Inverted], rows: list[Inverted]) -> Share:
    return Share(*metric.statistics(rows).sum(axis=0))


def test_shares_by_hand() -> None:
    assert [row.exact for row in ROWS] == [True, False, False, False]
    assert counted(TokenExact(), ROWS) == Share(1, 4)
    assert TokenExact().of(ROWS) == 25
    # 3 + 2 + 1 + 1 of 3 + 3 + 2 + 1; what is found beyond the input counts for nothing.
    assert counted(TokenPartial(), ROWS) == Share(7, 9)
    assert SHORT.matches == (True, False)
    assert LONG.matches == (True,)
    assert Inverted(true=(1, 2), found=(2, 1)).matches == (False, False)
    assert counted(FalseDiscovery(), ROWS) == Share(1, 2)
    assert FalseDiscovery().of([SHORT, LONG]) is None


def test_intervals_of_shares() -> None:
    # z^2 = 3.8415: the middle of 1 of 2 is 1/2, the reach z sqrt(1/8 + z^2/16) / (1 + z^2/2).
    squared = 3.841458820694124
    reach = math.sqrt(squared) * math.sqrt(1 / 8 + squared / 16) / (1 + squared / 2)
    interval = Share(1, 2).interval
    assert interval == pytest.approx((50 - 100 * reach, 50 + 100 * reach))
    assert Share(0, 0).interval is None
    assert Share(4, 4).interval == pytest.approx((51.01, 100.0), abs=0.01)
    measured = Measured.of(TokenExact(), ROWS)
    assert measured.value == 25
    # Wilson's interval of a share of inputs; percentiles of the resampled values of others.
    assert measured.interval(np.array([0.0, 50.0])) == Share(1, 4).interval
    sums = TokenPartial().statistics(ROWS)
    assert TokenPartial().combine(np.array([4.0, 0, 0, 0]) @ sums) == 100


def test_by_position_and_cost() -> None:
    assert by_position(ROWS) == {
        1: [Share(1, 1)],
        2: [Share(1, 1), Share(0, 1)],
        3: [Share(2, 2), Share(1, 2), Share(2, 2)],
    }
    rows = [WHOLE, MIDDLE_WRONG, Inverted(true=(1,), found=(1,), cost=7), Inverted(true=(2,), found=(2,))]
    # A row that did not count is there from the start; a wrong claim never is.
    assert exact_by_cost(rows, [0, 7, 39, 40, 1000]) == [25.0, 50.0, 50.0, 75.0, 75.0]
    assert exact_by_cost([], [1]) == [None]
    with pytest.raises(ValueError, match="no rows"):
        token_inversion([])
    with pytest.raises(ValueError, match="row 1: 1 labels for 2 tokens"):
        token_inversion([WHOLE, Inverted(true=(1, 2), found=(), labels=("name",))])


def test_tokens_with_and_without_a_label() -> None:
    rows = [
        Inverted(true=(1, 2, 3), found=(1, 2, 9), labels=(None, "name", "city")),
        Inverted(true=(4, 5), found=(4, 5), labels=("name", None)),
    ]
    found = token_inversion(rows)
    assert found["token_labelled"] == pytest.approx(100 * 2 / 3)
    assert found["token_labelled/name"] == 100.0
    assert found["token_labelled/city"] == 0.0
    labelled = [
        Inverted(true=(1, 2, 3), found=(1, 9, 3), labels=("name", "name", None)),
        Inverted(true=(4, 5), found=(4, 5), labels=(None, None)),
    ]
    found = token_inversion(labelled)
    assert (found["token_labelled"], found["token_unlabelled"]) == (50, 100)
    assert "token_unlabelled" not in token_inversion(ROWS)


def test_the_metrics_of_a_test_set() -> None:
    found = token_inversion(ROWS)
    assert found["token_exact"] == 25.0
    assert found["token_partial"] == pytest.approx(100 * 7 / 9)
    assert found["claims"] == 2
    assert found["false_discovery_rate"] == 50.0
    assert [found[f"token_exact/{length}"] for length in (1, 2, 3)] == [0.0, 0.0, 50.0]
    assert "token_labelled" not in found
    assert token_inversion(ROWS[::-1]) == found
    assert not [key for key in token_inversion([WHOLE, MIDDLE_WRONG]) if key.startswith("token_exact/")]
    found = token_inversion(ROWS)
    assert (found["claimed"], found["claims"]) == (50, 2)
    assert [found[f"claimed/{length}"] for length in (1, 2, 3)] == [0, 0, 100]
    assert found["token_partial_mean"] == TokenPartialMean().of(ROWS)
    # 3/3, 2/3, 1/2 and 1/1 of the inputs' tokens
    assert TokenPartialMean().of(ROWS) == pytest.approx(100 * (1 + 2 / 3 + 1 / 2 + 1) / 4)


def test_the_report_draws_inputs_by_length_place_and_cost() -> None:
    texts = {"reference": "a", "prediction": "b", "kind": "sequence"}
    rows = [
        Row(
            index=place,
            reference_tokens=one.true,
            prediction_tokens=one.found,
            search=Searched(verified=one.claimed, passes=40),
            **texts,
        )
        for place, one in enumerate(ROWS)
    ]
    assert [title for title, _, _ in token_charts(rows)] == ["By length", "By place", "By cost"]
    unsearched = [row.model_copy(update={"search": None}) for row in rows]
    assert [title for title, _, _ in token_charts(unsearched)] == ["By length", "By place"]
    assert token_charts([Row(index=0, **texts)]) == []
