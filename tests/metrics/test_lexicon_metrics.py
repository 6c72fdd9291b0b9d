"""Recovery of entities inside and outside a lexicon, against values worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from support.scored import spans_of
from unembed.metrics.entities import LexiconCoverage, LexiconEntityRecovery
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import metric_of, score

FIRST = "Ada met Winifred in Oslo"
ROWS = [
    Scored(
        FIRST, "Ada met Winifred in Rome", spans_of(FIRST, ("Ada", "name"), ("Winifred", "name"), ("Oslo", "city")),
        unseen=(False, True, False), in_lexicon=(True, True, False),
    ),
    Scored(
        "Zoltan and Bob", "Bob left", spans_of("Zoltan and Bob", ("Zoltan", "name"), ("Bob", "name")),
        unseen=(True, False), in_lexicon=(False, True),
    ),
    Scored("no entity", "no entity", unseen=(), in_lexicon=()),
]  # fmt: skip
# Inside: Ada, Winifred, Bob, all recovered; outside: Oslo, Zoltan, none. Unseen: Winifred inside, Zoltan outside.
BY_HAND = {
    "entity_recovery": 60.0,
    "entity_recovery_unseen": 50.0,
    "entity_coverage": 60.0,
    "entity_coverage_unseen": 50.0,
    "entity_recovery_in_lexicon": 100.0,
    "entity_recovery_outside_lexicon": 0.0,
    "entity_recovery_unseen_in_lexicon": 100.0,
    "entity_recovery_unseen_outside_lexicon": 0.0,
}


def test_by_hand_in_any_order_and_batch() -> None:
    got = score(ROWS)
    assert {key: got[key] for key in BY_HAND} == BY_HAND
    worse = dataclasses.replace(ROWS[0], prediction="Oslo")
    got = score([worse, *ROWS[1:]])
    assert got["entity_recovery_in_lexicon"] == pytest.approx(100 / 3)
    assert got["entity_recovery_outside_lexicon"] == 50
    for metric in (LexiconCoverage(unseen=True), LexiconEntityRecovery(inside=True)):
        for row in reversed(ROWS):
            metric.update([row])
        assert torch.equal(metric.compute(), torch.tensor(BY_HAND[metric.description.key], dtype=torch.float64))
    for key in BY_HAND:
        metric = metric_of(key)
        assert metric.of(ROWS) == BY_HAND[key]
        assert (metric.description.more is None) == key.startswith("entity_coverage")


def test_what_is_not_known_has_no_value() -> None:
    untagged = score([dataclasses.replace(row, unseen=None) for row in ROWS])
    assert untagged["entity_coverage"] == 60
    assert {untagged[key] for key in BY_HAND if "unseen" in key} == {None}
    without = score([dataclasses.replace(row, in_lexicon=None) for row in ROWS])
    assert [key for key in without if "lexicon" in key or "coverage" in key] == []  # an attack without a lexicon
    nothing = score([ROWS[2]])
    assert {nothing[key] for key in BY_HAND} == {None}


@pytest.mark.parametrize("field", ["unseen", "in_lexicon"])
def test_a_value_for_each_span(field: str) -> None:
    with pytest.raises(ValueError, match="row 1: 1 values for 2 spans"):
        score([ROWS[0], dataclasses.replace(ROWS[1], **{field: (True,)})])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"row 1 has no {field} and row 0 has one"):
        score([ROWS[0], dataclasses.replace(ROWS[1], **{field: None})])  # type: ignore[arg-type]
