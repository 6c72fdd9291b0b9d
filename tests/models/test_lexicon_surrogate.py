"""The surrogate of lexicon search, on an embedder whose vectors depend on neighbouring words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.lexicon.search import LexiconSearch
from unembed.attacks.refine.lexicon.surrogate import Surrogate, fit
from unembed.core.errors import InputError
from unembed.embedders.base import fingerprint_of
from unembed.embedders.cache.cached import CachedEmbedder

WORDS = [f"w{number}" for number in range(24)]
STEPS = 120
KNOWN = dict(zip(WORDS, torch.randn(len(WORDS), 24, generator=torch.Generator().manual_seed(0)), strict=True))


class Neighbors:
    """The mean of a random vector for each word, plus the product of those of each two neighbours."""

    dimension, max_tokens = 24, 64
    fingerprint = fingerprint_of(kind="neighbors", used="tests")

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self.vector(text.split()) for text in texts])

    def vector(self, words: Sequence[str]) -> Tensor:
        own = [KNOWN.get(word, torch.zeros(self.dimension)) for word in words]
        return torch.stack(own + [left * right.roll(1) for left, right in pairwise(own)]).mean(0)


def sentences(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(3, 6))) for _ in range(count)]


TRAINING, HELD_OUT = sentences(3000, 0), sentences(100, 1)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> CachedEmbedder:
    return CachedEmbedder(Neighbors(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, oracle: CachedEmbedder) -> Path:
    folder = tmp_path_factory.mktemp("artifacts")
    LexiconSearch(surrogate_steps=STEPS).prepare(TRAINING, folder, oracle)
    return folder


def unit(texts: Sequence[str], oracle: CachedEmbedder) -> Tensor:
    return torch.nn.functional.normalize(oracle.embed(list(texts), "scoring"), dim=1)


def test_vectors_and_changes_are_predicted(oracle: CachedEmbedder, prepared: Path) -> None:
    surrogate = Surrogate.read(prepared / f"surrogate-{STEPS}.pt", Neighbors.dimension)
    changed = [" ".join([text.split()[1], text.split()[0], *text.split()[2:]]) for text in HELD_OUT]
    chosen = [place for place, text in enumerate(changed) if text != HELD_OUT[place]]
    before, after = [HELD_OUT[place] for place in chosen], [changed[place] for place in chosen]

    def predicted(texts: Sequence[str]) -> Tensor:
        return surrogate.predict([text.split() for text in texts], lambda words: unit(words, oracle))

    mean_of_words = torch.nn.functional.normalize(
        torch.stack([unit(text.split(), oracle).mean(0) for text in before]), dim=1
    )
    true = unit(before, oracle)
    cosine = (predicted(before) * true).sum(1).mean()
    assert cosine > (mean_of_words * true).sum(1).mean() + 0.05
    # The two orders have the same words: a sum of word vectors predicts no change at all.
    change = torch.nn.functional.cosine_similarity(
        predicted(after) - predicted(before), unit(after, oracle) - true, dim=1
    )
    assert change.mean() > 0.4


def test_texts_are_found_with_fewer_queries(oracle: CachedEmbedder, prepared: Path) -> None:
    generator = random.Random(2)
    texts = HELD_OUT[:20]
    guesses = []
    for text in texts:
        words = text.split()
        place = generator.randrange(len(words) - 1)
        words[place], words[place + 1] = words[place + 1], words[place]
        guesses.append(" ".join(words))
    queries, exact = {}, {}
    for steps in (0, STEPS):
        search = LexiconSearch(surrogate_steps=steps, max_queries=150, moves=4, numbers=0, proposals=1)
        search.load(prepared, Neighbors.dimension)
        counted = CachedEmbedder(Neighbors(), prepared / f"cache-{steps}")
        targets = Targets(Neighbors().embed(texts), torch.arange(len(texts)))
        found = search.refine(targets, [Prediction((guess,)) for guess in guesses], counted)
        exact[steps] = sum(one.candidates[0] == text for one, text in zip(found, texts, strict=True))
        queries[steps] = counted.queries.asked["attack"]
    assert exact[STEPS] >= exact[0] >= 10
    assert queries[STEPS] < 0.8 * queries[0]


def test_training_is_repeatable_and_its_weights_are_the_attacks(oracle: CachedEmbedder, prepared: Path) -> None:
    one, other = (fit(TRAINING[:300], oracle, steps=3).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert LexiconSearch(surrogate_steps=STEPS).prepared(prepared)
    assert LexiconSearch().prepared(prepared)
    assert not LexiconSearch(surrogate_steps=STEPS + 1).prepared(prepared)
    with_one, without = LexiconSearch(surrogate_steps=STEPS), LexiconSearch()
    for search in (with_one, without):
        search.load(prepared, Neighbors.dimension)
    assert with_one.all_weights()
    assert not without.all_weights()


def test_unknown_training_text_and_damaged_weights_are_one_message(oracle: CachedEmbedder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"attack.refine.lexicon.surrogate_steps=7: .* with this refiner"):
        LexiconSearch(surrogate_steps=7).prepare([], tmp_path, oracle)
    (tmp_path / "surrogate-7.pt").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"surrogate-7.pt"):
        Surrogate.read(tmp_path / "surrogate-7.pt", 24)
