"""Exposure by class: what counts as a name, a number, a date, an address or another word, and how much of it leaks."""

from __future__ import annotations

import pytest

from examples import Span
from metrics.statistics import clustered, wilson
from reports.audit.exposure import class_of, estimated, items, measured
from reports.audit.findings import Reading, Truth
from reports.audit.part_counts import counted
from reports.audit.reading import Known

ALL = ("names", "numbers", "dates", "e-mail", "phone")


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("PERSON", "names"), ("B-per", "names"), ("first_name", "names"), ("Credit Card", "numbers"), ("DATE", "dates"),
        ("EMAIL", "e-mail"), ("PHONE_NUMBER", "phone"), ("URL", "other"), ("whatever", "other"),
    ],
)  # fmt: skip
def test_labels_have_classes(label: str, expected: str) -> None:
    assert class_of(label) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yesterday Ada Bell's dog met Dr. Koch in New York.", {
            "names": ["Ada Bell", "Koch", "New York"], "free text": ["yesterday", "dog", "met", "dr"]}),
        ("On 3 May 2021, call 555-123-4567 or ada@example.org.", {
            "dates": ["3 May 2021"], "phone": ["555-123-4567"], "e-mail": ["ada@example.org"], "free text": ["call"]}),
        ("Take 20.5 mg of B12 on Monday. They said I'm OK: 1,250!", {
            "numbers": ["20.5", "B12", "1,250"], "free text": ["take", "mg", "monday", "said"]}),
        ("PATIENT IS WELL", {"free text": ["patient"]}),
        ("", {"free text": []}),
    ],
)  # fmt: skip
def test_parts_by_form(text: str, expected: dict[str, list[str]]) -> None:
    assert dict(items(text, (), ALL)) == expected


def test_labelled_parts_come_first_and_their_classes_are_not_searched() -> None:
    text = "She met Ada Bell in Rome in room 7"
    spans = (Span(8, 16, "PERSON"), Span(28, 32, "ROOM"))
    found = items(text, spans, ("numbers",))
    assert dict(found) == {"names": ["Ada Bell"], "other": ["room"], "numbers": ["7"], "free text": ["met", "rome"]}


def test_of_each_class_the_attacker_who_reads_most_counts() -> None:
    truths = [Truth("we met Ada in Rome", (Span(7, 10, "PERSON"), Span(14, 18, "GPE"))), Truth("call 555-123-4567")]
    one = [Reading("we met ada in oslo", 0.9), Reading("call 555-123-4568", 0.9)]
    other = [Reading("rome, ada and we", 0.9), Reading("nothing", 0.2)]
    found = {one.name: one for one in measured(truths, [one, other], "labels", ordered=True)}
    assert list(found) == ["names", "numbers", "dates", "e-mail", "phone", "free text"]
    assert [(name, part.total, part.found) for name, part in found.items() if part.total] == [
        ("names", 2, "labels"), ("phone", 1, "form"), ("free text", 2, "form"),
    ]  # fmt: skip
    values = {name: part.share.value for name, part in found.items() if part.share is not None}
    assert values == {"names": 1.0, "phone": 0.0, "free text": 1.0}  # met, call
    assert found["dates"].share is None


def test_without_truth_what_was_right_in_the_test_texts_counts() -> None:
    readings = [Reading("so I met Ada and Bob in room 7", 0.9), Reading("we met Cleo", 0.8)]
    known = Known([Truth("so I met Ada and Eve in room 8")], [Reading("so I met Ada and Bob in room 9", 0.9)])
    found = {one.name: one for one in estimated(readings, known, None, ordered=True)}
    names, numbers, dates = found["names"], found["numbers"], found["dates"]
    assert (names.total, numbers.total, dates.total) == (3, 1, 0)
    assert names.share is not None
    assert (names.share.value, names.share.measured) == (0.5, False)
    assert numbers.share is not None
    assert numbers.share.value == 0
    assert dates.share is None


def test_counts_of_parts_by_class_and_kind() -> None:
    truths = ["so I met Ada on 3 May 2021 in room 8", None]
    (first, second) = counted(truths, ["so Ada met Bob in room 9", "mail ada@example.org"], None, ordered=True)
    # In the true text, of these recovered, and in the recovered text; "Ada" begins no sentence in either.
    assert first.classes == {
        "names": (1, 1, 2), "dates": (1, 0, 0), "numbers": (1, 0, 1), "free text": (2, 2, 2),
    }  # fmt: skip
    assert first.kinds == {"DATE": (1, 0, 0)}
    assert second.classes == {"e-mail": (0, 0, 1), "free text": (0, 0, 1)}
    assert second.kinds == {"EMAIL": (0, 0, 1)}


def test_things_of_one_text_count_less_than_things_of_many() -> None:
    # One thing a text: Wilson's interval, but for m / (m - 1) in the variance.
    alone = clustered([(1, 1)] * 300 + [(0, 1)] * 700)
    assert alone == pytest.approx(wilson(300, 1000), abs=1e-4)
    # Ten in a text, all read or none: a tenth of the number counts.
    together = clustered([(10, 10)] * 30 + [(0, 10)] * 70)
    assert together == pytest.approx(wilson(30, 100), abs=2e-3)
    # By hand: r = 3/6, residuals .5, -.5 and 0: v = 3/2 * .5 / 36 = 1/48, so that .25 * 48 = 12, at most 6, count.
    assert clustered([(1, 1), (1, 3), (1, 2)]) == pytest.approx(wilson(3, 6), abs=1e-9)
    assert clustered([(0, 5)] * 20) == pytest.approx(wilson(0, 20), abs=1e-9)
    with pytest.raises(ValueError, match="no groups"):
        clustered([])
