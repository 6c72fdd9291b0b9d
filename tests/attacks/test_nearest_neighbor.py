"""The nearest neighbour against brute force, whatever the blocks; ties; the attack over its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from lightning import Trainer
from torch import Tensor

import unembed.attacks.nearest_neighbor
from support.assembled import Texts, data_module
from support.tiny_models import tiny_language_model
from unembed.attacks.nearest_neighbor import NearestNeighbor, nearest
from unembed.attacks.parts.predictions import Targets
from unembed.core.errors import InputError
from unembed.core.examples import written_ids
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.token_inputs import RandomTokens
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder


@pytest.mark.parametrize("block", [1, 7, 50, 1000])
def test_agrees_with_brute_force(block: int) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, targets = torch.randn(50, 6, generator=generator), torch.randn(20, 6, generator=generator)
    expected = [
        max(range(50), key=lambda row: float(torch.cosine_similarity(target, vectors[row], dim=0)))
        for target in targets
    ]
    assert len(set(expected)) > 5
    assert nearest(targets, vectors.split(block)) == expected


def test_vectors_of_any_length_and_direction() -> None:
    vectors = torch.tensor([[100.0, 100.0], [0.1, 0.0]])
    assert nearest(torch.tensor([[3.0, 0.5], [0.001, 0.001]]), [vectors]) == [1, 0]
    assert nearest(torch.tensor([[1.0, 0.0]]), [torch.tensor([[-1.0, 0.0]]), torch.tensor([[-1.0, 0.5]])]) == [1]


@pytest.mark.parametrize("block", [1, 2, 5])
def test_ties_go_to_the_first_row(block: int) -> None:
    vectors = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [1.0, 0.0]])
    assert nearest(torch.tensor([[2.0, 0.0]]), vectors.split(block)) == [1]


class Angles:
    """A number in words is a point on the circle."""

    dimension = 2
    max_tokens = 10
    fingerprint = "ab" * 32

    def embed(self, texts: Sequence[str]) -> Tensor:
        angles = torch.tensor([float(text) for text in texts])
        return torch.stack([angles.cos(), angles.sin()], 1)


def prepare(texts: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_module(Texts(train=texts, valid=[], test=[]), Angles(), folder)
    data.setup("fit")
    monkeypatch.setattr(NearestNeighbor, "data", data)
    NearestNeighbor().prepare(texts, folder)


@pytest.mark.parametrize("block", [2, 16_384])
def test_attack_reads_back_what_it_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(unembed.attacks.nearest_neighbor, "BLOCK", block)
    texts = ["0.0", "0.5", "1.0", "1.5", "2.5"]
    prepare(texts, tmp_path, monkeypatch)
    again = NearestNeighbor()
    again.connect(tmp_path, None)  # neither data nor embedder
    again.restore(None, dimension=2)
    targets = Targets(Angles().embed(["0.1", "1.2", "2.3", "0.0"]), torch.arange(4))
    found = again.invert(targets, None)
    assert [prediction.candidates for prediction in found] == [("0.0",), ("1.0",), ("2.5",), ("0.0",)]
    assert [prediction.kind for prediction in found] == ["sequence"] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "neighbors.jsonl", "neighbors.npy"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("neighbors.jsonl", b"[]\n3\n", "cannot be rebuilt"),
        ("neighbors.npy", b"", "cannot be rebuilt"),
    ],
)
def test_artifacts_of_another_form_are_one_message(
    tmp_path: Path, name: str, content: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(["0.0", "0.5"], tmp_path, monkeypatch)
    (tmp_path / name).write_bytes(content)
    again = NearestNeighbor()
    again.connect(tmp_path, None, from_checkpoint=True)
    with pytest.raises(InputError, match=said):
        again.restore(None, dimension=2)


def of_token_inputs(folder: Path, train: int) -> tuple[NearestNeighbor, InversionDataModule, CachedEmbedder]:
    cached = CachedEmbedder(
        LanguageModelEmbedder(str(tiny_language_model(folder / "model")), device="cpu"), folder / "cache"
    )
    source = RandomTokens(str(folder / "model"), 2, 2, test_per_length=4, train_per_length=train)
    data = InversionDataModule(source)
    data.connect(cached, Identity())
    attack = NearestNeighbor()
    attack.connect(folder / "artifacts", cached)
    return attack, data, cached


def test_inputs_of_a_language_model_are_asked_for_by_their_ids(tmp_path: Path) -> None:
    attack, data, cached = of_token_inputs(tmp_path, train=30)
    Trainer(logger=False, accelerator="cpu", enable_progress_bar=False).test(attack, data, verbose=False)
    known = data.examples("train")
    rows = cached.embed([example.query for example in known])
    again = NearestNeighbor()
    again.connect(tmp_path / "artifacts", None)
    again.restore(None, data.dimension)
    found = again.invert(Targets(rows[:3], torch.arange(3)), None)
    assert [one.tokens for one in found] == [example.tokens for example in known[:3]]
    assert [one.candidates for one in found] == [(example.text,) for example in known[:3]]
    assert again.query(found[0]) == written_ids(known[0].tokens or ())


def test_nothing_to_compare_with_is_found_out_before_anything_is_embedded(tmp_path: Path) -> None:
    attack, data, cached = of_token_inputs(tmp_path, train=0)
    with pytest.raises(InputError, match=r"there are 0 .* datamodule\.source\.train_per_length"):
        Trainer(logger=False, accelerator="cpu", enable_progress_bar=False).test(attack, data, verbose=False)
    assert not any(cached.queries.sent.values())
