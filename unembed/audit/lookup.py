"""The lookup: for each vector the training text with the nearest vector, an attacker without a model.

    lookup = Lookup.of(session.training_texts(), service, most=50_000)
    texts = lookup.texts(vectors)                        # of the store
    texts = lookup.texts(defended, defense)              # of a defended store, by somebody who knows the defense

An attack that was trained for too short, or on other text, may read less than this. And where a defense stops an attack
that knows nothing of it, whoever has the training text may still defend that in the same way and compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unembed.attacks.nearest_neighbor import nearest
from unembed.audit.findings import Truth
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import Defense
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.statistics import evenly
from unembed.runs.record import absent_data
from unembed.session import Session

BLOCK = 16_384  # training vectors compared at once
OTHERS = 512  # rows compared with all others at once


@dataclass(frozen=True)
class Lookup:
    """The training texts and the embedder that has their vectors in its cache."""

    known: Sequence[str]
    service: CachedEmbedder

    @classmethod
    def of(cls, texts: Sequence[str], service: CachedEmbedder, most: int) -> Lookup | None:
        """A lookup in at most ``most`` of the texts, taken evenly; None if there are none."""
        chosen = list(dict.fromkeys(texts[place] for place in evenly(range(len(texts)), most))) if most else []
        if not chosen:
            return None
        return cls(chosen, service)

    def texts(self, vectors: Tensor, defense: Defense | None = None) -> list[str]:
        """The nearest training text of each vector, (n, d).

        Args:
            vectors: As the attacker finds them.
            defense: What changed them, fitted. The training vectors are compared as they are and defended, where both
                have the dimension of ``vectors``; the way that comes closer to the vectors on average is taken, which
                an attacker can see without a true text.
        """
        ways: list[Defense | None] = [defense]
        if defense is not None and vectors.shape[1] == self.service.dimension:
            ways.append(None)
        found = []
        for way in ways:
            rows = nearest(vectors, self._blocks(way))
            found.append((self._closeness(vectors, rows, way), rows))
        _, rows = max(found, key=lambda pair: pair[0])
        return [self.known[row] for row in rows]

    def _closeness(self, vectors: Tensor, rows: Sequence[int], way: Defense | None) -> float:
        own = self._defended([self.known[row] for row in rows], way)
        return float(torch.nn.functional.cosine_similarity(own, vectors, dim=1).mean())

    def _blocks(self, way: Defense | None) -> Iterator[Tensor]:
        for begin in range(0, len(self.known), BLOCK):
            yield self._defended(self.known[begin : begin + BLOCK], way)

    def _defended(self, texts: Sequence[str], way: Defense | None) -> Tensor:
        vectors = self.service.embed(list(texts), "scoring")
        if way is None:
            return vectors
        # Random numbers of a hypothesis, as an attacker draws them: the store's own are not known. A text of which the
        # defense leaves nothing is near to no vector.
        examples = [Example(place, text) for place, text in enumerate(texts)]
        return way(vectors, examples, "hypothesis").nan_to_num()


def among_others(vectors: Tensor, truths: Sequence[Truth]) -> list[str]:
    """For each row the true text of the other row with the nearest vector: (n, d), n texts of at least two -> n texts.

    It is what somebody reads who knows the other texts of the store, such as an earlier copy of it.
    """
    units = torch.nn.functional.normalize(vectors, dim=1)
    found: list[str] = []
    for begin in range(0, len(units), OTHERS):
        cosines = units[begin : begin + OTHERS] @ units.T
        cosines[torch.arange(len(cosines)), torch.arange(begin, begin + len(cosines))] = -2.0  # the row itself
        found += [truths[place].text for place in cosines.argmax(dim=1).tolist()]
    return found


def training_lookup(session: Session, service: CachedEmbedder, most: int) -> tuple[Lookup | None, list[str]]:
    """The lookup in a run's training text, and a warning where that text is gone; an exported run comes without it."""
    if most == 0 or absent_data(session.run):
        return None, []
    try:
        texts = session.training_data(None).examples("train").texts
    except InputError as error:
        return None, [f"No lookup in the training text, which cannot be read: {error}."]
    return Lookup.of(texts, service, most), []
