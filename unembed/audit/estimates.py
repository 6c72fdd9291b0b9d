"""Shares of a store whose texts are not known, estimated from texts whose truth is known by what a cosine meant there.

    estimator = Estimator([*read_scored(run), *scored(readings)])   # calibration.jsonl, and the run's own test texts
    estimator.estimated(readings_of_the_store, readable=80)         # Share(.41, .29, .55, measured=False)

calibration.jsonl of a shipped attacker has a line for each held-out text of its training corpora, without the text:

    {"source": "goemotions", "words": 13, "cosine": 0.81, "f1": 64.2, "exact": false,
     "classes": {"names": [2, 1, 3]}, "kinds": {}}

``words`` is the length of the recovered text, ``f1`` in percent. By class and kind it counts parts in the true text,
of these recovered, and in the recovered text. metrics/calibration.py says how shares come of them.

Parts of a store's texts (names, numbers, ...) are estimated alike: the probability that a part of a text comes back is
averaged over the recovered texts by the parts written in each, which stand in for those of the true texts. Where fewer
than ``SMALLEST`` known texts have such a part, as is so for mail addresses, the entities of all kinds are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt

from unembed.audit.exposure import FREE, Found, Items, class_of, entities_of, items_of, shown_classes
from unembed.audit.results import DataClass, Kind, Reading, Share, Truth, largest
from unembed.metrics import calibration
from unembed.metrics.entities import recovered_entities
from unembed.metrics.tokens import words
from unembed.runs import layout
from unembed.runs.files import read_lines
from unembed.scoring.recognisers import LABELS, Recognisers
from unembed.scoring.taggers import Tagger

TEST_TEXTS = "the run's test texts"  # the domain of the texts in predictions.jsonl


def _within(counts: tuple[int, int, int]) -> tuple[int, int, int]:
    total, back, _ = counts
    if back > total:
        raise ValueError(f"{back} recovered of {total}")
    return counts


# In the true text, of these recovered, in the recovered text.
Count = Annotated[tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt], AfterValidator(_within)]
Counts = Mapping[str, tuple[int, int, int]]
Group = Literal["classes", "kinds"]


class Parts(NamedTuple):
    """The counts of a text's parts by class, and by kind: the labels of a tagger, or of the recognisers."""

    classes: Counts
    kinds: Counts


class Scored(BaseModel):
    """The scores of a recovered text whose truth is known.

    ``exact`` is None for sets of words; ``classes`` and ``kinds`` are None if its parts were not counted.
    """

    model_config = ConfigDict(frozen=True)

    source: str
    words: int = Field(ge=0)
    cosine: float = Field(ge=-1.001, le=1.001)
    f1: float = Field(ge=0, le=100)
    exact: bool | None
    classes: dict[str, Count] | None = None
    kinds: dict[str, Count] | None = None


def read_scored(run: Path) -> list[Scored]:
    """The lines of a run's calibration.jsonl; none if it has no such file."""
    path = run / layout.CALIBRATION
    return read_lines(path, Scored) if path.is_file() else []


def scored(readings: Sequence[Reading], parts: Sequence[Parts] | None = None) -> list[Scored]:
    """The scores of the run's test texts, as one domain; with the counts of their parts, if given."""
    return [
        Scored.model_construct(
            source=TEST_TEXTS,
            words=length(one),
            cosine=one.cosine,
            f1=one.f1,
            exact=one.exact,
            classes=None if parts is None else parts[row].classes,
            kinds=None if parts is None else parts[row].kinds,
        )
        for row, one in enumerate(readings)
        if one.f1 is not None
    ]


def length(reading: Reading) -> int:
    """Words of a recovered text."""
    return len(words(reading.text))


def features(read: Sequence[Reading]) -> tuple[list[float], list[int]]:
    """Cosines and lengths, what a calibration takes."""
    return [one.cosine for one in read], [length(one) for one in read]


def was_read(one: Reading | Scored, readable: float | None) -> bool:
    """Whether a text was recovered with at least ``readable`` percent word F1, or word for word (None)."""
    if readable is None:
        return bool(one.exact)
    return one.f1 is not None and one.f1 >= readable


def measured(read: Sequence[Reading], readable: float | None) -> Share | None:
    """The share of the texts whose truth is known that were recovered; None if there is none."""
    known = [one for one in read if one.f1 is not None]
    return Share.counted(sum(was_read(one, readable) for one in known), len(known))


