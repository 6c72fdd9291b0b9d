"""The results of an audit: what audit.json holds, the page shows, and ``unembed.audit_vectors`` returns.

    audit.readable         # Share(value=.41, low=.37, high=.45, rows=2000, measured=False)
    audit.rows[0]          # the most exposed row: id, cosine, probability, text

Shares and their 95 % intervals are between 0 and 1. docs/audit-1.schema.json is made from these classes. Fields with
``exclude=True`` stay in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter
from pydantic.json_schema import SkipJsonSchema

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError
from unembed.core.examples import Span
from unembed.metrics.calibration import Estimate
from unembed.metrics.statistics import clustered, wilson
from unembed.reports.numbers import interval, shown
from unembed.runs.files import validated

VALUES, VERSION = "audit.json", 1
Fraction = Annotated[float, Field(ge=0, le=1)]
Cosine = Annotated[float, Field(ge=-1.001, le=1.001)]
Percent = Annotated[float, Field(ge=0, le=100)]


class Truth(NamedTuple):
    """The true text of a row, cut as it was embedded."""

    text: str
    spans: tuple[Span, ...] = ()
    language: str | None = None


class Reading(NamedTuple):
    """The text recovered from one vector; ``cosine`` compares its embedding with that vector.

    ``f1`` (0 to 100) and ``exact`` (the same words in their order) are None if the true text is unknown; ``exact`` is
    also None for sets of words.
    """

    text: str
    cosine: float
    f1: float | None = None
    exact: bool | None = None


class _Part(BaseModel):
    # Later versions of one number may add keys; they never change or remove one.
    model_config = ConfigDict(extra="allow", json_schema_serialization_defaults_required=True)


class Share(_Part):
    """A share with its 95 % interval, of ``rows`` rows; estimated without true texts unless ``measured``."""

    value: Fraction
    low: Fraction
    high: Fraction
    rows: NonNegativeInt
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
    def counted(cls, read: int, total: int) -> Share | None:
        """Measured: ``read`` of ``total``, with Wilson's interval; None if ``total`` is 0."""
        if not total:
            return None
        ends = wilson(read, total)
        return cls(value=read / total, low=ends.low, high=ends.high, rows=total, measured=True)

    @classmethod
    def grouped(cls, counts: Sequence[tuple[int, int]]) -> Share | None:
        """Measured: k of n things of each text, whose interval counts texts; None if no text has any."""
        counts = [(read, total) for read, total in counts if total]
        if not counts:
            return None
        read, total = (sum(part) for part in zip(*counts, strict=True))
        ends = clustered(counts)
        return cls(value=read / total, low=ends.low, high=ends.high, rows=total, measured=True)

    @classmethod
    def estimated(cls, estimate: Estimate, rows: int) -> Share:
        """The result of a calibration for ``rows`` rows."""
        ends = estimate.interval
        return cls(value=estimate.value, low=ends.low, high=ends.high, rows=rows, measured=False)


def largest(shares: Iterable[Share | None]) -> Share | None:
    """The largest of the known shares."""
    return max((one for one in shares if one is not None), key=lambda one: one.value, default=None)


class Kind(_Part):
    """A kind of entity, how many the true texts have (estimated: the recovered texts), and the share that leaks."""

    label: str
    total: NonNegativeInt
    share: Share | None


class DataClass(_Part):
    """A class of what texts hold (names, numbers, ...), as ``Kind``.

    ``found`` says how its parts were found: by ``labels`` of the true texts, a ``tagger``, or their ``form``.
    """

    name: str
    total: NonNegativeInt
    share: Share | None
    found: Literal["labels", "tagger", "form"]


class Row(_Part):
    """A row of the store, and the text recovered from it.

    ``probability``: that the text is readable, which it is or not where its truth is known; None without a calibration.
    ``kinds``: of entities in the recovered text; where its truth is known, of those that stand in it. ``text`` is
    masked, and ``truth`` None, unless the user asked for text. ``same`` rows gave this text.
    """

    id: str
    position: NonNegativeInt
    cosine: Cosine
    probability: Fraction | None
    kinds: tuple[str, ...]
    text: str
    truth: str | None = None
    f1: Percent | None = None
    exact: bool | None = None
    same: NonNegativeInt = 1
    entities: NonNegativeInt = 0

    @property
    def rank(self) -> float:
        """Entities times probability (the cosine without one); a text without entities counts as a tenth of one."""
        return max(self.entities, 0.1) * (self.cosine if self.probability is None else self.probability)

    @property
    def outcome(self) -> str:
        """How right the text is, where its truth is known."""
        if self.f1 is None:
            return ""
        return "word for word" if self.exact else f"word F1 {self.f1:.0f} %"

    @property
    def is_readable(self) -> bool:
        """Whether it is, where its truth is known; else whether that is more likely than not."""
        return (self.probability or 0.0) > 0.5


class AttackerResult(_Part):
    """An attacker by itself, with the mean cosine of its texts.

    ``name``: ``attack`` (of the run), ``search`` (with a search), ``other`` (of another run), ``lookup``, or
    ``closest``: of all texts the one whose vector is nearest. ``cost``: seconds and queries, if they are counted.
    """

    name: Literal["attack", "search", "other", "lookup", "closest"]
    readable: Share | None
    exact: Share | None
    cosine: Cosine
    label: str = ""
    cost: str = ""

    @property
    def title(self) -> str:
        return self.label or self.name


