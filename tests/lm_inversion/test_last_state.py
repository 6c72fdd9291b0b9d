"""The state of the last position: what it is whitened by; a run from training to metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

from unembed import launch
from unembed.attacks.lm_inversion.last_state import LastState
from unembed.attacks.lm_inversion.pils import WhitenedSteps
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


def test_other_observations_are_refused(language_model: Path, tmp_path: Path) -> None:
    attack, model = attack_of(language_model, tmp_path, "embedder.positions=all")
    with pytest.raises(InputError, match=r"^embedder\.positions=all: .* take embedder\.positions=last$"):
        attack.model(CachedEmbedder(model, tmp_path / "cache"))
    attack, model = attack_of(language_model, tmp_path, "embedder.observe=logits")
    with pytest.raises(InputError, match=r"^embedder\.observe=logits: .* take embedder\.observe=hidden_state"):
        attack.model(CachedEmbedder(model, tmp_path / "cache"))


def test_states_are_whitened_within_the_texts_of_one_last_token(
    language_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(WhitenedSteps, "fit", lambda self, rows, groups: calls.append((rows, groups)))
    train(launch.compose("train", [*overrides(language_model, tmp_path), "datamodule.source.max_length=1"]))
    _, model = attack_of(language_model, tmp_path)
    ((rows, groups),) = calls
    assert len(rows) == 40
    torch.testing.assert_close(rows, model.observe(groups[:, None]))  # texts of one token, which is the last


def test_a_run_from_training_to_metrics(language_model: Path, tmp_path: Path) -> None:
    train(launch.compose("train", overrides(language_model, tmp_path)))
    rows = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 8
    assert all(len(row["prediction_tokens"]) <= 8 for row in rows)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert 0 <= metrics["token_f1"] <= 100
