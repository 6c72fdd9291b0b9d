"""attack=zero_shot over its whole path: what is bought, what the next fits gain, limits, and its parts by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.files import metrics_of, read_lines
from support.letters import LettersAndSigns, Rotated
from support.own_space import DECODER, OWN, SHORT, TEXTS, VICTIM
from support.places import Place
from unembed import launch
from unembed.attacks.refine.lexicon.surrogate import Surrogate
from unembed.attacks.refine.sentences import SentenceSearch
from unembed.attacks.transfer.aligners import AffineMap
from unembed.attacks.transfer.zero_shot import Bought, WhitenedEmbedder, local
from unembed.commands import invert
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs import layout
from unembed.runs.trust import trusting

FEW = ["datamodule.limit_train=20", "attack.texts=4", "attack.rounds=2"]
HALF = AffineMap(torch.eye(2).double() / 2, torch.zeros(2).double())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained decoder on the attacker's own encoder."""
    folder = tmp_path_factory.mktemp("zero_shot")
    Place(folder, TEXTS, SHORT, OWN).train("own", *DECODER, steps=60)
    return folder


def attacked(base: Path, name: str, *overrides: str) -> Path:
    given = [f"attack.source_run={base / 'own'}", "attack=zero_shot", f"cache_dir={base / name / 'cache'}", *overrides]
    return Place(base, base / "data.jsonl", SHORT, VICTIM).train(name, *given)


