"""The state of the last position: what the search runs, what it finds and claims; a run from training to metrics."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from transformers import AutoModelForCausalLM

from unembed import launch
from unembed.attacks.lm_inversion.last_state import LastState, changes
from unembed.attacks.parts.backbones import token_ids
from unembed.attacks.parts.predictions import Targets
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.train import train


def overrides(language_model: Path, tmp_path: Path) -> list[str]:
    return [
        "attack=last_state", "embedder=language_model", f"embedder.model={language_model}", "embedder.device=cpu",
        "embedder.observe=hidden_state", "embedder.positions=last", "embedder.layer=2", "embedder.max_tokens=8",
        "datamodule=random_tokens", "datamodule.source.max_length=2", "datamodule.source.test_per_length=4",
        "datamodule.source.valid_per_length=4", "datamodule.source.train_per_length=40", "attack.backbone.width=32",
        "attack.backbone.heads=2", "attack.backbone.encoder_layers=1", "attack.backbone.decoder_layers=1",
        "attack.backbone.vocabulary=300", "attack.prefix.hidden=16", f"run_dir={tmp_path / 'run'}",
        f"cache_dir={tmp_path / 'cache'}", "logger=none", "trainer.max_steps=3", "trainer.accelerator=cpu",
        "trainer.precision=32-true",
    ]  # fmt: skip


def attack_of(language_model: Path, tmp_path: Path, *more: str) -> tuple[LastState, LanguageModelEmbedder]:
    config = launch.compose("train", [*overrides(language_model, tmp_path), *more])
    model = instantiate(config.embedder, _convert_="all")
    attack = instantiate(config.attack, _convert_="all")
    attack.connect(tmp_path / "artifacts", CachedEmbedder(model, tmp_path / "cache"))
    return attack, model


def searched(attack: LastState, model: LanguageModelEmbedder, text: str, decoded: list[str]) -> Any:
    attack.prepare(["w1 w2 w3"], attack.artifacts)
    attack.build(model.dimension)
    attack.eval()
    attack.decoded = lambda targets: [token_ids(attack.tokenizer, decoded)]  # type: ignore[method-assign]
    (found,) = attack.invert(Targets(model.embed([text]), torch.arange(1)), attack.oracle)
    return found


def test_it_finds_a_text_whose_tokens_the_decoded_texts_have(language_model: Path, tmp_path: Path) -> None:
    attack, model = attack_of(language_model, tmp_path, "attack.search.steps=6")
    found = searched(attack, model, "w3 w1 w4 w6", ["w3 w1 w9 w6", "w3 w7 w4 w6", "w2 w1 w4 w6"])
    assert found.candidates[0] == "w3 w1 w4 w6"
    assert found.search.verified
    assert 3 < found.search.passes <= 3 + 6 * 64
    assert model.decode(found.tokens) == "w3 w1 w4 w6"


def test_it_claims_nothing_that_it_did_not_find(language_model: Path, tmp_path: Path) -> None:
    attack, model = attack_of(language_model, tmp_path, "attack.search.steps=1", "attack.search.candidates=2")
    found = searched(attack, model, "w3 w1 w4 w6", ["w9 w8", "w7"])
    assert found.candidates[0] != "w3 w1 w4 w6"
    assert not found.search.verified
    assert found.search.passes <= 4


def test_without_rounds_it_returns_what_is_decoded(language_model: Path, tmp_path: Path) -> None:
    attack, model = attack_of(language_model, tmp_path)
    found = searched(attack, model, "w3 w1", ["w9 w8", "w3 w1"])
    assert found.candidates[0] == "w9 w8"
    assert found.search is None


def test_changes_are_the_likeliest_tokens_the_others_tokens_and_their_ends(
    language_model: Path, tmp_path: Path
) -> None:
    _, model = attack_of(language_model, tmp_path)
    text, other = (4, 7, 5), (9, 8, 6, 3)
    found = list(changes(text, [text, other], model))
    network = AutoModelForCausalLM.from_pretrained(language_model).eval()
    with torch.no_grad():
        logits = network(torch.tensor([[4, 7]])).logits[0]
    second, third = (int(row.argmax()) for row in logits)
    assert (4, second, 5) in found
    assert (4, 7, third) in found
    assert {(4, token, 5) for token in (9, 8, 6)} <= set(found)  # the other text's at the place and beside it
    assert {(4, 5), (7, 5), (4, 7)} <= set(found)
    assert {(4, 8, 6, 3), (4, 7, 6, 3), (4, 9, 8, 6, 3)} <= set(found)
    longest = (4,) * 8
    assert max(len(ids) for ids in changes(longest, [longest, other], model)) == 8


def test_other_observations_are_refused(language_model: Path, tmp_path: Path) -> None:
    attack, model = attack_of(language_model, tmp_path, "embedder.positions=all")
    with pytest.raises(InputError, match=r"^embedder\.positions=all: .* take embedder\.positions=last$"):
        attack.model(CachedEmbedder(model, tmp_path / "cache"))
    attack, model = attack_of(language_model, tmp_path, "embedder.observe=logits")
    with pytest.raises(InputError, match=r"^embedder\.observe=logits: .* take embedder\.observe=hidden_state"):
        attack.model(CachedEmbedder(model, tmp_path / "cache"))


def test_a_run_from_training_to_metrics(language_model: Path, tmp_path: Path) -> None:
    """Two decoded texts a target and a round of search; claims are true: no other text of two tokens has the state."""
    more = ["attack.search.steps=2", "attack.search.proposals=4", "attack.search.candidates=256"]
    train(launch.compose("train", [*overrides(language_model, tmp_path), *more]))
    rows = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 8
    assert all(len(row["prediction_tokens"]) <= 8 for row in rows)
    assert all(row["search"]["verified"] or row["search"]["passes"] > 4 for row in rows)
    for row in rows:
        if row["search"]["verified"]:
            assert row["prediction_tokens"] == row["reference_tokens"]
    _, model = attack_of(language_model, tmp_path)
    states = model.observe(torch.tensor(list(product(range(60), range(0, 60, 7)))))
    assert torch.pdist(states).min() > 1e-3
