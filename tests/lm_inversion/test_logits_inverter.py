"""The logits inverter: what its prefix does to logits, whose tokens it writes, a run from training to metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate

from support.tiny_models import VOCABULARY
from unembed import launch
from unembed.attacks.lm_inversion.logits_inverter import ChunkedLogits, LogitsInverter, TextLogitsInverter
from unembed.attacks.parts.predictions import Targets
from unembed.core.errors import InputError
from unembed.core.examples import written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.evaluate import evaluate
from unembed.runs.checkpoints import load_checkpoint
from unembed.train import train


def prefix(**settings: Any) -> ChunkedLogits:
    torch.manual_seed(0)
    made = ChunkedLogits(vectors=4, hidden=8, **settings)
    made.build(dimension=10, width=6)
    return made


def test_a_chunk_of_the_logits_reaches_its_own_vector_alone() -> None:
    made = prefix(adaptation=0.0).eval()
    logits = torch.randn(2, 10)
    before = made(logits)
    assert before.shape == (2, 4, 6)
    logits[:, 3] += 1  # of the second chunk: 10 logits in 4 chunks of 3, the last of which holds one
    changed = (made(logits) != before).any(2)
    assert changed.tolist() == [[False, True, False, False]] * 2


@pytest.mark.parametrize(("words", "each", "read"), [(6, 2, 2), (20, 5, 3)])
def test_one_head_for_all_chunks_mixes_the_words_of_each(words: int, each: int, read: int) -> None:
    """Ten logits in chunks of three; of a chunk with fewer words the last logits are not read, nor words too many."""
    made = prefix(adaptation=0.0, shared=True, dropout=0.5).eval()
    table = torch.randn(words, 6)
    made.take_words(table)
    logits = torch.randn(2, 10)
    mixed = torch.zeros(2, 4, 6)
    for place in range(10):
        chunk, word = place // 3, place % 3
        if word < read and each * chunk + word < words:
            mixed[:, chunk] += logits[:, place, None] * table[each * chunk + word]
    by_hand = made.outer(torch.nn.functional.gelu(made.inner(mixed)))
    torch.testing.assert_close(made(logits), by_hand)
    assert sum(tensor.numel() for tensor in made.parameters()) == 2 * 6 * 8 + 8 + 6  # of one MLP; the words are frozen


def test_the_moving_average_is_taken_away_and_is_part_of_a_checkpoint() -> None:
    made = prefix(adaptation=0.25).train()
    first, second = torch.randn(3, 10), torch.randn(3, 10)
    made(first)
    assert torch.allclose(made.unigram, first.mean(0))  # it begins with the first batch
    made(second)
    average = 0.75 * first.mean(0) + 0.25 * second.mean(0)
    assert torch.allclose(made.unigram, average)
    made.eval()
    found = made(second)
    assert torch.allclose(made.unigram, average)  # no evaluation moves it
    plain = prefix(adaptation=0.0).eval()
    assert torch.allclose(found, plain(second - average), atol=1e-6)
    made = prefix().train()
    made(torch.randn(3, 10))
    again = prefix()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.unigram, made.unigram)
    assert int(again.batches) == 1


def overrides(language_model: Path, tmp_path: Path) -> list[str]:
    return [
        "attack=logits_inverter", "embedder=language_model", f"embedder.model={language_model}", "embedder.device=cpu",
        "datamodule=random_tokens", "datamodule.source.max_length=2", "datamodule.source.test_per_length=6",
        "datamodule.source.valid_per_length=4", "datamodule.source.train_per_length=40", "attack.backbone.width=32",
        "attack.backbone.heads=2", "attack.backbone.encoder_layers=1", "attack.backbone.decoder_layers=1",
        "attack.prefix.vectors=8", "attack.prefix.hidden=16", f"run_dir={tmp_path / 'run'}",
        f"cache_dir={tmp_path / 'cache'}", "logger=none", "trainer.max_epochs=1", "trainer.max_time=null",
        "trainer.accelerator=cpu", "trainer.precision=32-true",
    ]  # fmt: skip


def attack_of(config: object, tmp_path: Path) -> tuple[LogitsInverter, LanguageModelEmbedder]:
    model = instantiate(config.embedder, _convert_="all")  # type: ignore[attr-defined]
    attack = instantiate(config.attack, _convert_="all")  # type: ignore[attr-defined]
    attack.connect(tmp_path / "artifacts", CachedEmbedder(model, tmp_path / "cache"))
    return attack, model


def test_its_ids_are_the_models_and_two_of_its_own(language_model: Path, tmp_path: Path) -> None:
    attack, model = attack_of(launch.compose("train", overrides(language_model, tmp_path)), tmp_path)
    attack.prepare([], tmp_path / "artifacts")
    attack.build(model.dimension)
    end = attack.tokenizer.eos_token_id
    assert end == VOCABULARY
    assert attack.tokenizer.pad_token_id == VOCABULARY + 1
    assert attack.encode([written_ids([0, 59, 0]), "w7 w3"]) == [[0, 59, 0, end], [8, 4, end]]
    attack.eval()
    ids = torch.tensor([[5, 17], [3, 3]])
    found = attack.invert(Targets(model.observe(ids), torch.arange(2), lengths=(1, 2)), attack.oracle)
    for one, length in zip(found, (1, 2), strict=True):
        assert len(one.tokens) <= length
        assert max(one.tokens, default=0) < VOCABULARY
        assert one.candidates[0] == model.decode(one.tokens)
        assert one.search is None  # it claims nothing


def test_one_with_tokens_of_its_own_writes_text(language_model: Path, tmp_path: Path) -> None:
    attack, model = attack_of(launch.compose("train", overrides(language_model, tmp_path)), tmp_path)
    text = TextLogitsInverter(attack.backbone, attack.prefix, attack.optimizer_settings, attack.decoding)
    text.connect(tmp_path / "artifacts", attack.oracle)
    text.prepare([], tmp_path / "artifacts")
    text.build(model.dimension)
    assert text.tokens([written_ids([8, 4]), "w7 w3"]) == [[8, 4], [8, 4]]  # by way of "w7 w3"
    assert text.input_ids([8, 4, text.tokenizer.eos_token_id], model) == [8, 4]


def test_other_observations_are_refused(language_model: Path, tmp_path: Path) -> None:
    for key, value in (("top_k", 5), ("output_tokens", 3), ("observe", "words")):
        config = launch.compose("train", [*overrides(language_model, tmp_path), f"embedder.{key}={value}"])
        attack, model = attack_of(config, tmp_path)
        with pytest.raises(InputError, match=rf"^embedder\.{key}={value}: .* take embedder\.{key}=(null|1|logits)$"):
            attack.model(CachedEmbedder(model, tmp_path / "cache"))
    with pytest.raises(InputError, match="MiniLM is no language model; take embedder=language_model"):
        attack.model(CachedEmbedder(MiniLM(), tmp_path / "cache"))


@pytest.mark.parametrize("shared", ["false", "true"])
def test_a_run_from_training_to_metrics(language_model: Path, tmp_path: Path, shared: str) -> None:
    train(launch.compose("train", [*overrides(language_model, tmp_path), f"attack.prefix.shared={shared}"]))
    rows = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 12
    assert all(len(row["prediction_tokens"]) <= 32 and len(row["reference_tokens"]) in (1, 2) for row in rows)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert 0 <= metrics["token_exact"] <= 100
    assert metrics["claims"] == 0
    assert metrics["false_discovery_rate"] is None
    kept = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["state_dict"]
    again = [f"run={tmp_path / 'run'}", f"output_dir={tmp_path / 'again'}"]
    evaluate(*launch.on_run("evaluate", again))
    assert (
        json.loads((tmp_path / "again" / "metrics.json").read_text("utf-8"))["token_partial"]
        == metrics["token_partial"]
    )
    assert ("prefix.words" in kept) == (shared == "true")
