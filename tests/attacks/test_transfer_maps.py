"""Maps between spaces: leave-one-out against brute force, planted maps, the paper's map by hand, and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from unembed.attacks.transfer.algen import feedback
from unembed.attacks.transfer.aligners import (
    AffineMap,
    Known,
    LeaveOneOut,
    PseudoInverse,
    RidgePath,
    pseudo_inverse,
    read_maps,
    write_maps,
)
from unembed.attacks.transfer.translation import Translator


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def known(pairs: int, dimension: int = 30, own: int = 12, noise: float = 0.0, store: int = 300) -> tuple[Known, Tensor]:
    """Vectors of a planted map with different means, and the own vectors of the store."""
    hidden = normal(pairs + store + 300, own)
    x = hidden @ normal(own, dimension, seed=1) + 2 + noise * normal(len(hidden), dimension, seed=2)
    y = hidden + 5
    parts = [pairs, store, 300]
    (victim, unread, _), (their, wanted, public) = x.split(parts), y.split(parts)
    return Known(victim, their, unread, public), wanted


def explained(found: Tensor, wanted: Tensor) -> float:
    return 1 - float((found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum())


@pytest.mark.parametrize(("rows", "columns"), [(9, 4), (5, 8), (6, 6), (1, 3)])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 50.0])
def test_leave_one_out_agrees_with_leaving_out(rows: int, columns: int, penalty: float) -> None:
    x, y = normal(rows, columns), normal(rows, 3, seed=1)
    path = RidgePath(x, y)
    errors = []
    for row in range(rows):
        rest = [other for other in range(rows) if other != row]
        gram = x[rest].T @ x[rest] + penalty * torch.eye(columns, dtype=x.dtype)
        errors.append(y[row] - x[row] @ torch.linalg.solve(gram, x[rest].T @ y[rest]))
    torch.testing.assert_close(path.residuals(penalty), torch.stack(errors))
    torch.testing.assert_close(path.residuals(penalty, 1), torch.stack(errors[:1]))
    gram = x.T @ x + penalty * torch.eye(columns, dtype=x.dtype)
    torch.testing.assert_close(path.weight(penalty), torch.linalg.solve(gram, x.T @ y))


def test_maps_by_hand() -> None:
    path = RidgePath(torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([[1.0], [4.0]]).double())
    # penalty 1: without the first row 2 * 4 / (4 + 1) = 1.6 a unit, without the second 1 * 1 / (1 + 1) = 0.5
    assert path.residuals(1.0).flatten().tolist() == pytest.approx([1 - 1.6, 4 - 2 * 0.5])
    assert path.weight(1.0).item() == pytest.approx((1 * 1 + 2 * 4) / (5 + 1))
    x, y = normal(50, 8), normal(50, 3, seed=1)
    torch.testing.assert_close(pseudo_inverse(x, y)(x), (x @ torch.linalg.lstsq(x, y).solution))
    few = pseudo_inverse(x[:5], y[:5])  # fewer pairs than dimensions: the pairs themselves are met
    torch.testing.assert_close(few(x[:5]), y[:5])


@pytest.mark.parametrize("pairs", [60, 300])
def test_a_planted_map_is_found(pairs: int) -> None:
    given, wanted = known(pairs)
    assert explained(LeaveOneOut().fit(given).map(given.store), wanted) > (0.99 if pairs == 300 else 0.95)


def test_no_dip_where_pairs_are_as_many_as_dimensions_and_held_out_texts_are_mapped_as_others() -> None:
    found = {}
    for pairs in (15, 30, 120):
        given, wanted = known(pairs, noise=0.5)
        ours, theirs = (a.fit(given).map(given.store) for a in (LeaveOneOut(), PseudoInverse()))
        found[pairs] = explained(ours, wanted), explained(theirs, wanted)
    assert found[15][0] < found[30][0] < found[120][0]
    assert found[30][1] < 0 < found[30][0]  # the unregularised one is worse than a constant
    given, wanted = known(60, noise=1.0)
    found = LeaveOneOut().fit(given)
    fitted, held_out = (explained(mapped, given.own) for mapped in (found.map(given.victim), found.held_out))
    others = explained(found.map(given.store), wanted)
    assert held_out == pytest.approx(others, abs=0.01)
    assert fitted > others + 0.05  # too good


def test_scaled_to_the_variance_of_public_vectors_and_read_from_a_file(tmp_path: Path) -> None:
    given, _ = known(10, noise=3.0)
    found = LeaveOneOut().fit(given)
    spread = [float((v - v.mean(0)).square().sum(1).mean()) for v in (found.map(given.store), found.plain(given.store))]
    public = float((given.public - given.public.mean(0)).square().sum(1).mean())
    assert spread[0] == pytest.approx(public)
    assert spread[1] < 0.7 * public
    torch.testing.assert_close(found.map(given.store).mean(0), found.plain(given.store).mean(0))
    assert found.about["scale"] == pytest.approx((public / spread[1]) ** 0.5)
    given, _ = known(20)
    maps = {"start": LeaveOneOut().fit(given).map, "back": PseudoInverse().fit(given).map}
    write_maps(tmp_path / "maps", maps)
    again = read_maps(tmp_path / "maps")
    for name, one in maps.items():
        assert torch.equal(again[name](given.store), one(given.store))
    assert again["start"].dimensions == (30, 12)


def test_one_pair_is_enough_and_the_batch_does_not_matter() -> None:
    given, wanted = known(1)
    aligned = LeaveOneOut().fit(given)
    found = aligned.plain(given.store)
    assert found.isfinite().all()
    assert aligned.held_out.isfinite().all()
    assert explained(found, wanted) > -0.5
    given, _ = known(40)
    found = LeaveOneOut().fit(given).map
    one_by_one = torch.cat([found(row[None]) for row in given.store])
    torch.testing.assert_close(one_by_one, found(given.store), rtol=0, atol=1e-9)


def test_feedback_keeps_the_closest_text() -> None:
    """Own space: the text's own number; the victim's: twice that."""
    same, twice = (AffineMap(torch.tensor([[f]]).double(), torch.zeros(1).double()) for f in (0.5, 2.0))
    asked: list[str] = []

    def embed(texts: list[str]) -> Tensor:
        asked.extend(texts)
        return torch.tensor([[float(text)] for text in texts])

    def decode(vectors: Tensor) -> list[list[str]]:  # a decoder that writes one too much, and that rounded
        return [[str(round(float(v)) + 1.0), str(round(float(v)) + 3.0)] for v in vectors]

    targets = torch.tensor([[10.0], [20.0]])
    texts = feedback(targets, torch.tensor([[5.0], [10.0]]), same, twice, 1, decode, embed)
    assert [one[0] for one in texts] == ["6.0", "11.0"]
    assert len(asked) == len(set(asked))


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
    hidden, own = themes(600, 1), themes(600, 2)
    found = Translator(**QUICK).fit(hidden @ turn + 5, own)
    moved, center = found.map(hidden @ turn + 5).float(), own.mean(0)
    cosines = torch.nn.functional.cosine_similarity(moved - center, hidden - center)
    assert float(cosines.mean()) > 0.97
    assert torch.allclose((moved - center).square().sum(1).mean(), (own - center).square().sum(1).mean(), rtol=1e-3)
    assert found.about["victim"] == found.about["own"] == 600


def test_the_map_is_found_in_all_dimensions_from_guesses_in_few() -> None:
    turn, hidden, own = orthogonal(12, 12), themes(600, 1), themes(600, 2)
    found = Translator(components=5, axes=5, matchings=2).fit(hidden @ turn, own)
    moved, center = found.map(hidden @ turn).float(), own.mean(0)
    assert float(torch.nn.functional.cosine_similarity(moved - center, hidden - center).mean()) > 0.97
    assert found.about["score"] > found.about["worst_guess"]


def test_seeds_agree_and_too_few_vectors_are_refused() -> None:
    hidden, own = themes(500, 1) @ orthogonal(12, 12), themes(500, 2)
    first, again, other = (Translator(**QUICK, seed=seed).fit(hidden, own).map(hidden) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert float(torch.nn.functional.cosine_similarity(first, other).mean()) > 0.97
    with pytest.raises(ValueError, match="11 vectors do not have 12 axes"):
        Translator(**QUICK).fit(themes(11, 1), themes(50, 2))
    with pytest.raises(ValueError, match="the vectors are all equal"):
        Translator(**QUICK).fit(torch.ones(50, 12), themes(50, 2))
