"""The inverter on mT5: its loss in blocks, its two embeddings, and a run from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

import unembed.attacks.mt5_inverter
from support.files import read_lines, write_lines
from support.tiny_models import t5_model
from unembed import launch
from unembed.attacks.mt5_inverter import MT5Decoder
from unembed.attacks.parts.backbones import train_tokenizer, untied
from unembed.attacks.parts.decoders import EncoderDecoder
from unembed.evaluate import evaluate
from unembed.train import train

TEXTS = ["zwei männer kochen", "deux hommes cuisinent", "two men cook", "ein hund läuft", "un chien court"] * 4


def tiny() -> Any:
    return untied(t5_model(41, multilingual=True, dropout_rate=0.0))


def gradients(decoder: EncoderDecoder, prefix: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, list[Tensor]]:
    decoder.zero_grad()
    loss = decoder.loss(prefix, labels, smoothing)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in decoder.parameters() if p.grad is not None]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("at_once", [41 * 4, 41 * 1000])
def test_the_loss_in_blocks_is_the_loss(monkeypatch: pytest.MonkeyPatch, smoothing: float, at_once: int) -> None:
    monkeypatch.setattr(unembed.attacks.mt5_inverter, "LOGITS_AT_ONCE", at_once)
    model, prefix = tiny(), torch.randn(3, 2, 16)
    labels = torch.tensor([[5, 9, 7, 1, -100, -100], [3, 1, -100, -100, -100, -100], [8, 8, 2, 30, 40, 1]])
    whole, wanted = gradients(EncoderDecoder(model), prefix, labels, smoothing)
    blocks, got = gradients(MT5Decoder(model), prefix, labels, smoothing)
    torch.testing.assert_close(blocks, whole)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_only_the_logits_of_one_block_are_kept_and_embeddings_stay_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unembed.attacks.mt5_inverter, "LOGITS_AT_ONCE", 41 * 4)
    decoder, sizes = MT5Decoder(tiny()), []
    decoder.model.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    labels = torch.randint(2, 41, (5, 4)).index_fill(1, torch.tensor([3]), -100)
    decoder.loss(torch.randn(5, 2, 16), labels).backward()
    assert sizes == [4, 4, 4, 3, 3, 4, 4, 4]  # fifteen labels that count, forwards; and again backwards
    model = tiny()
    assert model.lm_head.weight is not model.shared.weight
    assert torch.equal(model.lm_head.weight, model.shared.weight)
    before = model.lm_head.weight
    assert untied(model).lm_head.weight is before


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    splits = ["train"] * 16 + ["valid"] * 2 + ["test"] * 2
    rows = [
        {"text": f"{text} {place}", "split": split}
        for place, (text, split) in enumerate(zip(TEXTS, splits, strict=True))
    ]
    write_lines(path, rows)
    return path


def common(texts: Path, tmp_path: Path) -> list[str]:
    return [
        "debug=smoke", "logger=none", "datamodule=files", f"datamodule.path={texts}", "datamodule.split_field=split",
        f"cache_dir={tmp_path / 'cache'}", f"run_dir={tmp_path / 'run'}", "attack.decoding.max_new_tokens=8",
        "trainer.accelerator=cpu",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_small_one_trains_offline_and_is_rebuilt(texts: Path, tmp_path: Path) -> None:
    small = ["encoder_layers=1", "decoder_layers=1", "width=32", "heads=2", "vocabulary=300"]
    overrides = ["attack=mt5_inverter_random", *(f"attack.backbone.{one}" for one in small)]
    train(launch.compose("train", [*overrides, *common(texts, tmp_path)]))
    assert json.loads((tmp_path / "run" / "artifacts" / "decoder" / "config.json").read_text())["model_type"] == "mt5"
    evaluate(*launch.on_run("evaluate", [f"run={tmp_path / 'run'}", f"output_dir={tmp_path / 'again'}"]))
    assert read_lines(tmp_path / "again" / "predictions.jsonl") == read_lines(tmp_path / "run" / "predictions.jsonl")


@pytest.mark.slow
def test_a_published_one_keeps_both_embeddings_through_a_run(texts: Path, tmp_path: Path) -> None:
    """A folder laid out as google/mt5-base is, whose two embeddings differ: what evaluation rebuilds must have both."""
    folder = tmp_path / "mt5"
    tokenizer = train_tokenizer(TEXTS, 300)
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "dropout_rate": 0.0}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    start = {"decoder_start_token_id": tokenizer.pad_token_id}
    model = untied(t5_model(len(tokenizer), seed=1, multilingual=True, **shape, **ids, **start))
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert not torch.equal(AutoModelForSeq2SeqLM.from_pretrained(folder).lm_head.weight, model.shared.weight)
    overrides = ["attack=mt5_inverter", f"attack.backbone.name={folder}", "trainer.precision=32-true"]
    train(launch.compose("train", [*overrides, *common(texts, tmp_path)]))
    weights = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert not torch.equal(weights["decoder.model.lm_head.weight"], weights["decoder.model.shared.weight"])
    evaluate(*launch.on_run("evaluate", [f"run={tmp_path / 'run'}", f"output_dir={tmp_path / 'again'}"]))
    assert read_lines(tmp_path / "again" / "predictions.jsonl") == read_lines(tmp_path / "run" / "predictions.jsonl")