class Estimator:
    """Shares of a store, from ``known`` scores of one attacker; one calibration is kept for each threshold."""

    def __init__(self, known: Sequence[Scored]) -> None:
        self.known = list(known)
        self._calibrations: dict[float | None, calibration.Calibration] = {}

    def calibrated(self, readable: float | None) -> calibration.Calibration | None:
        """What a cosine meant for these texts; ``readable`` as for ``was_read``; None if there are too few."""
        if len(self.known) < calibration.SMALLEST:
            return None
        if readable not in self._calibrations:
            self._calibrations[readable] = _fit(self.known, [was_read(one, readable) for one in self.known])
        return self._calibrations[readable]

    def estimated(self, read: Sequence[Reading], readable: float | None) -> Share | None:
        """The share estimated without true texts; None if too few known texts are there for a calibration."""
        calibrated = self.calibrated(readable)
        return None if calibrated is None else Share.estimated(calibrated.share(*features(read)), len(read))

    def share(self, read: Sequence[Reading], readable: float | None) -> Share | None:
        """The share of texts recovered, ``readable`` as for ``was_read``.

        Measured if the true text of any row is known, else estimated; None if neither is possible.
        """
        return measured(read, readable) or self.estimated(read, readable)


def _fit(known: Sequence[Scored], hits: Sequence[int], totals: Sequence[int] | None = None) -> calibration.Calibration:
    cosines, lengths, sources = zip(*((one.cosine, one.words, one.source) for one in known), strict=True)
    return calibration.fit(cosines, lengths, hits, sources, totals)


# -- parts of the texts ------------------------------------------------------------------------------------------------


def counted(
    truths: Sequence[str | None], recovered: Sequence[str], tagger: Tagger | None, *, ordered: bool
) -> list[Parts]:
    """The counts of each text; unknown truths count as empty, and without a tagger entities are found by form.

    ``ordered``: whether the order of recovered words is meaningful.
    """
    texts = [*((one or "") for one in truths), *recovered]
    spans = (tagger or Recognisers()).tag(texts)
    by_class, _ = items_of(texts, [()] * len(texts) if tagger is None else spans)
    by_kind = [entities_of(text, one) for text, one in zip(texts, spans, strict=True)]
    return [
        Parts(
            *(_counts(values[row], values[len(recovered) + row], text, ordered) for values in (by_class, by_kind))
        )
        for row, text in enumerate(recovered)
    ]  # fmt: skip


def _counts(true: Items, written: Items, recovered: str, ordered: bool) -> Counts:
    """Of each name that either has."""
    counts = {}
    for name in dict.fromkeys([*true, *written]):
        values, again = true.get(name, ()), written.get(name, ())
        if values or again:
            counts[name] = (len(values), recovered_entities(values, recovered, ordered=ordered), len(again))
    return counts


class PartEstimator(NamedTuple):
    """Shares of parts that come back, of one attacker: the parts ``written`` in each of its readings of the store, and
    ``known`` scores of texts whose truth is known, with the counts of their parts.
    """

    readings: Sequence[Reading]
    written: Sequence[Parts]
    known: Sequence[Scored]

    @classmethod
    def of(
        cls,
        readings: Sequence[Reading],
        tested: Sequence[Reading],
        truths: Sequence[Truth],
        known: Sequence[Scored],
        tagger: Tagger | None,
        *,
        ordered: bool,
    ) -> PartEstimator:
        """Count the parts; ``tested`` are texts whose ``truths`` are known, ``known`` others' scores."""
        written = counted([None] * len(readings), [one.text for one in readings], tagger, ordered=ordered)
        parts = counted([one.text for one in truths], [one.text for one in tested], tagger, ordered=ordered)
        with_parts = [score for score in known if score.classes is not None]
        return cls(readings, written, [*with_parts, *scored(tested, parts)])

    def names(self, group: Group) -> list[str]:
        """The classes or kinds in the recovered texts."""
        return list(dict.fromkeys(name for parts in self.written for name in getattr(parts, group)))

    def total(self, group: Group, name: str) -> int:
        """How many parts of a class or kind the recovered texts have."""
        return sum(_count(getattr(parts, group), name)[2] for parts in self.written)

    def share(self, group: Group, name: str | None) -> Share | None:
        """The share of the store's parts of this name that comes back, None standing for entities of all kinds.

        None if nothing is known of entities.
        """
        written = [_count(getattr(parts, group), name)[2] for parts in self.written]
        rows = [(read, count) for read, count in zip(self.readings, written, strict=True) if count]
        known = self._known(group, name)
        if len(known) < calibration.SMALLEST:
            known = self._known("kinds", None)
        if len(known) < calibration.SMALLEST or not rows:
            return None
        scores, totals, back = zip(*known, strict=True)
        read, weights = zip(*rows, strict=True)
        estimate = _fit(scores, back, totals).share(*features(read), weights=weights)
        return Share.estimated(estimate, sum(weights))

    def _known(self, group: Group, name: str | None) -> list[tuple[Scored, int, int]]:
        """The known texts that have such parts: how many, and how many came back."""
        tagged = name not in LABELS if name else any(kind not in LABELS for kind in self.names("kinds"))
        by_class = group == "kinds" and tagged  # calibration.jsonl counts what only a tagger finds by class
        known = []
        for score in self.known:
            if by_class and score.source != TEST_TEXTS:
                counts = {one: count for one, count in (score.classes or {}).items() if one != FREE}
                total, back, _ = _count(counts, name and class_of(name))
            else:
                total, back, _ = _count(getattr(score, group) or {}, name)
            if total:
                known.append((score, total, back))
        return known


