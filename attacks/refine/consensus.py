"""Consensus: of several texts for a target, the one that has most in common with the others.

    attack/decoding=consensus                             # tokens in common; asks the embedder for nothing
    attack/decoding=consensus attack/refine=[consensus]   # words in common; texts near the target are weighted more

A text that is right in part shares that part with other samples; what it got wrong, it rarely shares. In translation
the rule is called minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020): the chosen text has the
highest expected F1 if the true text is one of the samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from unembed.attacks.parts.decoding import Decoder, NucleusSampling
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner, cosines_with, embedded
from unembed.datamodules.sources.base import END
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.statistics import Floats
from unembed.metrics.tokens import words

GAIN = 1e-6  # of expected F1, from 0 to 1; smaller differences count as none


class ConsensusSampling(NucleusSampling):
    """Samples texts, and puts those first whose tokens have most in common with the other samples."""

    def __init__(self, samples: PositiveInt = 16, **nucleus: Any) -> None:
        super().__init__(**nucleus)
        self.propose(samples)

    def __call__(self, decoder: Decoder, prefix: Tensor, *, eos: int, index: Tensor) -> list[list[list[int]]]:
        sampled = super().__call__(decoder, prefix, eos=eos, index=index)
        return [[texts[place] for place in Expected(texts, [1.0] * len(texts)).order()] for texts in sampled]


@dataclass
class Consensus(Refiner):
    """Puts the text with the highest expected word F1 first, near candidates weighted more, then the candidates.

    The weight of a candidate is exp(cosine / ``temperature``): its probability to be the true text, up to a factor.
    Candidates without a vector, where a limit of the embedder was reached, have none; such a prediction is partial.

    The first text consists of sentences of the candidates. The search starts from the best candidate. In each step one
    sentence is replaced by one of another candidate, left out, or added at the end, whichever raises the expected F1
    most, until none does. Passages gain by this; a text of one sentence hardly changes.
    """

    proposals: Annotated[int, Field(ge=2)] = 16
    temperature: PositiveFloat = 0.05

    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        """See Refiner; each distinct candidate is embedded once, the text made of their sentences is not."""
        vectors = embedded([text for prediction in predictions for text in prediction.candidates], oracle)
        found = []
        for target, prediction in zip(targets.vectors.cpu(), predictions, strict=True):
            texts = prediction.candidates
            known = [place for place, text in enumerate(texts) if text in vectors]
            weights = [0.0] * len(texts)
            cosines = cosines_with(target, [vectors[texts[place]] for place in known])
            for place, weight in zip(known, torch.softmax(cosines / self.temperature, 0).tolist(), strict=True):
                weights[place] = weight
            expected = Expected([words(text) for text in texts], weights)
            ordered = [texts[place] for place in expected.order()]
            made = [recombined(ordered[0], texts, expected)] if known else []
            found.append(prediction.refined(tuple(dict.fromkeys([*made, *ordered])), partial=len(known) < len(texts)))
        return found


class Expected:
    """The expected F1 of texts, if one of ``texts`` (lists of words or tokens) is the true one, each with a probability
    in proportion to its weight."""

    def __init__(self, texts: Sequence[Sequence[Hashable]], weights: Sequence[float]) -> None:
        self.places = {item: place for place, item in enumerate(dict.fromkeys(item for text in texts for item in text))}
        self.texts = self.counts(texts)
        self.weights = np.array(weights, np.float64) / (sum(weights) or 1.0)

    def counts(self, texts: Sequence[Sequence[Hashable]]) -> Floats:
        """How often each text has each word of the texts of ``__init__``: (n, V)."""
        found = np.zeros((len(texts), len(self.places)))
        for row, text in zip(found, texts, strict=True):
            for item, count in Counter(text).items():
                if item in self.places:  # a sentence may have words that its text lacks: signs, where nothing else is
                    row[self.places[item]] = count
        return found

    def f1(self, counts: Floats) -> Floats:
        """From 0 to 1, of the texts with these ``counts`` (n, V): (n,)."""
        length, found = counts.sum(1), np.zeros(len(counts))
        for true, weight in zip(self.texts, self.weights, strict=True):
            if weight:
                found += weight * 2 * np.minimum(counts, true).sum(1) / np.maximum(length + true.sum(), 1)
        return found

    def order(self) -> list[int]:
        """Places of the texts by expected F1, the highest first; of equals, the earlier one first."""
        steps = np.round(self.f1(self.texts) / GAIN)
        return sorted(range(len(steps)), key=lambda place: -steps[place])


def recombined(start: str, texts: Sequence[str], expected: Expected) -> str:
    """``start``, with sentences of ``texts`` replaced, left out and added as long as the expected word F1 rises."""
    sentences = list(dict.fromkeys(part for text in texts for part in END.split(text)))
    counts = expected.counts([words(sentence) for sentence in sentences])
    now = [sentences.index(part) for part in END.split(start)]
    best = float(expected.f1(counts[now].sum(0)[None])[0])
    while True:
        total = counts[now].sum(0)
        changes = [(place, None) for place in range(len(now))] + [
            (place, other) for place in range(len(now) + 1) for other in range(len(sentences))
        ]
        kept = np.stack([total - counts[place] for place in now] + [total])
        tried = np.concatenate([kept[:-1], (kept[:, None] + counts[None]).reshape(-1, counts.shape[1])])
        scores = expected.f1(tried)
        if scores.max() <= best + GAIN:
            return " ".join(sentences[place] for place in now)
        best = float(scores.max())
        place, other = changes[int(scores.argmax())]
        now[place : place + 1] = [] if other is None else [other]
