"""The nearest neighbour against brute force, whatever the blocks; ties; the attack over its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import attacks.nearest_neighbor
from attacks.base import Targets
from attacks.nearest_neighbor import NearestNeighbor, nearest
from embedders.cache import CachedEmbedder


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


def test_length_of_a_vector_does_not_matter() -> None:
    vectors = torch.tensor([[100.0, 100.0], [0.1, 0.0]])
    assert nearest(torch.tensor([[3.0, 0.5], [0.001, 0.001]]), [vectors]) == [1, 0]


def test_opposite_vectors_only() -> None:
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


@pytest.mark.parametrize("block", [2, 16_384])
def test_attack_reads_back_what_it_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(attacks.nearest_neighbor, "BLOCK", block)
    texts = ["0.0", "0.5", "1.0", "1.5", "2.5"]
    cached = CachedEmbedder(Angles(), tmp_path / "cache")
    cached.fill(texts, "training")
    attack = NearestNeighbor()
    attack.connect(tmp_path, cached)
    attack.prepare(texts, tmp_path)

    again = NearestNeighbor()
    again.connect(tmp_path, None)  # neither data nor embedder
    again.restore(None, dimension=2)
    targets = Targets(Angles().embed(["0.1", "1.2", "2.3", "0.0"]), torch.arange(4))
    found = again.invert(targets, None)
    assert [prediction.candidates for prediction in found] == [("0.0",), ("1.0",), ("2.5",), ("0.0",)]
    assert [prediction.kind for prediction in found] == ["sequence"] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "neighbors.jsonl", "neighbors.npy"]