def _count(counts: Counts, name: str | None) -> tuple[int, int, int]:
    """Of a name, or of all together."""
    if name is not None:
        return counts.get(name, (0, 0, 0))
    total, back, written = (sum(one[part] for one in counts.values()) for part in range(3))
    return total, back, written


def estimated_classes(own: Sequence[PartEstimator], tagger: Tagger | None) -> list[DataClass]:
    """Exposure by class, of the attacker who recovers most of each; ``total`` is what it wrote of the class."""
    tagged = set() if tagger is None else {class_of(label) for one in own for label in one.names("kinds")}
    classes = []
    for name in shown_classes({name for one in own for name in one.names("classes")}):
        total, share = _most(own, "classes", name)
        classes.append(DataClass(name=name, total=total, share=share, found="tagger" if name in tagged else "form"))
    return classes


def estimated_kinds(own: Sequence[PartEstimator]) -> list[Kind]:
    """The kinds of entities in the recovered texts, of the attacker who recovers most of each; most frequent first."""
    kinds = []
    for label in dict.fromkeys(label for one in own for label in one.names("kinds")):
        total, share = _most(own, "kinds", label)
        kinds.append(Kind(label=label, total=total, share=share))
    return sorted(kinds, key=lambda kind: (-kind.total, kind.label))


def estimated_entities(own: Sequence[PartEstimator]) -> Share | None:
    """The share of entities of any kind, of the attacker who recovers most."""
    return largest(one.share("kinds", None) for one in own)


def _most(own: Sequence[PartEstimator], group: Group, name: str) -> tuple[int, Share | None]:
    """How many such parts were written, and the share that comes back, of the attacker where it is largest."""
    every = [(one.total(group, name), one.share(group, name)) for one in own]
    return max(every, key=lambda pair: (-1.0 if pair[1] is None else pair[1].value, pair[0]))


def leaked_classes(
    truths: Sequence[Truth], by_attacker: Sequence[Sequence[Reading]], found: Found, *, ordered: bool
) -> list[DataClass]:
    """Of each class in the true texts, the share that the attacker who reads most of it recovers.

    ``by_attacker`` has each attacker's texts in the order of the ``truths``, whose labelled classes, ``found`` in this
    way, are not searched for by form. ``ordered``: whether the order of recovered words is meaningful.
    """
    values, labels = items_of([one.text for one in truths], [one.spans for one in truths])
    return [
        DataClass(name=name, **_leak(values, name, by_attacker, ordered), found=found if name in labels else "form")
        for name in shown_classes({name for one in values for name in one})
    ]


def leaked_kinds(truths: Sequence[Truth], by_attacker: Sequence[Sequence[Reading]], *, ordered: bool) -> list[Kind]:
    """For each kind of entity in the true texts, the share that the attacker who recovers most of it recovers.

    The most frequent kinds come first. Intervals count texts: entities of one text are recovered or missed together.
    """
    values = [entities_of(one.text, one.spans) for one in truths]
    labels = dict.fromkeys(label for one in values for label in one)
    kinds = [Kind(label=label, **_leak(values, label, by_attacker, ordered)) for label in labels]
    return sorted(kinds, key=lambda kind: (-kind.total, kind.label))


def leaked_entities(truths: Sequence[Truth], readings: Sequence[Reading], *, ordered: bool) -> Share | None:
    """The share of the entities of any kind that was recovered; its interval counts texts. None without entities."""
    counts = []
    for truth, reading in zip(truths, readings, strict=True):
        values = entities_of(truth.text, truth.spans).values()
        read = sum(recovered_entities(one, reading.text, ordered=ordered) for one in values)
        counts.append((read, sum(map(len, values))))
    return Share.grouped(counts)


def _leak(
    values: Sequence[Items], name: str, by_attacker: Sequence[Sequence[Reading]], ordered: bool
) -> dict[str, Any]:
    """How many parts of this name the texts have, and the largest share of them that an attacker recovers."""
    wanted = [one.get(name, ()) for one in values]
    shares = []
    for readings in by_attacker:
        read = (recovered_entities(one, text.text, ordered=ordered) for one, text in zip(wanted, readings, strict=True))
        shares.append(Share.grouped(list(zip(read, map(len, wanted), strict=True))))
    return {"total": sum(map(len, wanted)), "share": largest(shares)}
