"""SODA against brute force over all inputs, alone and among others, of unknown length, killed and gone on with."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_language_model
from torch import Tensor

from attacks.base import Prediction, Targets
from attacks.lm_output.losses import LogitLoss
from attacks.lm_output.soda import SODA
from embedders.cache import CachedEmbedder
from embedders.language_model import LanguageModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CachedEmbedder:
    return CachedEmbedder(LanguageModel(str(folder)), tmp_path_factory.mktemp("cache"))


def attack(oracle: CachedEmbedder | None, **settings: Any) -> SODA:
    made = SODA(**{"loss": LogitLoss(), "iterations": 500, "length": 2} | settings)
    made.connect(Path("unused"), oracle)
    return made


def observed(oracle: CachedEmbedder, inputs: list[tuple[int, ...]]) -> Tensor:
    model = oracle.embedder
    assert isinstance(model, LanguageModel)
    return torch.cat([model.observe(torch.tensor([ids])) for ids in inputs])


def run(made: SODA, oracle: CachedEmbedder, inputs: list[tuple[int, ...]], first: int = 0) -> list[Prediction]:
    index = torch.arange(first, first + len(inputs))
    with torch.inference_mode():  # as Lightning's test loop
        return made.invert(Targets(observed(oracle, inputs), index), oracle)


def iterations(prediction: Prediction) -> int:
    assert prediction.search is not None
    return prediction.search.iterations


# Not (0, 0): after the first step many tokens are equally likely, and which is the highest is the doing of last bits.
PAIRS = [(5, 17), (12, 30), (59, 3), (8, 8), (21, 40), (33, 2)]


def test_what_is_verified_is_what_brute_force_finds(oracle: CachedEmbedder) -> None:
    model = oracle.embedder
    assert isinstance(model, LanguageModel)
    everything = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=2)))
    rows = model.observe(everything)
    wanted = observed(oracle, PAIRS)
    predictions = run(attack(oracle), oracle, PAIRS)
    assert sum(p.search is not None and p.search.verified for p in predictions) >= 5
    for prediction, row in zip(predictions, wanted, strict=True):
        assert prediction.search is not None
        close = torch.isclose(rows, row, atol=1e-4, rtol=1e-4).all(dim=1)
        matching = {tuple(ids) for ids in everything[close].tolist()}
        assert (prediction.tokens in matching) == prediction.search.verified
        assert prediction.candidates == (model.decode(prediction.tokens or ()),)


def test_a_target_alone_among_others_and_after_others_left(oracle: CachedEmbedder) -> None:
    together = run(attack(oracle, slots=2), oracle, PAIRS)  # waiting targets take the slots of solved ones
    assert len({iterations(p) for p in together}) > 2  # they left one by one
    wide = run(attack(oracle, slots=32), oracle, PAIRS)
    alone = [run(attack(oracle), oracle, [pair], first=place)[0] for place, pair in enumerate(PAIRS)]
    solved = [place for place, p in enumerate(together) if p.search and p.search.verified]
    for others in (wide, alone):
        assert [others[place].tokens for place in solved] == [together[place].tokens for place in solved]
        assert [iterations(others[place]) for place in solved] == [iterations(together[place]) for place in solved]
