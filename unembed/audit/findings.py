"""The results of an audit as plain values, the source of audit.json and the HTML page.

    audit.readable                  # AuditedShare(value=.41, low=.37, high=.45, measured=False, rows=2000)
    audit.rows[0]                   # the most exposed row: id, cosine, probability, text

All shares and their 95 % intervals are between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from unembed.core.examples import Span
from unembed.metrics.calibration import Estimate
from unembed.metrics.statistics import clustered, wilson
from unembed.reports.numbers import interval, shown


@dataclass(frozen=True, slots=True)
class AuditedShare:
    """A share with its interval, and whether it was measured on true texts or estimated without."""

    value: float
    low: float
    high: float
    rows: int
    measured: bool

    @property
    def shown(self) -> str:
        """In percent; never rounded to 0 or 100."""
        return shown("share", self.value)

    @property
    def reach(self) -> str:
        """The interval in percent."""
        return interval("share", (self.low, self.high))

    @classmethod
    def of(cls, hits: Sequence[bool]) -> AuditedShare | None:
        """Measured: the share of ``hits`` with Wilson's interval; None if there are none."""
        return cls.counted(sum(hits), len(hits))

    @classmethod
    def counted(cls, read: int, total: int) -> AuditedShare | None:
        """Measured: ``read`` of ``total``; None if ``total`` is 0."""
        if not total:
            return None
        found = wilson(read, total)
        return cls(read / total, found.low, found.high, total, True)

    @classmethod
    def grouped(cls, counts: Sequence[tuple[int, int]]) -> AuditedShare | None:
        """Measured: k of n things of each text, whose interval counts texts; None if no text has any."""
        counts = [(read, total) for read, total in counts if total]
        if not counts:
            return None
        read, total = (sum(part) for part in zip(*counts, strict=True))
        found = clustered(counts)
        return cls(read / total, found.low, found.high, total, True)

    @classmethod
    def estimated(cls, estimate: Estimate, rows: int) -> AuditedShare:
        """The result of a calibration for ``rows`` rows."""
        return cls(estimate.value, estimate.interval.low, estimate.interval.high, rows, False)


def most(shares: Iterable[AuditedShare | None]) -> AuditedShare | None:
    """The largest of the known shares."""
    return max((one for one in shares if one is not None), key=lambda one: one.value, default=None)


@dataclass(frozen=True, slots=True)
class Truth:
    """The true text of a row, cut as it was embedded."""

    text: str
    spans: tuple[Span, ...] = ()
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The text recovered from one vector; ``cosine`` compares its embedding with that vector.

    ``f1`` (0 to 100) and ``exact`` (the same words in their order) are None if the true text is unknown; ``exact`` is
    also None for sets of words.
    """

    text: str
    cosine: float
    f1: float | None = None
    exact: bool | None = None


@dataclass(frozen=True, slots=True)
class Exposed:
    """A row of the store.

    Attributes:
        id: Its id in the store.
        position: Its position in the store.
        reading: The text recovered from it.
        probability: Probability that the text is readable, 0 to 1, which it is or not where its truth is known; None
            without a calibration.
        kinds: Distinct kinds of entities in the recovered text; where its truth is known, of those that stand in it.
        text: The recovered text, masked unless the user asked for the text.
        truth: The unmasked true text, if it is known and the user asked for it.
        same: Rows from which the same text was recovered, this one included.
        entities: Number of these entities.
    """

    id: str
    position: int
    reading: Reading
    probability: float | None
    kinds: tuple[str, ...]
    text: str
    truth: str | None = None
    same: int = 1
    entities: int = 0

    @property
    def rank(self) -> float:
        """Entities times probability (the cosine without one); a text without entities counts as a tenth of one."""
        return max(self.entities, 0.1) * (self.reading.cosine if self.probability is None else self.probability)

    @property
    def is_readable(self) -> bool:
        """Whether it is, where its truth is known; else whether that is more likely than not."""
        return (self.probability or 0.0) > 0.5


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entity.

    Attributes:
        label: Its name.
        total: Measured: entities in the true texts. Estimated: entities in the recovered texts.
        share: Of the true texts' entities, the share that is recovered; None if it was neither measured nor estimated.
    """

    label: str
    total: int
    share: AuditedShare | None


@dataclass(frozen=True, slots=True)
class Class:
    """A class of what texts hold: names, numbers, dates, e-mail, phone, free text, or other labels.

    Attributes:
        name: Of the class.
        total: Measured: how many the true texts have. Estimated: how many the recovered texts have.
        share: The share of them recovered, as for ``Kind``; None if there is none to count.
        found: ``labels`` (of the true texts), ``tagger`` or ``form`` (rules for patterns, digits and capital letters).
    """

    name: str
    total: int
    share: AuditedShare | None
    found: str


