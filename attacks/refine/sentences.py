"""Sentence search: a population of texts for each target, changed by words, order and the attack's own decoder.

    python evaluate.py run=minilm attack/refine=[sentences]
    unembed invert run=minilm vectors=mine.npy attack/refine=[sentences] attack.refine.sentences.max_queries=100

    "Some children outside the dirt are playing in two trees."
    ->  "Some children are outside playing in the dirt where two trees are."

A round makes some hundreds of changed texts of a target and embeds ``each`` of these and of those that earlier rounds
have left. Which ones, two models say that cost no query: the surrogate (lexicon/surrogate.py), which predicts vectors
and is corrected by what it missed in the texts that were embedded, and the decoder, which says how probable a text is
given the target. Near each text that is chosen, others are worth less: the surrogate misses alike in them.
The parents of a round are the texts with the highest cosine, plus ``fluency`` times their log probability. In early
rounds, the decoder also makes sentences of the words of the first parents. Before such a round embeds anything, the
best of its changes are changed further, ``ahead`` times: texts that are several changes away are found without the
texts between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from random import Random

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import normalize

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.lexicon.language import Units
from unembed.attacks.refine.lexicon.moves import proposals
from unembed.attacks.refine.lexicon.refiner import WordRefiner
from unembed.attacks.refine.lexicon.words import Lexicon
from unembed.attacks.refine.refining import FOUND, embedded
from unembed.attacks.transfer.aligners import gaussian, interpolated
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder

_EQUAL = 5  # decimals of a cosine that count
_PARENTS, _DECAY = 12, 0.7  # texts that are changed in a round; how much rarer each is than the one before it
_CHANGED = 6  # of these, the first, whose words and order are changed
_MOVES, _ORDERS = 15, 25  # changes of words, and of order, of each in a round
_POOL = 1000  # changes that are kept for later rounds
_SPANS, _SPLICES = 12, 3  # beginnings from which the decoder writes on in a round; texts made of each continuation
_SPAN = 5  # tokens of a continuation, or words that change places
_KEPT = (0, 1, 1, 2, 2, 3, 4)  # words of the parent that a continuation may replace
_ARRANGED, _BEAMS = 3, 32  # texts of a round whose words the decoder puts in order; texts that it makes of each
_WRITTEN = 48  # tokens of a text that is sampled as a whole
_ROUNDS = 10  # at the least, however few texts may be embedded
_EARLY = 30  # texts of a target from which on looking ahead and order take more time than they save queries
_SHORTLIST = 12  # times as many changes are scored by the decoder as are embedded
_CROWDED = 0.1  # cosine that a text is worth less for each chosen one that has the same predicted vector
_REACH, _NOISE = 0.4 * 2**0.5, 0.02  # distance over which the surrogate misses alike; what the misses have of their own


@dataclass
class SentenceSearch(WordRefiner):
    """Searches for the text with the target's vector, with the attack's decoder and a surrogate of the embedder.

    Attributes:
        max_queries: Texts embedded for a target at the most.
        samples: Texts that the decoder samples first, of which the ``each`` best are embedded.
        temperature: Of all sampling.
        each: Texts of a target that are embedded in a round.
        fluency: Cosine that a nat of log probability is worth.
        ahead: How often an early round changes the best of its own changes before it embeds any.
    """

    key = "attack.refine.sentences"
    at_once = 16

    max_queries: PositiveInt = 300
    proposals: PositiveInt = 8
    samples: NonNegativeInt = 48
    temperature: PositiveFloat = 0.9
    each: PositiveInt = 5
    fluency: NonNegativeFloat = 2.5e-4
    ahead: NonNegativeInt = 3
    surrogate_steps: PositiveInt = 2400
    seed: NonNegativeInt = 0

    def check(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        super().check(dimension, oracle)
        if self.writer is None:
            raise InputError("writes with the attack's own decoder, and this attack has none: choose attack=geia")

    @torch.no_grad()
    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        assert self.writer is not None  # checked
        lexicon = self.lexicon(oracle)
        vectors = normalize(targets.vectors.cpu().float(), dim=1)
        populations = [
            _Population(vector, Random(self.seed * 1_000_003 + index))
            for vector, index in zip(vectors, targets.index.tolist(), strict=True)
        ]
        self._embed(populations, [prediction.candidates for prediction in predictions], lexicon, oracle)
        unread = [one for one in populations if not one.found]
        if self.samples and unread:
            beginnings = [(population, "") for population in unread for _ in range(self.samples)]
            written = iter(self._written(beginnings, _WRITTEN))
            sampled = [[*islice(written, self.samples)] for _ in unread]
            self._embed(unread, self._chosen(unread, sampled, lexicon), lexicon, oracle)
        while active := [one for one in populations if not one.finished(self.max_queries)]:
            changes = self._changes(active, [one.parents() for one in active], lexicon)
            self._embed(active, self._chosen(active, changes, lexicon), lexicon, oracle)
        # Many embedders do not show capital letters and spaces: found texts are tried as the training text has them.
        for population, prediction in zip(populations, predictions, strict=True):
            like = Units.of(next(iter(prediction.candidates), ""))
            population.written = [str(self.language.writing.written(Units.of(one), like)) for one in population.found]
        self._embed(populations, [population.written for population in populations], lexicon, oracle)
        return [one.result(prediction) for one, prediction in zip(populations, predictions, strict=True)]

    def _written(self, beginnings: Sequence[tuple[_Population, str]], longest: int) -> list[str]:
        assert self.writer is not None
        vectors = torch.stack([population.target for population, _ in beginnings])
        uniforms = torch.tensor([[population.random.random() for _ in range(longest)] for population, _ in beginnings])
        return self.writer.write_on(vectors, [text for _, text in beginnings], uniforms, self.temperature)

    def _embed(
        self,
        populations: Sequence[_Population],
        texts: Sequence[Sequence[str]],
        lexicon: Lexicon,
        oracle: CachedEmbedder,
    ) -> None:
        """Add the texts that are new to each population and not empty, as many as its budget allows."""
        new = []
        for population, own in zip(populations, texts, strict=True):
            fresh = [text for text in dict.fromkeys(own) if text not in population.texts and len(Units.of(text))]
            new += [(population, text) for text in fresh[: self.max_queries - len(population.texts)]]
            population.exhausted = not fresh
        vectors = embedded([text for _, text in new], oracle)
        known = [(population, text) for population, text in new if text in vectors]
        for population, text in new:
            population.partial |= text not in vectors
        self._weigh(known)
        predicted = self._predicted([text for _, text in known], lexicon)
        for (population, text), surrogate in zip(known, predicted, strict=True):
            vector = normalize(vectors[text], dim=0)
            cosine = round(float(vector @ population.target), _EQUAL)
            population.texts[text] = _Text(text, vector, surrogate, cosine, cosine + population.fluencies[text])

    def _weigh(self, texts: Sequence[tuple[_Population, str]]) -> None:
        """Add the fluencies of texts, what their log probabilities are worth in cosine."""
        assert self.writer is not None
        new = [(population, text) for population, text in texts if text not in population.fluencies]
        if new:
            vectors = torch.stack([population.target for population, _ in new])
            found = self.writer.log_probabilities(vectors, [text for _, text in new])
            for (population, text), value in zip(new, found.tolist(), strict=True):
                population.fluencies[text] = round(self.fluency * value, _EQUAL)

    def _predicted(self, texts: Sequence[str], lexicon: Lexicon) -> Tensor:
        assert self.writer is not None  # checked
        if self.writer.predict is not None:
            return self.writer.predict(texts)
        assert self.surrogate is not None  # loaded
        return self.surrogate.predict([Units.of(text).words for text in texts], lexicon.known_vectors)

    def _changes(
        self, populations: Sequence[_Population], parents: Sequence[Sequence[_Text]], lexicon: Lexicon
    ) -> list[list[str]]:
        """Changed texts of each population's parents, of all kinds."""
        found: list[list[str]] = [[] for _ in populations]
        words, spans = _word_changes(populations, parents, lexicon), self._spans(populations, parents)
        for place, changed in chain(words, spans, self._arrangements(populations, parents)):
            found[place].append(changed)
        for place, population in enumerate(populations):
            for parent in parents[place][:_CHANGED]:
                found[place] += _order_changes(parent.text, parents[place], population.random)
        return found

    def _spans(
        self, populations: Sequence[_Population], parents: Sequence[Sequence[_Text]]
    ) -> Iterator[tuple[int, str]]:
        """A beginning of a parent, some words that the decoder writes behind it, and a rest of the parent."""
        jobs = []
        for place, (population, own) in enumerate(zip(populations, parents, strict=True)):
            for _ in range(_SPANS if own else 0):
                words = own[min(int(population.random.expovariate(_DECAY)), len(own) - 1)].text.split()
                jobs.append((place, words, population.random.randrange(len(words) + 1)))
        written = self._written([(populations[place], " ".join(words[:cut])) for place, words, cut in jobs], _SPAN)
        for (place, words, cut), text in zip(jobs, written, strict=True):
            new, random = text.split(), populations[place].random
            for _ in range(_SPLICES):
                length = random.randint(1, max(1, len(new)))
                yield place, " ".join(words[:cut] + new[:length] + words[cut + random.choice(_KEPT) :])

    def _arrangements(
        self, populations: Sequence[_Population], parents: Sequence[Sequence[_Text]]
    ) -> Iterator[tuple[int, str]]:
        """What the decoder makes of the words of the first parents of early rounds, once of each."""
        assert self.writer is not None
        places, texts = [], []
        for place, (population, own) in enumerate(zip(populations, parents, strict=True)):
            first = own[:_ARRANGED] if population.early else []
            new = [parent.text for parent in first if parent.text not in population.arranged]
            population.arranged |= {*new}
            places += [place] * len(new)
            texts += new
        vectors = torch.stack([population.target for population in populations])[places]
        for place, made in zip(places, self.writer.rearranged(vectors, texts, _BEAMS), strict=True):
            yield from ((place, text) for text in made)

    def _chosen(
        self, populations: Sequence[_Population], changes: Sequence[Sequence[str]], lexicon: Lexicon
    ) -> list[list[str]]:
        """Of these and earlier changes, those worth a query, by the predicted cosine and the decoder."""
        self._collect(populations, changes, lexicon)
        early = [one for one in populations if one.early]
        for _ in range(self.ahead if early else 0):
            parents = [one.imagined(texts) for one, texts in zip(early, self._best(early, _CHANGED, True), strict=True)]
            self._collect(early, self._changes(early, parents, lexicon), lexicon)
        return self._best(populations, min(self.each, -(-self.max_queries // _ROUNDS)))

    def _collect(self, populations: Sequence[_Population], changes: Sequence[Sequence[str]], lexicon: Lexicon) -> None:
        """Add the changes that are new to the pools."""
        new = [population.new(own) for population, own in zip(populations, changes, strict=True)]
        predicted = iter(self._predicted([text for own in new for text in own], lexicon))
        for population, own in zip(populations, new, strict=True):
            population.pool |= zip(own, islice(predicted, len(own)), strict=True)

    def _best(self, populations: Sequence[_Population], count: int, unchanged: bool = False) -> list[list[str]]:
        """The best texts of each pool that are not near each other; ``unchanged``: of those not changed yet."""
        shortlists = [(one, one.ranked(unchanged)[: _SHORTLIST * count]) for one in populations]
        self._weigh([(one, text) for one, shortlist in shortlists for _, text in shortlist])
        return [one.apart(shortlist, count) for one, shortlist in shortlists]


@dataclass(frozen=True, slots=True)
class _Text:
    """A text with its vector, the surrogate's, its cosine with the target, and that with its fluency.

    Of a text that is not embedded, vector and cosine are predicted.
    """

    text: str
    vector: Tensor
    predicted: Tensor
    cosine: float
    value: float


@dataclass(slots=True)
class _Population:
    """All texts of a target that were embedded, and its random numbers."""

    target: Tensor
    random: Random
    texts: dict[str, _Text] = field(default_factory=dict)
    pool: dict[str, Tensor] = field(default_factory=dict)  # changes that are not embedded, with the surrogate's vectors
    moves: dict[str, Iterator[Units]] = field(
        default_factory=dict
    )  # of each parent, its changes of words that are left
    expanded: set[str] = field(default_factory=set)  # texts of the pool that were changed
    arranged: set[str] = field(default_factory=set)  # texts whose words the decoder has put in order
    fluencies: dict[str, float] = field(default_factory=dict)  # of these and other texts
    written: list[str] = field(default_factory=list)  # found texts as the training text would write them
    partial: bool = False
    exhausted: bool = False  # the last round made no new text

    def new(self, changes: Iterable[str]) -> list[str]:
        """Those that are neither embedded nor in the pool, each once; the empty text is none."""
        return [
            text
            for text in dict.fromkeys(changes)
            if text not in self.texts and text not in self.pool and len(Units.of(text))
        ]

    def ranked(self, unchanged: bool) -> list[tuple[float, str]]:
        """The pool by predicted cosines; what is far behind is forgotten."""
        self.pool = {text: vector for text, vector in self.pool.items() if text not in self.texts}
        if not self.pool:
            return []
        vectors = self.corrected(torch.stack([*self.pool.values()]))
        cosines = [round(value, _EQUAL) for value in (vectors @ self.target).tolist()]
        found = sorted(zip(cosines, self.pool, strict=True), key=lambda pair: (-pair[0], pair[1]))[:_POOL]
        self.pool = {text: self.pool[text] for _, text in found}
        return [pair for pair in found if not unchanged or pair[1] not in self.expanded]

    def apart(self, shortlist: Sequence[tuple[float, str]], count: int) -> list[str]:
        """Texts with the highest cosines and fluencies that are not near each other."""
        chosen: list[str] = []
        if shortlist:
            vectors = torch.stack([self.pool[text] for _, text in shortlist]) / _REACH
            near = (_CROWDED * gaussian(vectors, vectors)).round(decimals=_EQUAL)
            worth = torch.tensor([cosine + self.fluencies[text] for cosine, text in shortlist])
            for _ in shortlist[:count]:
                place = int(worth.argmax())
                chosen.append(shortlist[place][1])
                worth -= near[place]
                worth[place] = -torch.inf
        return chosen

    def corrected(self, predicted: Tensor) -> Tensor:
        """The surrogate's vectors of texts (n, d), and what it missed in texts near them that were embedded.

        The misses are interpolated by a Gaussian process over the surrogate's vectors.
        """
        if not self.texts:
            return predicted
        own = torch.stack([one.predicted for one in self.texts.values()])
        missed = torch.stack([one.vector for one in self.texts.values()]) - own
        mean = missed.mean(0)
        near = interpolated(predicted / _REACH, own / _REACH, missed - mean, _NOISE)
        return normalize(predicted + mean + near, dim=1)

    def imagined(self, texts: Sequence[str]) -> list[_Text]:
        """Texts of the pool as parents, with vectors as they are predicted now."""
        if not texts:
            return []
        self.expanded |= {*texts}
        predicted = torch.stack([self.pool[text] for text in texts])
        return [
            _Text(text, vector, own, cosine := float(vector @ self.target), cosine + self.fluencies[text])
            for text, vector, own in zip(texts, self.corrected(predicted), predicted, strict=True)
        ]

    def parents(self) -> list[_Text]:
        closest = sorted(self.texts.values(), key=lambda one: -one.cosine)[:_PARENTS]
        # A text that is no parent now never will be again.
        self.moves = {one.text: self.moves[one.text] for one in closest if one.text in self.moves}
        return sorted(closest, key=lambda one: -one.value)

    @property
    def early(self) -> bool:
        return len(self.texts) < _EARLY

    @property
    def found(self) -> list[str]:
        """The texts that have the target's vector."""
        return [one.text for one in self.texts.values() if one.cosine > FOUND]

    def finished(self, most: int) -> bool:
        """A text has the target's vector, or no text can be added."""
        return self.partial or self.exhausted or len(self.texts) >= most or bool(self.found)

    def result(self, before: Prediction) -> Prediction:
        """The texts that have the target's vector, if any, written ones and probable ones first; else the best ones."""
        ordered = sorted(self.parents(), key=lambda one: (one.cosine <= FOUND, one.text not in self.written))
        if not ordered:
            return before.refined(before.candidates, self.partial)
        after = before.refined(tuple(one.text for one in ordered[: len(before.candidates)]), self.partial)
        return after if after.candidates[0] == before.candidates[0] else replace(after, kind="sequence")


def _word_changes(
    populations: Sequence[_Population], parents: Sequence[Sequence[_Text]], lexicon: Lexicon
) -> Iterator[tuple[int, str]]:
    """The next replaced, inserted and removed words of the first parents (lexicon/moves.py)."""
    jobs = [(place, parent) for place, own in enumerate(parents) for parent in own[:_CHANGED]]
    new = [(populations[place], parent) for place, parent in jobs if parent.text not in populations[place].moves]
    given = [(lexicon.units(parent.text), parent.vector, population.target) for population, parent in new]
    for (population, parent), changes in zip(new, proposals(given, lexicon, lexicon.known_vectors), strict=True):
        population.moves[parent.text] = iter(changes)
    for place, parent in jobs:
        for changed in islice(populations[place].moves[parent.text], _MOVES):
            yield place, str(changed)
        if parent.text not in populations[place].texts:  # its vector will be another
            del populations[place].moves[parent.text]


def _order_changes(text: str, parents: Sequence[_Text], random: Random) -> Iterator[str]:
    """The text with two short spans exchanged, and the beginning of the text with the end of another."""
    words = text.split()
    if len(words) < 2:
        return
    for _ in range(_ORDERS):
        a = random.randrange(len(words) - 1)
        b = random.randint(a + 1, min(a + _SPAN, len(words) - 1))
        c = random.randint(b, len(words) - 1)
        d = random.randint(c + 1, min(c + _SPAN, len(words)))
        yield " ".join(words[:a] + words[c:d] + words[b:c] + words[a:b] + words[d:])
    other = random.choice(parents).text.split()
    yield " ".join(words[: random.randrange(len(words))] + other[random.randrange(len(other) + 1) :])
