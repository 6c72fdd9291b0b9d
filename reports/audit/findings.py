"""What an audit of a vector store finds: plain values, from which audit.json and the page are made.

    audit.readable                  # AuditedShare(value=.41, low=.37, high=.45, measured=False, rows=2000)
    audit.rows[0]                   # the most exposed row: id, cosine, probability, text

All shares run from 0 to 1, as their intervals (95 %) do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from examples import Span
from metrics.calibration import Estimate
from metrics.statistics import wilson
from reports.numbers import interval, shown


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
        """In percent; never rounded to nothing or to all."""
        return shown("share", self.value)

    @property
    def reach(self) -> str:
        """The interval in percent."""
        return interval("share", (self.low, self.high))

    @classmethod
    def of(cls, hits: Sequence[bool]) -> AuditedShare | None:
        """Measured: the share of ``hits``, Wilson's interval; None where there are none."""
        return cls.counted(sum(hits), len(hits))

    @classmethod
    def counted(cls, read: int, total: int) -> AuditedShare | None:
        """Measured: ``read`` of ``total``; None of nothing."""
        if not total:
            return None
        found = wilson(read, total)
        return cls(read / total, found.low, found.high, total, True)

    @classmethod
    def estimated(cls, estimate: Estimate, rows: int) -> AuditedShare:
        """What a calibration gives for so many rows."""
        return cls(estimate.value, estimate.interval.low, estimate.interval.high, rows, False)


@dataclass(frozen=True, slots=True)
class Truth:
    """The true text of a row, as its vector holds it."""

    text: str
    spans: tuple[Span, ...] = ()
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from one vector; the cosine is that of the text's own vector with the vector that was read.

    ``f1`` (0 to 100) and ``exact`` are None where the truth is not known; ``exact`` where words have no order, too.
    """

    text: str
    cosine: float
    f1: float | None = None
    exact: bool | None = None


@dataclass(frozen=True, slots=True)
class Exposed:
    """A row of the store.

    Attributes:
        id: What the store calls it.
        position: Its place in the store.
        reading: What was read from it.
        probability: To be readable, 0 to 1; None without a calibration.
        kinds: Kinds of entities in the recovered text, each once.
        text: The recovered text as it may be shown: masked, unless the user asked for it.
        truth: The true text in the clear, where it is known and the user asked for it.
    """

    id: str
    position: int
    reading: Reading
    probability: float | None
    kinds: tuple[str, ...]
    text: str
    truth: str | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entity.

    Attributes:
        label: Its name.
        total: Measured: entities in the true texts. Estimated: entities in the recovered texts.
        share: Measured: of those, the share that stands in the recovered text. Estimated: the share that is likely
            right, as it was for the run's own test texts; None where these have no entity of the kind.
    """

    label: str
    total: int
    share: AuditedShare | None


@dataclass(frozen=True, slots=True)
class Tried:
    """A defense, tried on some rows.

    Attributes:
        name: As the user wrote it, ``none`` for the rows as they are.
        readable: Share of rows that this attacker still reads; None where it cannot take the vectors at all.
        exact: The same, word for word; None too where words have no order.
        entities: Share of the true texts' entities that it reads; None without any.
        cosine: Mean, of the recovered text's vector with the undefended one.
        neighbours: Share of a row's ten nearest neighbours among these rows that are still among its ten nearest.
        dimension: Of the defended vectors.
    """

    name: str
    readable: AuditedShare | None
    exact: AuditedShare | None
    entities: AuditedShare | None
    cosine: float | None
    neighbours: float
    dimension: int


@dataclass(slots=True)
class Audit:
    """All that a report shows.

    Attributes:
        store: Name of the store, without passwords.
        size: Rows of the store.
        sampled: Rows that were read.
        dimension: Of the vectors.
        run: The attacker's directory, and what it is: attack, embedder, data.
        readable: Share of readable rows; None where it can be neither measured nor estimated.
        exact: The same, word for word.
        estimated: What was estimated without truth, beside what was measured; empty where nothing was measured.
        threshold: Word F1 in percent from which a text counts as readable.
        rows: The most exposed first.
        cosines: Of all rows that were read.
        known: Of the run's own test texts.
        curve: Cosine and probability to be readable, as it was calibrated.
        kinds: What leaks by kind, measured or estimated.
        held_out: The same, measured on the labelled entities of the run's own test texts.
        tagged: How the entities were found.
        tried: Defenses, ``none`` first.
        tried_on: Rows that they were tried on.
        warnings: What the reader must know before any metric.
        masked: Whether texts are masked.
    """

    store: str
    size: int
    sampled: int
    dimension: int
    run: dict[str, str]
    threshold: float
    masked: bool
    tagged: str
    readable: AuditedShare | None = None
    exact: AuditedShare | None = None
    estimated: dict[str, AuditedShare] = field(default_factory=dict)
    rows: list[Exposed] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    held_out: list[Kind] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    tried_on: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def entities(self) -> AuditedShare | None:
        """Share of the true texts' entities that were read, of any kind; None where it was not measured."""
        known = [kind for kind in self.kinds if kind.share is not None] if self.measured else []
        read = sum(round(kind.share.value * kind.total) for kind in known if kind.share is not None)
        return AuditedShare.counted(read, sum(kind.total for kind in known))

    @property
    def measured(self) -> bool:
        """Whether the headline shares were measured on true texts."""
        return self.readable is not None and self.readable.measured
