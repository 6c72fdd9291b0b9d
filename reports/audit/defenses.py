"""The effect of defenses on an audit: the same rows, defended, inverted by the same attacker, unaware of the defense.

    vectors = defend(defense, rows, known)
    tried = try_defense("noise level=0.05", vectors, rows, known, reader, readable=80, part="noise")

A defense is fitted to the audited rows, as the store's owner would do. Without true texts, the share of readable rows
is estimated as for the whole store, but calibrated on the run's test texts under the same defense: a defense changes
the meaning of a cosine. Cosines are computed with the undefended vectors, which the owner has.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.defended import defended
from datamodules.vector_stores.sampling import Sample
from defenses.base import Defense
from errors import InputError
from examples import Example
from metrics import calibration
from reports.audit.entity_kinds import leaks
from reports.audit.findings import AuditedShare, Reading, Tried, Truth
from reports.audit.lookup import Lookup
from reports.audit.reading import StoreReader
from reports.numbers import evenly
from reports.under_defense import ZeroFilled

NEAREST = 10
COMPARED_TOGETHER = 512  # rows compared with all others at once


@dataclass(frozen=True, slots=True)
class AuditRows:
    """Vectors (n, d), their positions, and their true texts if known."""

    vectors: Tensor
    positions: Sequence[int]
    truths: Sequence[Truth | None]

    def examples(self) -> list[Example]:
        """What a defense may use: the language, if known."""
        texts = [truth or Truth("") for truth in self.truths]
        return [
            Example(place, one.text, language=one.language) for place, one in zip(self.positions, texts, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Defended:
    """Rows of the store and the run's test texts under one defense, as the attacker receives them.

    Attributes:
        defense: The defense, fitted.
        changed: Defended vectors of the rows, before zero-filling.
        known_changed: The same for the test texts.
        kept: Share of nearest neighbours kept; see ``neighbours_kept``.
        rows: Vectors (n, d); None if they are longer than the attacker accepts.
        known: The same for the test texts.
    """

    defense: Defense
    changed: Tensor
    known_changed: Tensor
    kept: float
    rows: Tensor | None
    known: Tensor | None

    @property
    def dimension(self) -> int:
        """Dimension of the defended vectors, before zero-filling."""
        return self.changed.shape[1]


@dataclass(frozen=True, slots=True)
class Trials:
    """The rows that defenses are tried on, and their defended versions.

    Attributes:
        chosen: Indices of the rows in the sample.
        rows: The rows of the store.
        known: The run's own test texts.
        defended: Defended vectors by name of the defense.
    """

    chosen: list[int]
    rows: AuditRows
    known: AuditRows
    defended: Mapping[str, Defended]


def prepare(
    defenses: Mapping[str, Defense],
    sample: Sample,
    truths: Mapping[int, Truth],
    known: AuditRows,
    limit: int,
) -> Trials:
    """Apply each defense to the same rows: those with known true text if there are any, else evenly sampled ones.

    Raises:
        InputError: See ``defend``; names the defense.
    """
    truth = [truths.get(place) for place in sample.positions]
    chosen = list(evenly([row for row, one in enumerate(truth) if one is not None] or list(range(len(truth))), limit))
    own = list(evenly(range(len(known.truths)), limit))
    rows = AuditRows(sample.vectors[chosen], [sample.positions[row] for row in chosen], [truth[row] for row in chosen])
    others = AuditRows(known.vectors[own], [known.positions[row] for row in own], [known.truths[row] for row in own])
    found = {}
    for name, defense in defenses.items():
        try:
            found[name] = defend(defense, rows, others)
        except InputError as error:
            raise InputError(f"defenses: {name}: {error}") from error
    return Trials(chosen, rows, others, found)


def defend(defense: Defense, rows: AuditRows, known: AuditRows) -> Defended:
    """Fit a defense to the rows and apply it to both sets, before the slow inversion begins.

    Raises:
        InputError: It cannot be fitted to these rows, or removes all of a vector.
    """
    dimension = rows.vectors.shape[1]
    defense.fit(rows.vectors, rows.examples())
    changed, known_changed = (
        defended(defense, one.vectors, one.examples(), "document") if len(one.vectors) else one.vectors
        for one in (rows, known)
    )
    kept = neighbours_kept(rows.vectors, changed)
    filled = ZeroFilled(defense, dimension)
    if not filled.fits(dimension):
        return Defended(defense, changed, known_changed, kept, None, None)
    parts = [filled(one.vectors, one.examples(), "document") for one in (rows, known)]
    return Defended(defense, changed, known_changed, kept, *parts)


def try_defense(
    name: str, vectors: Defended, rows: AuditRows, known: AuditRows, reader: StoreReader, readable: float, part: str
) -> Tried:
    """Invert both sets under a defense and compare.

    Args:
        name: For the report.
        vectors: The vectors under the defense.
        rows: The undefended rows of the store.
        known: The run's test texts with their true texts; may be empty.
        reader: Inverts vectors with the attack.
        readable: Word F1 in percent at which a text counts as readable.
        part: Name of this work in the batch cache.
    """
    if vectors.rows is None or vectors.known is None:
        return Tried(name, None, None, None, None, vectors.kept, vectors.dimension)
    read = reader.readings(reader.texts(part, vectors.rows, rows.positions), rows.vectors, rows.truths)
    own: list[Reading] = []
    if not any(rows.truths) and len(known.positions):
        texts = reader.texts(f"{part}, test texts", vectors.known, known.positions)
        own = reader.readings(texts, known.vectors, known.truths)
    return summary(name, rows, read, own, reader, readable, vectors.kept, vectors.dimension)


def look_up(
    vectors: Defended, rows: AuditRows, known: AuditRows, reader: StoreReader, lookup: Lookup, readable: float
) -> AuditedShare | None:
    """The share that a lookup reads which knows the defense; measured, or estimated like that of the attack."""
    read = reader.readings(lookup.texts(vectors.changed, vectors.defense), rows.vectors, rows.truths)
    own: list[Reading] = []
    if not any(rows.truths) and len(known.positions):
        texts = lookup.texts(vectors.known_changed, vectors.defense)
        own = reader.readings(texts, known.vectors, known.truths)
    return share(read, own, readable)


def summary(
    name: str,
    rows: AuditRows,
    read: Sequence[Reading],
    known: Sequence[Reading],
    reader: StoreReader,
    readable: float,
    kept: float,
    dimension: int,
) -> Tried:
    """The metrics of one defense; for ``none``, computed from the texts already recovered."""
    pairs = [(truth, one) for truth, one in zip(rows.truths, read, strict=True) if truth is not None]
    hits = leaks([truth for truth, _ in pairs], [one for _, one in pairs], ordered=reader.kind == "sequence")
    return Tried(
        name=name,
        readable=share(read, known, readable),
        exact=share(read, known, None) if reader.kind == "sequence" else None,
        entities=AuditedShare.of([hit for found in hits.values() for hit in found]),
        cosine=statistics.fmean(one.cosine for one in read),
        neighbours=kept,
        dimension=dimension,
    )


def share(read: Sequence[Reading], known: Sequence[Reading], readable: float | None) -> AuditedShare | None:
    """The share of texts recovered with at least ``readable`` percent word F1, or word for word (None).

    Measured if the true text of any row is known, else estimated from ``known``; None if neither is possible.
    """
    measured = AuditedShare.of([was_read(one, readable) for one in read if one.f1 is not None])
    return measured or estimated(read, known, readable)


def estimated(read: Sequence[Reading], known: Sequence[Reading], readable: float | None) -> AuditedShare | None:
    """The share estimated without true texts; None if too few test texts are known for calibration."""
    if len(known) < calibration.SMALLEST:
        return None
    learned = calibrate(known, readable)
    return AuditedShare.estimated(learned.share([one.cosine for one in read]), len(read))


def calibrate(known: Sequence[Reading], readable: float | None) -> calibration.Calibration:
    """Calibrate a cosine to a probability on at least ``calibration.SMALLEST`` readings with known true text."""
    return calibration.fit([one.cosine for one in known], [was_read(one, readable) for one in known])


def was_read(reading: Reading, readable: float | None) -> bool:
    """Whether a text was recovered with enough word F1, or word for word (``readable`` None)."""
    if readable is None:
        return bool(reading.exact)
    return reading.f1 is not None and reading.f1 >= readable


def neighbours_kept(vectors: Tensor, defended: Tensor) -> float:
    """Share of each row's nearest rows, by cosine, that stay its nearest under a defense: (n, d), (n, k) -> 0 to 1.

    It approximates search quality if no queries are available.
    """
    count = min(NEAREST, len(vectors) - 1)
    if count < 1:
        return 1.0
    units = [torch.nn.functional.normalize(one.double(), dim=1) for one in (vectors, defended)]
    kept = 0
    for begin in range(0, len(vectors), COMPARED_TOGETHER):
        near = []
        for unit in units:
            cosines = unit[begin : begin + COMPARED_TOGETHER] @ unit.T
            cosines[torch.arange(len(cosines)), torch.arange(begin, begin + len(cosines))] = -2.0  # the row itself
            near.append(cosines.topk(count, dim=1).indices)
        kept += int((near[0][:, :, None] == near[1][:, None, :]).sum())
    return kept / (count * len(vectors))