class DefenseResult(_Part):
    """A defense tried on some rows (``none``: the undefended rows), and what is still read.

    Attributes:
        readable: Share of rows that the run's attack still recovers; None if it cannot accept the vectors.
        lookup: Share that a lookup recovers which knows the defense; None without a lookup.
        entities: Share of the true texts' entities that is recovered.
        cosine: Mean cosine of the recovered text's embedding with the undefended vector.
        neighbours: Share of a row's ten nearest neighbours among these rows that are still among its ten nearest.
        width: Dimension of the defended vectors.
        holds: Against whom the defense holds, as measured on other text (docs/locks.md); empty: not known.
    """

    name: str
    readable: Share | None
    lookup: Share | None = None
    exact: Share | None = None
    entities: Share | None = None
    cosine: Cosine | None = None
    neighbours: Fraction
    width: PositiveInt
    holds: str = ""

    @property
    def worst(self) -> Share | None:
        """The larger of the shares that the attackers recover."""
        return largest((self.readable, self.lookup))


def least_read(tried: Sequence[DefenseResult]) -> DefenseResult | None:
    """The defense that leaves its best attacker least; of several, the one that keeps most neighbours."""
    known = [(one.worst.value, -one.neighbours, one) for one in tried if one.worst is not None]
    return min(known, key=lambda one: one[:2])[2] if known else None


class Condition(_Part):
    """A share, and the percentage that its interval must not exceed."""

    name: str
    percent: Percent

    @property
    def text(self) -> str:
        return f"{self.name}>{self.percent:g}"


class Threshold(Condition):
    """The outcome of a condition of ``fail_on``; ``share`` None: nothing of the kind was there, or not judged."""

    passed: bool
    said: str
    share: SkipJsonSchema[Share | None] = Field(None, exclude=True)

    @property
    def outcome(self) -> str:
        return "holds" if self.passed else "NOT JUDGED" if self.share is None else "EXCEEDED"


class Change(_Part):
    """A share in this audit and in the one of ``baseline``; ``apart``: their intervals do not overlap."""

    name: str
    before: Share
    after: Share
    apart: bool


class Audit(_Part):
    """All results.

    Attributes:
        store: Name of the store, without passwords.
        named: The overrides that name it on a command line: its address and, where it has some, its collection.
        size: Rows of the store, of which ``sampled`` were inverted.
        width: Dimension of the vectors.
        run: The attacker's run directory with its attack, embedder and data.
        threshold: Word F1 in percent at which a text counts as readable.
        tagged: How the entities were found.
        readable: Share of readable rows; None if it can be neither measured nor estimated. Like ``exact``, word for
            word, the largest of the ``attackers``.
        entities: Share of the true texts' entities of any kind that one attacker recovers.
        insider: Who knows the other true texts of the store, and takes for each row that with the nearest vector.
        estimated: Estimates made without true texts, to compare with measured shares.
        rows: The most exposed rows, first by ``Row.rank``; of rows with one text, the first.
        examples: A few rows to open with: readable ones, if there are any.
        ranked: All rows, for exposed.csv.
        cosines: Of all inverted rows.
        known: Cosines of the attacker's test texts, those in calibration.jsonl included.
        curve: Points (cosine, probability of being readable) of the calibration.
        kinds: Leaked entities by kind; ``held_out`` the same of the run's labelled test texts.
        tried: Results by defense, ``none`` first, on ``tried_on`` rows.
        unjudged: Why the shares say little of the store, a sentence; empty if they do.
    """

    version: Literal[1] = 1
    store: str
    named: SkipJsonSchema[tuple[str, ...]] = Field((), exclude=True)
    size: NonNegativeInt
    sampled: NonNegativeInt
    width: PositiveInt
    run: dict[str, str]
    threshold: float
    masked: bool
    tagged: str
    readable: Share | None = None
    exact: Share | None = None
    entities: Share | None = None
    attackers: list[AttackerResult] = []
    insider: AttackerResult | None = None
    estimated: dict[str, Share] = {}
    rows: list[Row] = []
    examples: list[Row] = []
    ranked: SkipJsonSchema[list[Row]] = Field([], exclude=True)
    cosines: list[Cosine] = []
    known: list[Cosine] = []
    curve: list[tuple[float, float]] = []
    kinds: list[Kind] = []
    held_out: list[Kind] = []
    classes: list[DataClass] = []
    tried: list[DefenseResult] = []
    tried_on: NonNegativeInt = 0
    warnings: list[str] = []
    unjudged: str = ""
    thresholds: list[Threshold] = []
    changes: list[Change] = []

    @property
    def measured(self) -> bool:
        """Whether the headline shares were measured on true texts."""
        return self.readable is not None and self.readable.measured

    @property
    def title(self) -> str:
        """The last part of the store's name."""
        return Path(self.store).name or self.store

    def shares(self) -> dict[str, Share]:
        """The shares that audits are compared by."""
        every = {"readable": self.readable, "exact": self.exact}
        every |= {f"entities.{kind.label}": kind.share for kind in self.kinds}
        return {name: share for name, share in every.items() if share is not None}

    def save(self, directory: str | Path) -> None:
        """Write audit.html, audit.json, exposed.csv and the files for pipelines, as ``unembed audit`` does."""
        from unembed.audit.report import write_audit

        write_audit(Path(directory), self)


def read_audit(path: Path) -> Audit:
    """Read audit.json of an earlier audit."""
    if not path.is_file():
        raise InputError(f"baseline={path}: no such file; give the audit.json of an earlier audit")
    content = read_json(path)
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        said = "it has no version" if version is None else f"its version is {version}"
        raise InputError(f"baseline={path}: {said}; version {VERSION} can be compared: run that audit again")
    return validated(TypeAdapter(Audit), content, f"baseline={path}")


def schema() -> str:
    """The JSON Schema (2020-12) of the file, as docs/audit-1.schema.json publishes it."""
    content: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    content |= Audit.model_json_schema(mode="serialization")
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
