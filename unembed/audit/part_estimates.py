"""Shares of names, numbers, dates and other parts of a store's texts that come back, without their true texts.

    own = PartEstimator.of(contender, known_truths, tagger, ordered=True)
    own.share("classes", "names")              # AuditedShare(.07, .02, .2, rows=1204, measured=False)

Of the attacker's known texts, its test texts and those in calibration.jsonl, the parts of the true text and those that
came back are counted. A logistic regression on cosine and length with a random intercept for each source
(metrics/calibration.py) gives the probability that a part of a text comes back. It is averaged over the store's
recovered texts by the parts written in each, which stand in for those of the true texts. Where fewer than ``SMALLEST``
known texts have such a part, as is so for mail addresses, the regression is fitted to the entities of all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from unembed.audit.contenders import Contender
from unembed.audit.estimates import TEST_TEXTS, Scored, features, scored
from unembed.audit.exposure import FREE, class_of, shown_classes
from unembed.audit.findings import AuditedShare, Class, Kind, Reading, Truth, most
from unembed.audit.part_counts import Counts, Parts, counted
from unembed.metrics import calibration
from unembed.scoring.recognisers import LABELS
from unembed.scoring.taggers import Tagger

Group = Literal["classes", "kinds"]
_NONE = (0, 0, 0)


class _Known(NamedTuple):
    """A text of known truth: its parts, and those of them that came back."""

    score: Scored
    total: int
    back: int


@dataclass(frozen=True, slots=True)
class PartEstimator:
    """Of one attacker.

    Attributes:
        readings: Its texts of the store.
        written: The parts of each.
        known: Scores of texts whose truth is known, with the counts of their parts.
    """

    readings: Sequence[Reading]
    written: Sequence[Parts]
    known: Sequence[Scored]

    @classmethod
    def of(
        cls, one: Contender, known_truths: Sequence[Truth], tagger: Tagger | None, *, ordered: bool
    ) -> PartEstimator:
        """Count the parts of an attacker's texts; ``known_truths`` are those of ``one.tested``."""
        written = counted([None] * len(one.readings), [read.text for read in one.readings], tagger, ordered=ordered)
        true = [truth.text for truth in known_truths]
        tested = counted(true, [read.text for read in one.tested], tagger, ordered=ordered)
        own = [
            score.model_copy(update=parts._asdict()) for score, parts in zip(scored(one.tested), tested, strict=True)
        ]
        before = [score for score in one.estimator.known if score.classes is not None]
        return cls(one.readings, written, [*before, *own])

    def total(self, group: Group, name: str) -> int:
        """How many parts of a class or kind the recovered texts have."""
        return sum(_of(parts, group, name)[2] for parts in self.written)

    def names(self, group: Group) -> list[str]:
        """The classes or kinds in the recovered texts."""
        return list(dict.fromkeys(name for parts in self.written for name in getattr(parts, group)))

    def share(self, group: Group, name: str) -> AuditedShare | None:
        """The share of these parts of the store that comes back; None if nothing is known of entities."""
        written = [_of(parts, group, name)[2] for parts in self.written]
        known = self._having([_known(score, group, name) for score in self.known])
        return self._estimated(known if len(known) >= calibration.SMALLEST else self._entities(), written)

    def entities(self) -> AuditedShare | None:
        """The share of the store's entities of any kind that comes back; None if nothing is known of them."""
        return self._estimated(self._entities(), [_sum(parts.kinds)[2] for parts in self.written])

    def _entities(self) -> list[_Known]:
        """The known texts with the counts of their entities of any kind.

        calibration.jsonl counts the kinds that need no tagger; those that only a tagger finds are counted by class.
        """
        tagged = any(name not in LABELS for name in self.names("kinds"))
        counts = []
        for score in self.known:
            by_class = {name: one for name, one in (score.classes or {}).items() if name != FREE}
            by_kind = score.kinds or {}
            counts.append(_sum(by_class if tagged and score.source != TEST_TEXTS else by_kind)[:2])
        return self._having(counts)

    def _having(self, counts: Sequence[tuple[int, int]]) -> list[_Known]:
        return [_Known(score, *one) for score, one in zip(self.known, counts, strict=True) if one[0]]

    def _estimated(self, known: Sequence[_Known], written: Sequence[int]) -> AuditedShare | None:
        """The share of what is ``written`` in each text, from texts that have such parts."""
        rows = [(read, count) for read, count in zip(self.readings, written, strict=True) if count]
        if len(known) < calibration.SMALLEST or not rows:
            return None
        scores, totals, back = zip(*known, strict=True)
        learned = calibration.fit(
            [one.cosine for one in scores],
            [one.words for one in scores],
            back,
            [one.source for one in scores],
            totals,
        )
        weights = [count for _, count in rows]
        found = learned.share(*features([read for read, _ in rows]), weights=weights)
        return AuditedShare.estimated(found, sum(weights))


def _of(parts: Parts, group: Group, name: str) -> tuple[int, int, int]:
    counts: Counts = getattr(parts, group)
    return counts.get(name, _NONE)


def _sum(counts: Counts) -> tuple[int, int, int]:
    """Of all names together."""
    total, back, written = (sum(one[part] for one in counts.values()) for part in range(3))
    return total, back, written


def _known(score: Scored, group: Group, name: str) -> tuple[int, int]:
    """Parts of the true text, and those recovered; a kind that a tagger finds is only a class in calibration.jsonl."""
    counts: Counts = getattr(score, group) or {}
    if group == "kinds" and name not in LABELS and score.source != TEST_TEXTS:
        counts, name = score.classes or {}, class_of(name)
    return counts.get(name, _NONE)[:2]


def estimated_classes(own: Sequence[PartEstimator], tagger: Tagger | None) -> list[Class]:
    """Exposure by class, of the attacker who recovers most of each; ``total`` is what it wrote of the class."""
    tagged = set() if tagger is None else {class_of(label) for one in own for label in one.names("kinds")}
    names = shown_classes({name for one in own for name in one.names("classes")})
    return [Class(name, *_most(own, "classes", name), "tagger" if name in tagged else "form") for name in names]


def estimated_kinds(own: Sequence[PartEstimator]) -> list[Kind]:
    """The kinds of entities in the recovered texts, of the attacker who recovers most of each; most frequent first."""
    labels = dict.fromkeys(label for one in own for label in one.names("kinds"))
    kinds = [Kind(label, *_most(own, "kinds", label)) for label in labels]
    return sorted(kinds, key=lambda kind: (-kind.total, kind.label))


def estimated_entities(own: Sequence[PartEstimator]) -> AuditedShare | None:
    """The share of entities of any kind, of the attacker who recovers most."""
    return most(one.entities() for one in own)


def _most(own: Sequence[PartEstimator], group: Group, name: str) -> tuple[int, AuditedShare | None]:
    """How many such parts were written, and the share that comes back, of the attacker where it is largest."""
    found = [(one.total(group, name), one.share(group, name)) for one in own]
    return max(found, key=lambda pair: (-1.0 if pair[1] is None else pair[1].value, pair[0]))
