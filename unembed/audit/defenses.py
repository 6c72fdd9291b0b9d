"""The effect of defenses on an audit: the same rows, defended, inverted by the same attacker, unaware of the defense.

    trials = prepare({"noise level=0.05": defense}, sample, truths, limit=200)     # before the slow inversion begins
    trials.results(attackers, reader, lookup, readable=80)                         # the undefended rows come first

A defense is fitted to the audited rows, as the store's owner would do. Cosines are computed with the undefended
vectors, which the owner has. So without true texts the share of readable rows is estimated by the same calibration as
for the whole store, which needs no text read under the defense. It tends to estimate too much, and its interval is
wider, since the cosines differ from those of the known texts (docs/audit.md#measured).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unembed.audit.attackers import AttackerReadings, Lookup, StoreReader, nearest_others
from unembed.audit.estimates import leaked_entities
from unembed.audit.results import DefenseResult, Truth
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.embedded import defended
from unembed.datamodules.vector_stores.sampling import Sample
from unembed.defenses.base import Defense
from unembed.metrics.statistics import evenly
from unembed.reports.reading import Seen

NEAREST = 10


class DefendedRows(NamedTuple):
    """Rows of the store under one defense, fitted, or None: its vectors (n, k), and ``received`` by the attack, filled
    with zeros (n, d), or None if they are longer than it accepts; ``neighbours``: see ``neighbours_kept``.
    """

    defense: Defense | None
    changed: Tensor
    neighbours: float
    received: Tensor | None


class Trials(NamedTuple):
    """The rows that defenses are tried on.

    Attributes:
        chosen: Indices of the rows in the sample.
        vectors: Of the store, (n, d).
        positions: In the store.
        truths: True texts, if known.
        defended: The rows by name of the defense; first ``none``.
    """

    chosen: list[int]
    vectors: Tensor
    positions: list[int]
    truths: list[Truth | None]
    defended: Mapping[str, DefendedRows]

    def results(
        self, own: Sequence[AttackerReadings], reader: StoreReader, lookup: Lookup | None, readable: float
    ) -> list[DefenseResult]:
        """What the run's attack, first of the ``own``, and the lookup still read."""
        attack, looker = own[0], next((one for one in own if one.name == "lookup"), None)
        results = []
        for name, rows in self.defended.items():
            result = DefenseResult(name=name, readable=None, neighbours=rows.neighbours, width=rows.changed.shape[1])
            result.holds = str(getattr(rows.defense, "holds", ""))
            if rows.received is not None:
                read = [attack.readings[row] for row in self.chosen]
                if not torch.equal(rows.received, self.vectors):
                    texts = reader.texts(f"defense {name}", rows.received, self.positions)
                    read = reader.readings(texts, self.vectors, self.truths)
                ordered = reader.kind == "sequence"
                known = [(truth, one) for truth, one in zip(self.truths, read, strict=True) if truth is not None]
                result.readable = attack.estimator.share(read, readable)
                result.exact = attack.estimator.share(read, None) if ordered else None
                result.entities = leaked_entities([one for one, _ in known], [one for _, one in known], ordered=ordered)
                result.cosine = statistics.fmean(one.cosine for one in read)
            if lookup is not None and looker is not None:
                looked = [looker.readings[row] for row in self.chosen]
                if rows.defense is not None:
                    texts = lookup.texts(rows.changed, rows.defense)
                    looked = reader.readings(texts, self.vectors, self.truths)
                result.lookup = looker.estimator.share(looked, readable)
            results.append(result)
        return results


def prepare(defenses: Mapping[str, Defense], sample: Sample, truths: Mapping[int, Truth], limit: int) -> Trials:
    """Apply each defense to the same rows: those with known true text if there are any, else evenly sampled ones."""
    known = [row for row, place in enumerate(sample.positions) if place in truths]
    chosen = list(evenly(known or list(range(len(sample.positions))), limit))
    positions = [sample.positions[row] for row in chosen]
    true = [truths.get(place) for place in positions]
    texts = [one or Truth("") for one in true]
    examples = [Example(place, one.text, language=one.language) for place, one in zip(positions, texts, strict=True)]
    vectors = sample.vectors[chosen]
    rows = {"none": DefendedRows(None, vectors, 1.0, vectors)}
    for name, defense in defenses.items():
        try:
            rows[name] = _defend(defense, vectors, examples)
        except InputError as error:
            raise InputError(f"defenses: {name}: {error}") from error
    return Trials(chosen, vectors, positions, true, rows)


def _defend(defense: Defense, vectors: Tensor, examples: Sequence[Example]) -> DefendedRows:
    defense.fit(vectors, examples)
    changed = defended(defense, vectors, examples, "document")
    filled = Seen(defense, vectors.shape[1])
    received = filled(vectors, examples, "document") if filled.fits(vectors.shape[1]) else None
    return DefendedRows(defense, changed, neighbours_kept(vectors, changed), received)


def neighbours_kept(vectors: Tensor, changed: Tensor) -> float:
    """Share of each row's nearest rows, by cosine, that stay its nearest under a defense: (n, d), (n, k) -> 0 to 1.

    It approximates search quality if no queries are available.
    """
    count = min(NEAREST, len(vectors) - 1)
    if count < 1:
        return 1.0
    before, after = (nearest_others(one.double(), count) for one in (vectors, changed))
    return int((before[:, :, None] == after[:, None, :]).sum()) / (count * len(vectors))