def asked_of_victim(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    embed = Rotated.embed
    monkeypatch.setattr(Rotated, "embed", lambda self, texts: asked.extend(texts) or embed(self, texts))
    return asked


def test_only_texts_that_are_paid_for_are_sent(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_of_victim(monkeypatch)
    run = attacked(base, "bare", *FEW, "attack/refine=[]")
    rows = read_lines(base / "data.jsonl")
    train, tests = ([row["text"] for row in rows if row["split"] == split] for split in ("train", "test"))
    predicted = read_lines(run / layout.PREDICTIONS)
    candidates = {text for row in predicted for text in row["candidates"]}
    assert set(asked) == {*train[:20], *tests} | candidates
    assert max(len(row["candidates"]) for row in predicted) <= 4 * 3
    assert metrics_of(run)["queries"] == len(candidates)


@pytest.mark.parametrize("words", ["mapped", "bought"])
def test_words_of_the_lexicon_are_mapped_or_bought(base: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    asked = asked_of_victim(monkeypatch)
    search = [f"attack.words={words}", "attack.refine.lexicon.max_queries=20", "attack.refine.lexicon.numbers=7"]
    run = attacked(base, words, *FEW, *search)
    single = {text for text in asked if " " not in text}
    assert ({"ada", "oslo", "0", "6"} <= single) == (words == "bought")
    found = metrics_of(run)
    assert found["queries"] <= 20 * found["examples"]
    assert found["cosine"] > metrics_of(attacked(base, f"{words}-alone", *FEW, "attack/refine=[]"))["cosine"]


def test_sentences_are_searched_with_what_the_map_predicts(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_of_victim(monkeypatch)
    key = "attack.refine.sentences"
    few = [*FEW, "datamodule.limit_test=4"]
    search = ["attack/refine=[sentences]", f"{key}.max_queries=20", f"{key}.numbers=7", f"{key}.samples=8"]
    run = attacked(base, "sentences", *few, *search)
    found = metrics_of(run)
    assert found["queries"] <= 20 * found["examples"]
    assert not {text for text in asked if text in ("oslo", "6")}  # words are mapped
    assert found["cosine"] > metrics_of(attacked(base, "sentences-alone", *few, "attack/refine=[]"))["cosine"] + 0.01
    assert not [*(run / layout.ARTIFACTS).glob("refine/*/surrogate*")]
    monkeypatch.setattr(SentenceSearch, "at_once", 1)  # all targets of a batch share their pairs, so it stays whole
    again = Place(base, base / "data.jsonl", SHORT, VICTIM).evaluate(run, "sentences-again")
    assert (again / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()


def test_fitting_again_reads_more_from_few_bought_texts(base: Path) -> None:
    once, again = (
        metrics_of(attacked(base, f"rounds{rounds}", f"attack.rounds={rounds}", "datamodule.limit_train=8",
                            "attack.texts=6", "attack/refine=[]"))["cosine"]
        for rounds in (0, 4)
    )  # fmt: skip
    assert again > once + 0.01


def test_evaluates_and_inverts_without_the_source(base: Path, tmp_path: Path) -> None:
    run = attacked(base, "moved", *FEW)
    (base / "own").rename(base / "away")
    try:
        again = Place(base, base / "data.jsonl", SHORT, VICTIM).evaluate(run, "again")
        assert (again / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
        np.save(tmp_path / "v.npy", Rotated().embed(TEXTS[:5]).numpy())
        with trusting("support.letters"):
            given = [f"run={run}", f"vectors={tmp_path / 'v.npy'}", "trust=support.letters"]
            invert.invert(*launch.on_run("invert", given))
        assert len(read_lines(tmp_path / "v.npy.texts.jsonl")) == 5
    finally:
        (base / "away").rename(base / "own")


def test_a_limit_ends_the_search_with_the_best_texts(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = attacked(base, "limited", *FEW, "attack/refine=[]")
    attack = Place(base, base / "data.jsonl", SHORT, VICTIM)  # for the vectors of its test texts
    left = [5]
    embed = CachedEmbedder.embed

    def limited(self: CachedEmbedder, texts: list[str], purpose: str = "attack") -> torch.Tensor:
        if not isinstance(self.embedder, Rotated) or purpose != "attack":
            return embed(self, texts, purpose)
        if len(texts) <= left[0]:
            left[0] -= len(texts)
            return embed(self, texts, purpose)
        known = embed(self, texts[: left[0]], purpose)
        done, left[0] = list(range(left[0])), 0
        raise QueryLimitError("embedder.max_queries=5 is reached", done, known)

    monkeypatch.setattr(CachedEmbedder, "embed", limited)
    again = attack.evaluate(run, "stopped", f"cache_dir={base / 'stopped' / 'cache'}")
    rows = read_lines(again / layout.PREDICTIONS)
    assert metrics_of(again)["queries"] == 5
    assert all(row["candidates"] for row in rows)


def test_the_local_error_by_hand() -> None:
    """Two texts on either side of the target, at distances 1 and 2, where the map errs by 1 and by 3."""
    target, vectors = torch.zeros(1).double(), torch.tensor([[1.0], [-2.0]]).double()
    errors = torch.tensor([[1.0], [3.0]]).double()
    mean, nearest = local(target, vectors, errors)
    near, far, apart = (float(np.exp(-(distance**2) / 2)) for distance in (1, 2, 3))  # a width of 1, the nearest
    expected = np.array([near, far]) @ np.linalg.solve([[1.1, apart], [apart, 1.1]], [[1.0], [3.0]])
    assert mean.tolist() == pytest.approx(expected.tolist())
    assert nearest.tolist() == [1.0]


def test_what_was_bought_for_a_target() -> None:
    one = Bought(torch.tensor([1.0, 0]).double(), torch.tensor([0.5, 0]).double())
    for text, vector in (("far", [0.0, 1]), ("near", [1.0, 1])):
        one.receive(text, torch.tensor(vector), torch.tensor([5.0, 6]).double(), HALF)
    assert one.prediction().candidates == ("near", "far")
    # back(1, 0) = (.5, 0); the errors there are (4.5, 5.5) at near and (5, 5.5) at far
    assert one.aims(HALF)[1].tolist() == pytest.approx([5.0, 5.5])
    one.receive("unknown", None, torch.zeros(2).double(), HALF)
    assert one.prediction().candidates == ("near", "far", "unknown")
    assert one.prediction().partial
    assert len(one.aims(HALF)) == 0  # no more is bought


def test_nothing_is_bought_for_a_text_that_was_found() -> None:
    one = Bought(torch.tensor([1.0, 0]).double(), torch.tensor([0.5, 0]).double())
    one.receive("near", torch.tensor([1.0, 1]), torch.ones(2).double(), HALF)
    one.receive("it", torch.tensor([1.0, 0]), torch.tensor([3.0, 4]).double(), HALF)
    assert one.aims(HALF).shape == (0, 2)
    # It lies where its text does, but for the noise that a mean takes every text to have: .1 of its error of (2.5, 4).
    assert one.places(HALF)[0].tolist() == pytest.approx([0.5 + 2.5 / 1.1, 4 / 1.1])


def test_refiners_see_whitened_vectors_and_a_limit(tmp_path: Path) -> None:
    half = AffineMap(torch.eye(Rotated.dimension).double() / 2, torch.zeros(Rotated.dimension).double())
    forth = AffineMap(torch.ones(LettersAndSigns.dimension, Rotated.dimension).double(), torch.zeros(1).double())
    own, victim = (CachedEmbedder(one, tmp_path) for one in (LettersAndSigns(), Rotated()))
    view = WhitenedEmbedder(victim, half, own, forth)
    mapped = LettersAndSigns().embed(["ada"]).sum() / 2 * torch.ones(1, 48)
    assert torch.allclose(view.embed(["ada"]), Rotated().embed(["ada"]) / 2)
    assert torch.allclose(view.embed(["ada"], "lexicon"), mapped)
    assert torch.allclose(view.predict(["ada"]), mapped / mapped.norm())
    assert view.predict([]).shape == (0, 48)
    surrogate = Surrogate(LettersAndSigns.dimension).eval()
    quick = WhitenedEmbedder(victim, half, own, forth, surrogate=surrogate)
    word = torch.nn.functional.normalize(LettersAndSigns().embed(["ada"]), dim=1)
    expected = half(forth(surrogate.predict([("ada",)], lambda words: word.expand(len(words), -1)))).float()
    assert torch.allclose(quick.predict(["ada"]), expected / expected.norm(), atol=1e-6)
    assert view.queries.asked == {"attack": 1, "lexicon": 0, "training": 0, "scoring": 0}
