"""Reranking: sort the candidates of a target by the cosine of their vectors with it.

    attack/refine=[rerank]              # sixteen texts a target, embedded, and ordered by cosine
    attack.decoding.rerank=16           # the same, of an attack that decodes text

An attacker with access to the embedder can check candidates. The calls count as the attack's queries, so that attacks
can be compared at equal query budgets, for example with a corrector (Morris et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from pydantic import PositiveInt

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner, embedded
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.vectors import cosine_rows

# The last bits of a vector depend on its batch in the embedder. Cosines closer than this count as equal, and the text
# that is more probable for the attack comes first.
EQUAL = 1e-6


class Rerank(Refiner):
    """Orders the distinct candidates of each target by the cosine of their vectors with it.

    Candidates without a vector, where a limit of the embedder was reached, stand last; such a prediction is partial.

    Args:
        proposals: Texts that the attack proposes for a target.
    """

    def __init__(self, proposals: PositiveInt = 16) -> None:
        self.proposals = proposals

    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        """See Refiner; each distinct text is embedded once."""
        distinct = [tuple(dict.fromkeys(prediction.candidates)) for prediction in predictions]
        vectors = embedded(list(chain.from_iterable(distinct)), oracle)
        known = [[text for text in texts if text in vectors] for texts in distinct]
        owners = [row for row, texts in enumerate(known) for _ in texts]
        cosines = iter(())
        if owners:
            met = torch.stack([vectors[text] for text in chain.from_iterable(known)])
            cosines = iter(cosine_rows(met, targets.vectors.cpu()[owners]).tolist())
        found = []
        for prediction, texts, near in zip(predictions, distinct, known, strict=True):
            ordered = [near[place] for place in closest_first([next(cosines) for _ in near])]
            far = [text for text in texts if text not in vectors]
            found.append(prediction.refined((*ordered, *far), partial=bool(far)))
        return found


def closest_first(cosines: Sequence[float]) -> list[int]:
    """Places from the highest cosine to the lowest; those that differ by ``EQUAL`` or less keep their order."""
    order: list[int] = []
    alike: list[int] = []
    for place in sorted(range(len(cosines)), key=lambda place: -cosines[place]):
        if alike and cosines[alike[-1]] - cosines[place] > EQUAL:
            order += sorted(alike)
            alike = []
        alike.append(place)
    return order + sorted(alike)