@dataclass(frozen=True, slots=True)
class Attacker:
    """An attacker of the store by itself.

    Attributes:
        name: ``attack`` (of the run), ``search`` (with lexicon search), ``other`` (of another run), ``lookup``, or
            ``closest``: of all texts the one whose vector is nearest.
        readable: Share of readable rows.
        exact: Share recovered word for word.
        cosine: Mean cosine of the recovered text's embedding with the vector.
        label: What a reader calls it.
        cost: Its seconds and queries, in words; empty if they are not counted.
    """

    name: str
    readable: AuditedShare | None
    exact: AuditedShare | None
    cosine: float
    label: str = ""
    cost: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """A defense tried on some rows.

    Attributes:
        name: As written by the user; ``none`` for the undefended rows.
        readable: Share of rows that the run's attack still recovers; None if it cannot accept the vectors.
        lookup: Share that a lookup recovers which knows the defense; None without a lookup.
        exact: Share recovered word for word; also None for sets of words.
        entities: Share of the true texts' entities that is recovered; None without entities.
        cosine: Mean cosine of the recovered text's embedding with the undefended vector.
        neighbours: Share of a row's ten nearest neighbours among these rows that are still among its ten nearest.
        dimension: Dimension of the defended vectors.
    """

    name: str
    readable: AuditedShare | None
    exact: AuditedShare | None
    entities: AuditedShare | None
    cosine: float | None
    neighbours: float
    dimension: int
    lookup: AuditedShare | None = None

    @property
    def worst(self) -> AuditedShare | None:
        """The larger of the shares that the attackers recover."""
        return most((self.readable, self.lookup))


@dataclass(slots=True)
class Audit:
    """All results shown in the report.

    Attributes:
        store: Name of the store, without passwords.
        named: The overrides that name it on a command line: its address and, where it has some, its collection.
        size: Rows of the store.
        sampled: Number of inverted rows.
        dimension: Dimension of the vectors.
        run: The attacker's run directory with its attack, embedder and data.
        readable: Share of readable rows; None if it can be neither measured nor estimated.
        exact: Share recovered word for word.
        entities: Share of the true texts' entities of any kind that one attacker recovers; None if it was neither
            measured nor estimated.
        attackers: The attackers by themselves; ``readable`` and ``exact`` are the largest of theirs.
        insider: Who knows the other true texts of the store, and takes for each row that with the nearest vector; None
            if fewer than two are known. No part of the headline.
        estimated: Estimates made without true texts, to compare with measured shares; empty if none was measured.
        threshold: Word F1 in percent at which a text counts as readable.
        rows: The most exposed rows, first by entities times probability; of rows with one text, the first.
        examples: A few rows to open with: readable ones, if there are any.
        ranked: All rows, for exposed.csv: id, rank, probability, cosine, number of entities and of rows with its text.
        cosines: Cosines of all inverted rows.
        known: Cosines of the attacker's test texts, those in calibration.jsonl included.
        curve: Points (cosine, probability of being readable) of the calibration.
        kinds: Leaked entities by kind, measured or estimated.
        classes: Exposure by class, in the order in which they are shown.
        held_out: The kinds, measured on the labelled entities of the run's test texts.
        tagged: How the entities were found.
        tried: Results by defense, ``none`` first.
        tried_on: Number of rows that defenses were tried on.
        warnings: Warnings shown before any metric.
        unjudged: Why the shares say little of the store, a sentence; empty if they do.
        masked: Whether texts are masked.
    """

    store: str
    named: tuple[str, ...]
    size: int
    sampled: int
    dimension: int
    run: dict[str, str]
    threshold: float
    masked: bool
    tagged: str
    readable: AuditedShare | None = None
    exact: AuditedShare | None = None
    entities: AuditedShare | None = None
    attackers: list[Attacker] = field(default_factory=list)
    insider: Attacker | None = None
    estimated: dict[str, AuditedShare] = field(default_factory=dict)
    rows: list[Exposed] = field(default_factory=list)
    examples: list[Exposed] = field(default_factory=list)
    ranked: list[tuple[str, float, float | None, float, int, int]] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    held_out: list[Kind] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    tried_on: int = 0
    warnings: list[str] = field(default_factory=list)
    unjudged: str = ""

    @property
    def measured(self) -> bool:
        """Whether the headline shares were measured on true texts."""
        return self.readable is not None and self.readable.measured
