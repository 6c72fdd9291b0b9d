"""benchmarks/train_on_gpu.py: packed batches train what padded ones do, here on the CPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from support.running_benchmarks import Benchmarks
from unembed.attacks.parts.backbones import load_tokenizer
from unembed.attacks.parts.decoders import CausalDecoder
from unembed.attacks.refine.lexicon.surrogate import Surrogate

TEXTS = ["Ada went to Oslo.", "It rained.", "The two dogs run through tall grass near the old river."]


@pytest.fixture
def script(benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch) -> Any:
    import train_on_gpu  # type: ignore[import-not-found, unused-ignore]

    monkeypatch.setattr(train_on_gpu, "LAYERS", 2)
    monkeypatch.setattr(train_on_gpu, "WIDTH", 32)
    monkeypatch.setattr(train_on_gpu, "HEADS", 2)
    return train_on_gpu


def write_rows(script: Any, folder: Path, name: str, rows: list[list[int]]) -> Any:
    ids, lengths = script.flat(rows, np.uint16)
    np.save(folder / f"{name}.npy", ids)
    np.save(folder / f"{name}_lengths.npy", lengths)
    return script.Rows(folder, name)


def test_a_packed_batch_has_the_loss_and_gradient_of_a_padded_one(script: Any, tmp_path: Path) -> None:
    script.backbone().prepare(TEXTS, tmp_path, positions=40)
    tokenizer = load_tokenizer(tmp_path)
    labels = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in TEXTS]
    rows = write_rows(script, tmp_path, "tokens", labels)
    torch.manual_seed(0)
    decoder = script.Decoder(tmp_path, 6)
    vectors = torch.zeros(4, 6)
    vectors[:3] = torch.randn(3, 6)
    chosen = np.array([2, 0, 1])
    packed = script.Packed(rows, chosen, 150, 4, script.PREFIX - 1)
    assert packed.ends.tolist()[:4] == [0, *np.cumsum(rows.lengths[chosen] + 3).tolist()]
    assert packed.ends.tolist()[4:] == [150, 150]
    decoder(packed, rows, vectors).backward()
    weight = decoder.model.transformer.h[0].attn.c_attn.weight
    gradient = weight.grad.clone()
    weight.grad = None
    padded = pad_sequence([torch.tensor(labels[row]) for row in chosen], batch_first=True, padding_value=-100)
    expected = CausalDecoder(decoder.model).loss(decoder.prefix(vectors[:3]), padded)
    expected.backward()
    assert decoder(packed, rows, vectors).item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient, weight.grad, rtol=1e-3, atol=1e-6)


def test_a_surrogate_trains_on_packed_words(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step is one minus the mean cosine of what the trained surrogate predicts."""
    words = [[0, 1, 2], [3, 1], [2, 4, 0, 5]]
    write_rows(script, tmp_path, "words", words)
    vectors = torch.nn.functional.normalize(torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    losses: list[float] = []

    def fit(module: Any, optimizer: Any, warmup: int, seconds: float, loss_of: Any, slots: int) -> int:
        for _ in range(2):
            losses.append(loss_of().item())
        return 2

    monkeypatch.setattr(script, "fit", fit)
    monkeypatch.setattr(script, "batches", lambda *_: iter([np.arange(3), np.array([1])]))
    monkeypatch.setattr(script, "SURROGATE_WIDTH", 64)
    options = type("Options", (), {"data": tmp_path, "slots": 40, "surrogate_seconds": 1.0})
    surrogate = script.train_surrogate(options, vectors, 3, 0)
    assert isinstance(surrogate, Surrogate)
    table = {str(number): vectors[3 + number] for number in range(6)}
    found = surrogate.predict(
        [[str(word) for word in text] for text in words], lambda some: torch.stack([table[word] for word in some])
    )
    cosines = (found * vectors[:3]).sum(1)
    assert losses == pytest.approx([1 - cosines.mean().item(), 1 - cosines[1].item()], abs=1e-5)
    surrogate.save(tmp_path / "surrogate-2.pt")
    assert len(Surrogate.read(tmp_path / "surrogate-2.pt", 6).blocks) == script.SURROGATE_LAYERS


def test_batches_hold_every_short_text_once_an_epoch_and_long_ones_in_half_of_them(script: Any) -> None:
    lengths = np.array([10] * 30 + [100] * 10)
    stream = script.batches(lengths, np.arange(40), 200, 8, 0)
    found = [next(stream) for _ in range(200)]
    assert all(lengths[rows].sum() <= 200 and len(rows) <= 8 for rows in found)
    counts = np.bincount(np.concatenate(found), minlength=40)
    assert 1.5 < counts[:30].mean() / counts[30:].mean() < 2.5


def test_changed_texts_have_other_words_or_another_order(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "DRAWN", ["Rome"])
    text = "Ada went to Oslo by train."
    made = {script.changed(text.split(), random.Random(seed)) for seed in range(200)}
    assert {len(one.split()) for one in made} >= {5, 6, 7}
    assert any(sorted(one.split()) == sorted(text.split()) and one != text for one in made)
    assert sum("Rome" in one for one in made) > 50
