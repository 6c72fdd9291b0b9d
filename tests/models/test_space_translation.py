"""Unpaired translation: planted maps are found again from vectors of other rows; messages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unembed.attacks.transfer.translation import Translator


def themes(count: int, seed: int) -> Tensor:
    """Vectors of a skewed mixture, (count, 12); the mixture is the same for all seeds."""
    fixed, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(15, 12, generator=fixed) * torch.linspace(2, 0.5, 12)
    shares = torch.linspace(1, 3, 15)
    themed = centers[torch.multinomial(shares, count, replacement=True, generator=own)]
    return themed + 0.4 * torch.randn(count, 12, generator=own)


def orthogonal(rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(torch.randn(columns, rows, generator=torch.Generator().manual_seed(3)))[0].T


QUICK = {"components": 12, "axes": 12, "matchings": 2}


@pytest.mark.parametrize("dimension", [12, 20])
def test_a_planted_rotation_is_found(dimension: int) -> None:
    turn = orthogonal(12, dimension)
    hidden, own = themes(1200, 1), themes(1200, 2)
    found = Translator(**QUICK).fit(hidden @ turn + 5, own)
    moved, center = found.map(hidden @ turn + 5).float(), own.mean(0)
    cosines = torch.nn.functional.cosine_similarity(moved - center, hidden - center)
    assert float(cosines.mean()) > 0.97
    assert torch.allclose((moved - center).square().sum(1).mean(), (own - center).square().sum(1).mean(), rtol=1e-3)
    assert found.about["victim"] == found.about["own"] == 1200


def test_the_map_is_found_in_all_dimensions_from_guesses_in_few() -> None:
    turn, hidden, own = orthogonal(12, 12), themes(1200, 1), themes(1200, 2)
    found = Translator(components=5, axes=5, matchings=2).fit(hidden @ turn, own)
    moved, center = found.map(hidden @ turn).float(), own.mean(0)
    assert float(torch.nn.functional.cosine_similarity(moved - center, hidden - center).mean()) > 0.97
    assert found.about["score"] > found.about["worst_guess"]


def test_seeds_agree_and_one_seed_repeats() -> None:
    hidden, own = themes(1000, 1) @ orthogonal(12, 12), themes(1000, 2)
    first, again, other = (Translator(**QUICK, seed=seed).fit(hidden, own).map(hidden) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert float(torch.nn.functional.cosine_similarity(first, other).mean()) > 0.97


def test_messages() -> None:
    with pytest.raises(ValueError, match="11 vectors do not have 12 axes"):
        Translator(**QUICK).fit(themes(11, 1), themes(50, 2))
    with pytest.raises(ValueError, match="the vectors are all equal"):
        Translator(**QUICK).fit(torch.ones(50, 12), themes(50, 2))
