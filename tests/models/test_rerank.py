"""Reranking against brute force, its cost in queries, and where there is nothing to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support.assembled import Texts, built, quiet_trainer
from support.files import load
from support.letters import LettersAndSigns as Letters
from unembed.attacks.geia import GEIA, GEIAEncoderDecoder, GenerativeAttack
from unembed.attacks.language_model import LanguageModel
from unembed.attacks.parts.backbones import RandomGPT2, RandomT5
from unembed.attacks.parts.decoding import BeamSearch, Decoding, NucleusSampling
from unembed.attacks.parts.optimizers import AdamW
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.refine.refining import EQUAL, Rerank, closest_first
from unembed.callbacks.results import Predictions
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.inversion import InversionDataModule
from unembed.defenses.base import Defense, Role
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.scoring.models import ScoringModels

TEXTS = [f"{name} lives in {city} ." for name in ("ada", "bob", "cleo") for city in ("paris", "rome", "oslo", "lima")]


class Half:
    """A defense that halves the dimension."""

    def output_dimension(self, dimension: int) -> int:
        return dimension // 2

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        pass

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        return embeddings[:, : embeddings.shape[1] // 2]


def attack(tmp_path: Path, decoding: Decoding, kind: type[GenerativeAttack] = GEIA) -> GenerativeAttack:
    """Random weights: its proposals differ, and none of them is right."""
    torch.manual_seed(3)
    backbone = (
        RandomGPT2(layers=1, width=32, heads=2, vocabulary=300)
        if kind is GEIA
        else RandomT5(encoder_layers=1, decoder_layers=1, width=32, heads=2, vocabulary=300)
    )
    made = kind(backbone=backbone, prefix=Prefix(), optimizer=AdamW(), decoding=decoding)
    built(made, tmp_path / "artifacts", TEXTS, Letters.dimension)
    for parameter in made.parameters():  # at their usual size, all targets would get one text
        parameter.data *= 4
    return made


def cosine(text: str, target: Tensor) -> float:
    one, other = Letters().embed([text])[0].double().numpy(), target.double().numpy()
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("kind", [GEIA, GEIAEncoderDecoder])
@pytest.mark.parametrize("sampling", [False, True])
def test_the_order_is_that_of_brute_force(tmp_path: Path, kind: type[GenerativeAttack], sampling: bool) -> None:
    def decoding(**settings: Any) -> Decoding:
        if sampling:
            return NucleusSampling(p=1.0, temperature=4.0, max_new_tokens=6, seed=1, **settings)
        return BeamSearch(max_new_tokens=6, **({"beams": 8} | settings))

    embedder, targets = Letters(), Targets(Letters().embed(TEXTS), torch.arange(len(TEXTS)))
    oracle = CachedEmbedder(embedder, tmp_path / "cache")
    made = attack(tmp_path, decoding(candidates=8), kind)
    proposals = [prediction.candidates for prediction in made.invert(targets, oracle)]
    assert embedder.asked == []
    made.decoding = decoding(candidates=3, rerank=8)
    changed = 0
    for row, found in enumerate(made.invert(targets, oracle)):
        distinct = list(dict.fromkeys(proposals[row]))
        expected = sorted(distinct, key=lambda text: -round(cosine(text, targets.vectors[row]), 9))[:3]
        assert list(found.candidates) == expected
        changed += found.candidates[0] != proposals[row][0]
    assert changed > 2  # of twelve: otherwise there was nothing to rerank
    everything = {text for texts in proposals for text in texts}
    assert len(embedder.asked) == len(everything) == oracle.queries.asked["attack"]


def test_a_target_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    made = attack(tmp_path, BeamSearch(beams=2, max_new_tokens=6, candidates=2, rerank=6))
    vectors, index = Letters().embed(TEXTS), torch.arange(len(TEXTS))
    together = made.invert(Targets(vectors, index), CachedEmbedder(Letters(), tmp_path / "one"))
    other = CachedEmbedder(Letters(), tmp_path / "other")
    for row in reversed(range(len(TEXTS))):
        alone = made.invert(Targets(vectors[row : row + 1], index[row : row + 1]), other)
        assert alone == [together[row]]


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=12), st.lists(st.integers(-1, 1), min_size=12, max_size=12))
def test_equally_near_texts_keep_their_order_whatever_the_last_bits(steps: list[int], noise: list[int]) -> None:
    exact = [step / 8 for step in steps]
    shaken = [cosine + EQUAL * bit / 20 for cosine, bit in zip(exact, noise, strict=False)]
    assert closest_first(shaken) == sorted(range(len(exact)), key=lambda place: (-exact[place], place))


def test_a_text_is_asked_for_once_and_the_first_sample_stays_first(tmp_path: Path) -> None:
    embedder = Letters()
    targets = embedder.embed(["aaab", "bbba"])
    embedder.asked.clear()
    proposed = [Prediction(("b", "a", "b")), Prediction(("a", "b"))]
    found = Rerank().refine(Targets(targets, torch.arange(2)), proposed, CachedEmbedder(embedder, tmp_path))
    assert [one.candidates for one in found] == [("a", "b"), ("b", "a")]
    assert sorted(embedder.asked) == ["a", "b"]
    # Budgets are compared on nested sets of texts: those of a smaller one are among those of a larger one.
    targets = Targets(Letters().embed(TEXTS[:4]), torch.arange(4))
    found = []
    for count in (2, 7):
        made = attack(tmp_path, NucleusSampling(p=1.0, temperature=1.0, max_new_tokens=6, candidates=count))
        found.append([prediction.candidates for prediction in made.invert(targets, None)])
    assert [many[:2] for many in found[1]] == found[0]


def test_as_many_beams_as_are_reranked_and_what_is_refused(tmp_path: Path) -> None:
    assert BeamSearch(beams=5, rerank=16).beams == 16
    assert BeamSearch(beams=20, rerank=16).beams == 20
    with pytest.raises(ValueError, match="candidates=6: at most as many as rerank=4"):
        BeamSearch(beams=8, candidates=6, rerank=4)
    with pytest.raises(ValueError, match="candidates=6: at most as many as rerank=4"):
        NucleusSampling(candidates=6, rerank=4)
    made = attack(tmp_path, BeamSearch(beams=2, max_new_tokens=6, rerank=16))
    with pytest.raises(InputError, match=r"attack\.decoding\.rerank=16: needs the embedder"):
        made.invert(Targets(Letters().embed(TEXTS[:1]), torch.arange(1)), None)
    narrow = Targets(Letters().embed(TEXTS[:1])[:, :7], torch.arange(1))
    with pytest.raises(InputError, match=r"attack\.decoding\.rerank=16: .* dimension 7 and the embedder's 28.*defense"):
        made.invert(narrow, CachedEmbedder(Letters(), tmp_path / "cache"))


def outcome(tmp_path: Path, made: GenerativeAttack, embedder: Letters, defense: Defense) -> dict[str, Any]:
    cached = CachedEmbedder(embedder, tmp_path / "cache")
    data = InversionDataModule(Texts(train=TEXTS, test=reversed(TEXTS)), eval_batch_size=5, drop_repeated=False)
    data.connect(cached, defense, adaptive=True)
    made.connect(tmp_path / "artifacts", cached, from_checkpoint=True)
    trainer = quiet_trainer(callbacks=[Predictions(tmp_path / "run", cached, data, ScoringModels())])
    trainer.test(made, data, verbose=False)
    return load(tmp_path / "run" / "metrics.json")


def test_metrics_tell_the_cost(tmp_path: Path) -> None:
    made = attack(tmp_path, BeamSearch(beams=2, max_new_tokens=6, rerank=4))
    metrics = outcome(tmp_path, made, Letters(), Identity())
    vectors = Letters().embed(list(reversed(TEXTS)))
    made.decoding = BeamSearch(beams=4, max_new_tokens=6, candidates=4)
    proposals = made.invert(Targets(vectors, torch.arange(len(TEXTS))), None)
    distinct = {text for prediction in proposals for text in prediction.candidates}
    assert metrics["queries"] == len(distinct)
    assert metrics["queries_per_target"] == len(distinct) / len(TEXTS)


def test_what_cannot_be_reranked_is_refused_before_anything_is_embedded(tmp_path: Path) -> None:
    embedder = Letters()
    made = attack(tmp_path, BeamSearch(max_new_tokens=6, rerank=4))
    with pytest.raises(InputError, match=r"attack\.decoding\.rerank=4: .* dimension 14 and the embedder's 28"):
        outcome(tmp_path, made, embedder, Half())
    blind = LanguageModel(
        backbone=RandomGPT2(vocabulary=300), optimizer=AdamW(), decoding=BeamSearch(max_new_tokens=6, rerank=4)
    )
    with pytest.raises(InputError, match=r"attack\.decoding\.rerank=4: attack=language_model reads no vectors"):
        outcome(tmp_path, blind, embedder, Identity())
    assert embedder.asked == []
