"""Exposure by class: what counts as a name, a number, a date, an address or another word, and how much of it leaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.files import write_lines
from unembed.audit.attackers import reading
from unembed.audit.estimates import (
    PartEstimator,
    Scored,
    counted,
    estimated_classes,
    leaked_classes,
    leaked_entities,
    leaked_kinds,
    read_scored,
)
from unembed.audit.exposure import class_of, items
from unembed.audit.results import Reading, Truth
from unembed.core.errors import InputError
from unembed.core.examples import Span
from unembed.metrics.statistics import clustered, wilson

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
    found = {one.name: one for one in leaked_classes(truths, [one, other], "labels", ordered=True)}
    assert list(found) == ["names", "numbers", "dates", "e-mail", "phone", "free text"]
    assert [(name, part.total, part.found) for name, part in found.items() if part.total] == [
        ("names", 2, "labels"), ("phone", 1, "form"), ("free text", 2, "form"),
    ]  # fmt: skip
    values = {name: part.share.value for name, part in found.items() if part.share is not None}
    assert values == {"names": 1.0, "phone": 0.0, "free text": 1.0}  # met, call
    assert found["dates"].share is None


def known_scores(source: str, share: float, size: int, counts: int = 2) -> list[Scored]:
    """Scores of texts with as many names each, of which a share came back."""
    back = round(share * counts * size)
    return [
        Scored(source=source, words=6, cosine=0.6 + 0.001 * n, f1=50, exact=False,
               classes={"names": (counts, min(counts, max(0, back - counts * n)), counts)}, kinds={})
        for n in range(size)
    ]  # fmt: skip


STORE = [Reading(f"so we met Ada {n} times and Bob", 0.6 + 0.001 * n) for n in range(40)]


def test_without_truth_the_share_that_comes_back_is_estimated_from_known_texts() -> None:
    known = [score for n in range(8) for score in known_scores(f"source {n}", 0.3, 50)]
    own = PartEstimator.of(STORE, [], [], known, None, ordered=True)
    found = {one.name: one for one in estimated_classes([own], None)}
    assert list(found) == ["names", "numbers", "dates", "e-mail", "phone", "free text"]
    names = found["names"]
    assert (names.total, names.found) == (80, "form")
    assert names.share is not None
    assert (names.share.measured, names.share.rows) == (False, 80)
    assert names.share.value == pytest.approx(0.3, abs=0.05)
    assert names.share.low < 0.3 < names.share.high
    # Numbers were written, but nothing is known of them; dates were not.
    assert (found["numbers"].total, found["numbers"].share) == (40, None)
    assert (found["dates"].total, found["dates"].share) == (0, None)


def test_a_rare_kind_is_estimated_from_entities_of_all_kinds() -> None:
    """Few known texts have a mail address: the entities of all kinds tell how far such an estimate can be wrong."""
    known = [
        Scored(source=f"source {n % 8}", words=6, cosine=0.6 + 0.001 * n, f1=50, exact=False, classes={},
               kinds={"CARD" if n else "EMAIL": (1, int(n % 10 == 0), 1)})
        for n in range(200)
    ]  # fmt: skip
    store = [Reading(f"mail ada{n}@example.org", 0.7) for n in range(50)]
    own = PartEstimator.of(store, [], [], known, None, ordered=True)
    for share in (own.share("kinds", "EMAIL"), own.share("classes", "e-mail"), own.share("kinds", None)):
        assert share is not None
        assert (share.measured, share.rows) == (False, 50)
        assert share.low < 0.1 < share.high
    nothing = PartEstimator.of([Reading("no address", 0.7)], [], [], known, None, ordered=True)
    assert nothing.share("kinds", None) is None


def test_sources_that_differ_widen_the_interval_of_a_class() -> None:
    width = []
    for shares in ([0.3] * 8, [0.02, 0.7, 0.1, 0.5, 0.05, 0.6, 0.03, 0.4]):
        known = [score for n, share in enumerate(shares) for score in known_scores(f"source {n}", share, 50)]
        share = PartEstimator.of(STORE, [], [], known, None, ordered=True).share("classes", "names")
        assert share is not None
        width.append(share.high - share.low)
    assert width[1] > 1.5 * width[0]


def test_the_runs_test_texts_and_files_without_counts() -> None:
    tested = [Reading("we saw Ada", 0.6, 50.0, False) for _ in range(12)]
    truths = [Truth("we saw Ada" if n % 2 else "we saw Eve") for n in range(12)]
    old = [Scored(source="chat", words=3, cosine=0.5, f1=40, exact=False) for _ in range(50)]
    own = PartEstimator.of(STORE, tested, truths, old, None, ordered=True)
    assert len(own.known) == 12
    names = own.share("classes", "names")
    assert names is not None
    assert names.low < 0.5 < names.high


def test_more_parts_recovered_than_there_are_is_refused(tmp_path: Path) -> None:
    line = {"source": "chat", "words": 3, "cosine": 0.5, "f1": 40, "exact": False, "classes": {"names": [2, 3, 1]}}
    write_lines(tmp_path / "calibration.jsonl", [line | {"classes": {}}, line])
    with pytest.raises(InputError, match=r"calibration\.jsonl:2: classes\.names: .*3 recovered of 2"):
        read_scored(tmp_path)


def test_of_each_kind_the_attacker_who_recovers_most_counts() -> None:
    truths = [Truth("Ada, 5 May", (Span(0, 3, "PERSON"), Span(5, 10, "DATE"))), Truth("Bob", (Span(0, 3, "PERSON"),))]
    one, other = [Reading("ada", 0.5), Reading("bob", 0.5)], [Reading("on 5 may", 0.5), Reading("", 0.1)]
    kinds = leaked_kinds(truths, [one, other], ordered=True)
    assert [(kind.label, kind.total, kind.share and kind.share.value) for kind in kinds] == [
        ("PERSON", 2, 1.0), ("DATE", 1, 1.0),
    ]  # fmt: skip
    entities = leaked_entities(truths, one, ordered=True)
    assert entities is not None
    assert entities.value == pytest.approx(2 / 3)


def test_entities_of_one_text_are_recovered_together() -> None:
    names = " ".join(["Ada"] * 10)
    spans = tuple(Span(4 * n, 4 * n + 3, "PERSON") for n in range(10))
    truths = [Truth(names, spans)] * 100
    read = [Reading(names if n < 30 else "", 0.5) for n in range(100)]
    (kind,) = leaked_kinds(truths, [read], ordered=True)
    assert kind.total == 1000
    for share in (kind.share, leaked_entities(truths, read, ordered=True)):
        assert share is not None
        # Ten in a text, all recovered or none: as wide as an interval of 100, not of 1,000.
        assert (share.low, share.high) == pytest.approx(wilson(30, 100), abs=2e-3)


def test_word_for_word_is_about_words() -> None:
    # What an embedder without case cannot hold is not asked of an attacker.
    assert reading("What kind of job is it?", 1.0, "what kind of job is it ?", "sequence").exact
    assert not reading("is it what kind of job", 0.9, "what kind of job is it ?", "sequence").exact
    assert not reading("What kind of jobs is it?", 0.9, "what kind of job is it ?", "sequence").exact
    assert reading("a b", 1.0, "a b", "set").exact is None


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
    assert clustered([(0, 1)] * 3).low == 0
    with pytest.raises(ValueError, match="no groups"):
        clustered([])
