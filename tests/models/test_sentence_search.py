"""Sentence search, on an embedder that adds up word vectors, and with the shipped attacker; its decoder, the writer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from hydra.utils import instantiate
from test_lexicon import TEXTS, Words
from torch import Tensor

import unembed
from support.assembled import built
from unembed import launch
from unembed.attacks.geia import GEIA
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.writing import Writer
from unembed.attacks.refine.lexicon.language import Units
from unembed.attacks.refine.lexicon.surrogate import Surrogate, VectorsOf
from unembed.attacks.refine.sentences import SentenceSearch
from unembed.core.errors import InputError
from unembed.embedders.base import fingerprint_of
from unembed.embedders.cache.cached import CachedEmbedder

SETTINGS = {"surrogate_steps": 1, "vocabulary": False, "numbers": 0, "samples": 4, "each": 10}


class Fragments(Writer):
    """Goes on with a word of the training text, and finds short texts more probable."""

    def __init__(self) -> None:
        self.predict = None
        self.words = sorted({word for text in TEXTS for word in text.split()})

    def write_on(
        self, vectors: Tensor, beginnings: Sequence[str], uniforms: Tensor, temperature: float = 1.0
    ) -> list[str]:
        chosen = (uniforms[:, :2] * len(self.words)).long().tolist()
        return [f"{self.words[first]} {self.words[second]}" for first, second in chosen]

    def rearranged(self, vectors: Tensor, texts: Sequence[str], beams: int) -> list[list[str]]:
        return [[" ".join(sorted(text.split()))] for text in texts]

    def log_probabilities(self, vectors: Tensor, texts: Sequence[str]) -> Tensor:
        return torch.tensor([-float(len(text.split())) for text in texts])


class Ordered(Words):
    """Vectors say more of neighbours."""

    fingerprint = fingerprint_of(kind="ordered words", used="tests")

    def vector(self, text: str) -> Tensor:
        words = Units.of(text).words
        return torch.stack([*map(self.of, words), *(0.4 * self.of(f"{a} {b}") for a, b in pairwise(words))]).mean(0)


class Exact(Surrogate):
    """What a surrogate would be that has learnt everything."""

    def predict(self, texts: Sequence[Sequence[str]], vectors_of: VectorsOf) -> Tensor:
        return torch.nn.functional.normalize(Ordered().embed([" ".join(words) for words in texts]), dim=1)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts")
    SentenceSearch(**SETTINGS).prepare(TEXTS, folder, CachedEmbedder(Ordered(), tmp_path_factory.mktemp("cache")))
    return folder


def searching(artifacts: Path, **settings: int) -> SentenceSearch:
    search = SentenceSearch(**{**SETTINGS, **settings})
    assert search.prepared(artifacts)
    search.load(artifacts, Ordered.dimension)
    search.surrogate, search.writer = Exact(Ordered.dimension), Fragments()
    return search


def refined(search: SentenceSearch, oracle: CachedEmbedder, first: int, *pairs: tuple[str, str]) -> list[Prediction]:
    """Search for each (true text, prediction)."""
    search.check(Ordered.dimension, oracle)
    targets = Targets(Ordered().embed([text for text, _ in pairs]), first + torch.arange(len(pairs)))
    return search.refine(targets, [Prediction((guess,)) for _, guess in pairs], oracle)


PAIRS = [
    (TEXTS[5], "Ada went to Oslo on Monday, and Cleo stayed in Rome."),
    (TEXTS[20], "Bob on Monday went to Paris, and Ada stayed in Rome."),
    (TEXTS[33], "On Monday, Cleo went to Paris and Bob stayed in Paris."),
]


def test_words_and_their_order_are_found(artifacts: Path, tmp_path: Path) -> None:
    pairs = [(text, guess.lower()) for text, guess in PAIRS]
    found = refined(searching(artifacts), CachedEmbedder(Ordered(), tmp_path), 0, *pairs)
    assert [one.candidates[0] for one in found] == [text for text, _ in PAIRS]


def test_no_more_texts_are_embedded_than_allowed(artifacts: Path, tmp_path: Path) -> None:
    embedder, search = Ordered(), searching(artifacts, max_queries=33)
    oracle = CachedEmbedder(embedder, tmp_path)
    search.lexicon(oracle)
    embedder.asked.clear()
    refined(search, oracle, 0, ("Zoltan stays elsewhere for ever.", PAIRS[0][1]))
    assert 30 <= len(embedder.asked) <= 33  # a text that is a word of the lexicon is known already


@pytest.mark.parametrize("guess", ["", "Ada went to Oslo."])
def test_of_the_sampled_texts_the_closest_are_embedded(artifacts: Path, tmp_path: Path, guess: str) -> None:
    embedder, search = Ordered(), searching(artifacts, samples=30, max_queries=30, ahead=0)  # so a round embeds three
    oracle = CachedEmbedder(embedder, tmp_path)
    search.lexicon(oracle)
    embedder.asked.clear()
    refined(search, oracle, 0, (PAIRS[0][0], guess))
    random = Random(0)
    uniforms = torch.tensor([[random.random() for _ in range(48)] for _ in range(30)])
    sampled = Fragments().write_on(torch.empty(0), [""] * 30, uniforms)
    cosines = torch.cosine_similarity(Ordered().embed(sampled), Ordered().embed([PAIRS[0][0]]))
    closest = [sampled[place] for place in cosines.argsort(descending=True).tolist()[:3]]
    begin = 1 if guess else 0
    assert set(embedder.asked[begin : begin + 3]) == set(closest)


def test_texts_near_each_other_are_not_embedded_in_one_round(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = TEXTS[5].split()
    first, second = " ".join(words[:6]), " ".join(words[5:])
    near = " ".join([words[1], words[0], *words[2:6]])
    vectors = torch.nn.functional.normalize(Ordered().embed([TEXTS[5], first, near, second]), dim=1)
    cosines = (vectors @ vectors[0]).tolist()
    assert cosines[1] > cosines[2] > cosines[3] > cosines[1] - 0.1  # the two nearest to the target are near each other
    assert vectors[1] @ vectors[2] > 0.8 > 0.5 > vectors[1] @ vectors[3]

    embedder, search = Ordered(), searching(artifacts, samples=3, max_queries=20, ahead=0)  # so a round embeds two
    three = (first, near, second)
    monkeypatch.setattr(search.writer, "write_on", lambda _, starts, *__: [three[n % 3] for n in range(len(starts))])
    oracle = CachedEmbedder(embedder, tmp_path)
    search.lexicon(oracle)
    embedder.asked.clear()
    refined(search, oracle, 0, (TEXTS[5], ""))
    assert {*embedder.asked[:2]} == {first, second}


def test_texts_between_the_guess_and_the_target_need_not_be_embedded(artifacts: Path, tmp_path: Path) -> None:
    asked = []
    for ahead in (0, 3):
        embedder, search = Ordered(), searching(artifacts, samples=0, each=1, ahead=ahead)
        oracle = CachedEmbedder(embedder, tmp_path / str(ahead))
        search.lexicon(oracle)
        embedder.asked.clear()
        (found,) = refined(search, oracle, 0, (TEXTS[20], "Rome in stayed Ada and Paris to went Monday on Bob"))
        assert found.candidates[0].lower() == TEXTS[20].lower()
        asked.append(len(embedder.asked))
    assert asked[1] < asked[0] / 2


def test_a_text_that_has_the_vector_already_is_only_confirmed(artifacts: Path, tmp_path: Path) -> None:
    embedder, search = Ordered(), searching(artifacts)
    oracle = CachedEmbedder(embedder, tmp_path)
    search.lexicon(oracle)
    embedder.asked.clear()
    (found,) = refined(search, oracle, 0, (TEXTS[5], TEXTS[5]))
    assert found.candidates[0] == TEXTS[5]
    assert {text.lower() for text in embedder.asked} == {TEXTS[5].lower()}


def test_a_result_does_not_depend_on_the_other_targets(artifacts: Path, tmp_path: Path) -> None:
    search, oracle = searching(artifacts, max_queries=40), CachedEmbedder(Ordered(), tmp_path)
    together = refined(search, oracle, 0, *PAIRS)
    assert together == [refined(search, oracle, place, pair)[0] for place, pair in enumerate(PAIRS)]


def test_a_limit_of_the_embedder_ends_the_search(artifacts: Path, tmp_path: Path) -> None:
    search = searching(artifacts)
    entries = len(search.lexicon(CachedEmbedder(Ordered(), tmp_path / "other")).entries)
    search.load(artifacts, Ordered.dimension)
    (found,) = refined(search, CachedEmbedder(Ordered(limit=entries + 15), tmp_path / "cache"), 0, PAIRS[0])
    assert found.partial
    assert found.candidates[0]


def test_an_attack_without_a_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="writes with the attack's own decoder, and this attack has none"):
        SentenceSearch().check(64, CachedEmbedder(Words(), tmp_path))


def small_geia(tmp_path: Path, *overrides: str) -> GEIA:
    size = [f"attack.backbone.{key}" for key in ("width=32", "layers=2", "heads=2", "vocabulary=300")]
    attack = instantiate(launch.compose("train", ["attack=geia", *size, *overrides]).attack)
    return built(attack, tmp_path / "artifacts", TEXTS, 16)


def test_log_probabilities_are_those_of_the_training_loss(tmp_path: Path) -> None:
    attack, vectors = small_geia(tmp_path), torch.randn(2, 16)
    texts = ["my name is ada", "i have two dogs and a very old cat ."]
    expected = []
    for text, vector in zip(texts, vectors, strict=True):
        labels = torch.tensor(attack.encode([text]))
        expected.append(-attack.loss(vector[None], labels).item() * labels.shape[1])
    assert Writer(lambda: attack).log_probabilities(vectors, texts).tolist() == pytest.approx(expected, abs=1e-3)


def test_a_continuation_is_the_most_probable_one_when_it_is_cold(tmp_path: Path) -> None:
    attack, vectors = small_geia(tmp_path), torch.randn(3, 16)
    beginnings = ["", "my name", "i have two dogs and a"]
    found = Writer(lambda: attack).write_on(vectors, beginnings, torch.rand(3, 4), temperature=1e-6)
    for text, beginning, vector in zip(found, beginnings, vectors, strict=True):
        ids = attack.tokens([beginning])[0]
        for _ in range(4):
            embeds = attack.prefix(vector[None])
            if ids:
                embeds = torch.cat([embeds, attack.decoder.model.get_input_embeddings()(torch.tensor([ids]))], 1)
            new = int(attack.decoder.model(inputs_embeds=embeds).logits[0, -1].argmax())
            if new == attack.tokenizer.eos_token_id:
                break
            ids.append(new)
        assert text == attack.text(ids[len(attack.tokens([beginning])[0]) :])


def test_a_continuation_ends_where_the_decoder_has_no_more_positions(tmp_path: Path) -> None:
    attack = small_geia(tmp_path, "attack.decoding.max_new_tokens=4")
    beginnings = ["Ada", "Ada went to Rome on Monday, and Bob stayed in Rome."]
    _, none = Writer(lambda: attack).write_on(torch.randn(2, 16), beginnings, torch.rand(2, 9))
    assert none == ""


def test_the_decoder_may_have_more_tokens_than_the_tokenizer(tmp_path: Path) -> None:
    """OPT's and mT5's embeddings are padded."""
    attack = small_geia(tmp_path, "attack.decoding.max_new_tokens=3")
    attack.decoder.model.resize_token_embeddings(len(attack.tokenizer) + 64)
    (found,) = Writer(lambda: attack).rearranged(torch.randn(1, 16), ["Ada"], 300)
    assert len(found) == 300


def test_the_shipped_attacker_reads_more_with_it() -> None:
    texts = ["The patient takes two tablets after every meal.", "we went to the old harbour by bus"]
    attacker = unembed.load("minilm")
    vectors = attacker.embed(texts)
    before, after = (attacker.invert(vectors, queries) for queries in (0, 40))

    cosines = [(attacker.embed(found) * vectors).sum(1) for found in (before, after)]
    assert (cosines[1] > cosines[0] + 0.02).all()
    assert list(attacker.reader(40).attack.refiners.named) == ["sentences"]


def test_words_in_a_wrong_order_become_the_sentence() -> None:
    attacker, texts = unembed.load("minilm"), ["how many national parks are present in india", "A girl eats a cookie."]
    vectors = torch.as_tensor(attacker.embed(texts))
    given = ["in how many parks present are national INDIA", "A cookie a eats. girl"]
    writer = attacker.reader(16).attack.writer
    for found, text in zip(writer.rearranged(vectors, given, 32), texts, strict=True):
        assert len(found) == 32
        assert text.lower() in [one.lower() for one in found]
    assert writer.rearranged(vectors[:0], [], 32) == []


def test_a_search_that_is_asked_for_is_not_replaced() -> None:
    attacker = unembed.load("minilm", "attack/refine=[lexicon]")
    assert launch.search_of(attacker.session.config, attacker.session.run) == "lexicon"


@pytest.mark.parametrize("name", ["minilm", "me5_small_q4"])
def test_shipped_attackers_have_a_surrogate(name: str) -> None:
    attacker = unembed.load(name)
    assert launch.search_of(attacker.session.config, attacker.session.run) == "sentences"
