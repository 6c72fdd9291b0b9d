"""Consensus: of several texts for a target, the one that has most in common with the others.

    attack/decoding=consensus                             # tokens in common; asks the embedder for nothing
    attack/decoding=consensus attack/refine=[consensus]   # words in common; texts near the target are weighted more

A text that is right in part shares that part with other samples; what it got wrong, it rarely shares. In translation
the rule is called minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020): the chosen text has the
highest expected F1 if the true text is one of the samples.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from embedders.cache.cached import CachedEmbedder
from metrics.tokens import overlap, words
from metrics.vectors import cosine_rows
from models.decoding import Decoder, NucleusSampling
from models.predictions import Prediction, Targets
from models.refining import Refiner, embedded


class ConsensusSampling(NucleusSampling):
    """Samples texts, and puts those first whose tokens have most in common with the other samples.

    Args:
        samples: Texts to sample per target.
        nucleus: See NucleusSampling.
    """

    def __init__(self, samples: PositiveInt = 16, **nucleus: Any) -> None:
        super().__init__(**nucleus)
        self.propose(samples)

    def __call__(self, decoder: Decoder, prefix: Tensor, *, eos: int, index: Tensor) -> list[list[list[int]]]:
        """See :class:`Decoding`."""
        sampled = super().__call__(decoder, prefix, eos=eos, index=index)
        return [[texts[place] for place in by_consensus(texts, [1.0] * len(texts))] for texts in sampled]


class Consensus(Refiner):
    """Puts those candidates first whose words have most in common with the others, near ones weighted more.

    The weight of a candidate is exp(cosine / ``temperature``): its probability to be the true text, up to a factor.
    Candidates without a vector, where a limit of the embedder was reached, have none; such a prediction is partial.

    Args:
        proposals: Texts that the attack proposes for a target.
        temperature: Of the weights. A high one weights all alike; a low one keeps the text with the highest cosine.
    """

    def __init__(self, proposals: Annotated[int, Field(ge=2)] = 16, temperature: PositiveFloat = 0.05) -> None:
        self.proposals, self.temperature = proposals, temperature

    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        """See Refiner; each distinct text is embedded once."""
        vectors = embedded([text for prediction in predictions for text in prediction.candidates], oracle)
        found = []
        for target, prediction in zip(targets.vectors.cpu(), predictions, strict=True):
            texts = prediction.candidates
            weights = torch.zeros(len(texts), dtype=torch.float64)
            known = [place for place, text in enumerate(texts) if text in vectors]
            if known:
                met = torch.stack([vectors[texts[place]] for place in known])
                cosines = cosine_rows(met, target.expand(len(known), -1)).double()
                weights[known] = torch.softmax(cosines / self.temperature, 0)
            order = by_consensus([words(text) for text in texts], weights.tolist())
            ordered = dict.fromkeys(texts[place] for place in order)
            found.append(prediction.refined(tuple(ordered), partial=len(known) < len(texts)))
        return found


def by_consensus(texts: Sequence[Sequence[Hashable]], weights: Sequence[float]) -> list[int]:
    """Places of the texts by expected F1, the highest first; of equals, the earlier one first.

    Args:
        texts: Each as a list of words or tokens.
        weights: Of each text, in proportion to the probability that it is the true one.
    """
    true = [(text, weight) for text, weight in zip(texts, weights, strict=True) if text and weight]
    expected = [sum(weight * overlap(other, text).f1 for other, weight in true) for text in texts]
    return sorted(range(len(texts)), key=lambda place: -expected[place])
