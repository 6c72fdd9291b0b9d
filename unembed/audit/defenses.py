"""The effect of defenses on an audit: the same rows, defended, inverted by the same attacker, unaware of the defense.

    vectors = defend(defense, rows)
    tried = try_defense("noise level=0.05", vectors, rows, plain, estimator, reader, readable=80, part="noise")

A defense is fitted to the audited rows, as the store's owner would do. Cosines are computed with the undefended
vectors, which the owner has. So without true texts the share of readable rows is estimated by the same calibration as
for the whole store, which needs no text read under the defense. It tends to estimate too much, and its interval is
wider, since the cosines differ from those of the known texts (docs/audit.md#measured).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unembed.audit.entity_kinds import leaked_entities
from unembed.audit.estimates import Estimator
from unembed.audit.findings import AuditedShare, Reading, Tried, Truth
from unembed.audit.lookup import Lookup
from unembed.audit.reading import StoreReader
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.defended import defended
from unembed.datamodules.vector_stores.sampling import Sample
from unembed.defenses.base import Defense
from unembed.metrics.statistics import evenly
from unembed.reports.under_defense import ZeroFilled

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
    """Rows of the store under one defense, as the attacker receives them.

    Attributes:
        defense: The defense, fitted.
        changed: Defended vectors of the rows, before zero-filling.
        kept: Share of nearest neighbours kept; see ``neighbours_kept``.
        rows: Vectors (n, d); None if they are longer than the attacker accepts.
    """

    defense: Defense
    changed: Tensor
    kept: float
    rows: Tensor | None

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
        defended: Defended vectors by name of the defense.
    """

    chosen: list[int]
    rows: AuditRows
    defended: Mapping[str, Defended]


def prepare(
    defenses: Mapping[str, Defense],
    sample: Sample,
    truths: Mapping[int, Truth],
    limit: int,
) -> Trials:
    """Apply each defense to the same rows: those with known true text if there are any, else evenly sampled ones.

    Raises:
        InputError: See ``defend``; names the defense.
    """
    truth = [truths.get(place) for place in sample.positions]
    chosen = list(evenly([row for row, one in enumerate(truth) if one is not None] or list(range(len(truth))), limit))
    rows = AuditRows(sample.vectors[chosen], [sample.positions[row] for row in chosen], [truth[row] for row in chosen])
    found = {}
    for name, defense in defenses.items():
        try:
            found[name] = defend(defense, rows)
        except InputError as error:
            raise InputError(f"defenses: {name}: {error}") from error
    return Trials(chosen, rows, found)


def defend(defense: Defense, rows: AuditRows) -> Defended:
    """Fit a defense to the rows and apply it, before the slow inversion begins.

    Raises:
        InputError: It cannot be fitted to these rows, or removes all of a vector.
    """
    dimension = rows.vectors.shape[1]
    defense.fit(rows.vectors, rows.examples())
    changed = defended(defense, rows.vectors, rows.examples(), "document")
    kept = neighbours_kept(rows.vectors, changed)
    filled = ZeroFilled(defense, dimension)
    if not filled.fits(dimension):
        return Defended(defense, changed, kept, None)
    return Defended(defense, changed, kept, filled(rows.vectors, rows.examples(), "document"))


def try_defense(
    name: str,
    vectors: Defended,
    rows: AuditRows,
    plain: Sequence[Reading],
    estimator: Estimator,
    reader: StoreReader,
    readable: float,
    part: str,
) -> Tried:
    """Invert the rows under a defense.

    Args:
        name: For the report.
        vectors: The vectors under the defense.
        rows: The undefended rows of the store.
        plain: The texts that were read from them.
        estimator: Of shares, where true texts are not known.
        reader: Inverts vectors with the attack.
        readable: Word F1 in percent at which a text counts as readable.
        part: Name of this work in the batch cache.
    """
    if vectors.rows is None:
        return Tried(name, None, None, None, None, vectors.kept, vectors.dimension)
    if torch.equal(vectors.rows, rows.vectors):
        read = list(plain)
    else:
        read = reader.readings(reader.texts(part, vectors.rows, rows.positions), rows.vectors, rows.truths)
    return summary(name, rows, read, estimator, reader, readable, vectors.kept, vectors.dimension)


def look_up(
    vectors: Defended,
    rows: AuditRows,
    estimator: Estimator,
    reader: StoreReader,
    lookup: Lookup,
    readable: float,
) -> AuditedShare | None:
    """The share that a lookup reads which knows the defense; measured, or estimated like that of the attack."""
    read = reader.readings(lookup.texts(vectors.changed, vectors.defense), rows.vectors, rows.truths)
    return estimator.share(read, readable)


def summary(
    name: str,
    rows: AuditRows,
    read: Sequence[Reading],
    estimator: Estimator,
    reader: StoreReader,
    readable: float,
    kept: float,
    dimension: int,
) -> Tried:
    """The metrics of one defense; for ``none``, computed from the texts already recovered."""
    pairs = [(truth, one) for truth, one in zip(rows.truths, read, strict=True) if truth is not None]
    return Tried(
        name=name,
        readable=estimator.share(read, readable),
        exact=estimator.share(read, None) if reader.kind == "sequence" else None,
        entities=leaked_entities(
            [truth for truth, _ in pairs], [one for _, one in pairs], ordered=reader.kind == "sequence"
        ),
        cosine=statistics.fmean(one.cosine for one in read),
        neighbours=kept,
        dimension=dimension,
    )


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
