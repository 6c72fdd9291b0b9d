"""Shares of a store whose texts are not known, estimated from texts whose truth is known by what a cosine meant there.

    estimator = Estimator([*read_scored(run), *scored(readings)])   # calibration.jsonl, and the run's own test texts
    estimator.estimated(readings_of_the_store, readable=80)         # AuditedShare(.41, .29, .55, measured=False)

calibration.jsonl of a shipped attacker has a line for each held-out text of its training corpora, without the text:

    {"source": "goemotions", "words": 13, "cosine": 0.81, "f1": 64.2, "exact": false,
     "classes": {"names": [2, 1, 3]}, "kinds": {}}

``words`` is the length of the recovered text, ``f1`` in percent; part_counts.py says what is counted by class and kind.
metrics/calibration.py says how shares come of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from unembed.audit.findings import AuditedShare, Reading
from unembed.core.errors import InputError
from unembed.metrics import calibration
from unembed.metrics.tokens import words
from unembed.runs import layout

TEST_TEXTS = "the run's test texts"  # the domain of the texts in predictions.jsonl


def _within(counts: tuple[int, int, int]) -> tuple[int, int, int]:
    total, back, _ = counts
    if back > total:
        raise ValueError(f"{back} recovered of {total}")
    return counts


# In the true text, of these recovered, in the recovered text.
Counts = Annotated[tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt], AfterValidator(_within)]


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
    classes: dict[str, Counts] | None = None
    kinds: dict[str, Counts] | None = None


def read_scored(run: Path) -> list[Scored]:
    """The lines of a run's calibration.jsonl; none if it has no such file.

    Raises:
        InputError: A line is not of the form above.
    """
    path = run / layout.CALIBRATION
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error.reason} at byte {error.start})") from error
    for number, line in enumerate(lines, start=1):
        try:
            found.append(Scored.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{path}:{number}: {where + ': ' if where else ''}{first['msg']}") from error
    return found


def scored(readings: Sequence[Reading]) -> list[Scored]:
    """The scores of the run's test texts, as one domain."""
    return [
        Scored.model_construct(source=TEST_TEXTS, words=length(one), cosine=one.cosine, f1=one.f1, exact=one.exact)
        for one in readings
        if one.f1 is not None
    ]


def length(reading: Reading) -> int:
    """Words of a recovered text."""
    return len(words(reading.text))


class Estimator:
    """Shares of a store, from texts of one attacker whose truth is known; one calibration is kept for each threshold.

    Attributes:
        known: The scores of these texts.
    """

    def __init__(self, known: Sequence[Scored]) -> None:
        self.known = list(known)
        self._learned: dict[float | None, calibration.Calibration] = {}

    def learned(self, readable: float | None) -> calibration.Calibration | None:
        """What a cosine meant for these texts; ``readable`` as for ``was_read``; None if there are too few."""
        if len(self.known) < calibration.SMALLEST:
            return None
        if readable not in self._learned:
            self._learned[readable] = calibration.fit(
                [one.cosine for one in self.known],
                [one.words for one in self.known],
                [was_read(one, readable) for one in self.known],
                [one.source for one in self.known],
            )
        return self._learned[readable]

    def estimated(self, read: Sequence[Reading], readable: float | None) -> AuditedShare | None:
        """The share estimated without true texts; None if too few known texts are there for a calibration."""
        learned = self.learned(readable)
        return None if learned is None else AuditedShare.estimated(learned.share(*features(read)), len(read))

    def share(self, read: Sequence[Reading], readable: float | None) -> AuditedShare | None:
        """The share of texts recovered with at least ``readable`` percent word F1, or word for word (None).

        Measured if the true text of any row is known, else estimated; None if neither is possible.
        """
        return measured(read, readable) or self.estimated(read, readable)


def measured(read: Sequence[Reading], readable: float | None) -> AuditedShare | None:
    """The share of the texts whose truth is known that were recovered; None if there is none."""
    return AuditedShare.of([was_read(one, readable) for one in read if one.f1 is not None])


def features(read: Sequence[Reading]) -> tuple[list[float], list[int]]:
    """Cosines and lengths, what a calibration takes."""
    return [one.cosine for one in read], [length(one) for one in read]


def was_read(one: Reading | Scored, readable: float | None) -> bool:
    """Whether a text was recovered with enough word F1, or word for word (``readable`` None)."""
    if readable is None:
        return bool(one.exact)
    return one.f1 is not None and one.f1 >= readable
