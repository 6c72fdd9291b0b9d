"""Defenses of states: each position as a vector of its own, permutations, and what sipit does about them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from unembed.attacks.lm_inversion.sipit import Sipit
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.core.errors import InputError
from unembed.core.examples import Example, written_ids
from unembed.defenses.base import Defense
from unembed.defenses.chain import Chain
from unembed.defenses.noise import Noise
from unembed.defenses.permutation import Permutation, secret_order
from unembed.defenses.scalar_quantization import ScalarQuantization
from unembed.defenses.states import of_states
from unembed.defenses.truncation import Truncation
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder

INPUTS = [(5, 17, 3, 40), (8,), (59, 21, 1, 2, 3, 4, 5, 6), (5, 17, 4), (33, 33, 33, 33, 33)]
EXAMPLES = [Example(place, f"text {place}", tokens=ids) for place, ids in enumerate(INPUTS)]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_PERMUTATION_KEY", "f" * 32)


@pytest.fixture(scope="module")
def model(language_model: Path) -> LanguageModelEmbedder:
    return LanguageModelEmbedder(str(language_model), observe="hidden_state", layer=2, max_tokens=8, device="cpu")


@pytest.fixture(scope="module")
def rows(model: LanguageModelEmbedder) -> Tensor:
    return model.embed([written_ids(ids) for ids in INPUTS])


def inverted(model: LanguageModelEmbedder, tmp_path: Path, rows: Tensor, **settings: object) -> list[Prediction]:
    attack = Sipit(**{"reader_texts": 16, "reader_steps": 20} | settings)  # type: ignore[arg-type]
    oracle = CachedEmbedder(model, tmp_path)
    attack.connect(Path("unused"), oracle)
    return attack.invert(Targets(rows, torch.arange(len(rows))), oracle)


def test_each_position_is_defended_as_a_vector(rows: Tensor) -> None:
    states, lengths = rows.view(5, 8, -1), [4, 1, 8, 3, 5]
    cut = of_states(Truncation(dimensions=5, renormalize=False), 8)
    assert cut.output_dimension(8 * 32) == 40
    assert torch.equal(cut(rows, EXAMPLES, "test").view(5, 8, 5), states[..., :5])
    noise = of_states(Noise(0.1), 8)
    added = (noise(rows, EXAMPLES, "test") - rows).view(5, 8, -1)
    assert [int(row.any(dim=1).sum()) for row in added] == lengths
    assert len(torch.cat([row[:n] for row, n in zip(added, lengths, strict=True)])[:, 0].unique()) == sum(lengths)
    assert torch.equal(noise(rows[2:3], EXAMPLES[2:3], "test")[0], noise(rows, EXAMPLES, "test")[2])


def test_an_estimated_defense_is_fitted_to_the_states_of_texts(rows: Tensor) -> None:
    inner = ScalarQuantization(bits=4)
    defense = of_states(Chain(first=inner, second=Noise(0.0)), 8)
    defense.fit(rows, EXAMPLES)
    present = rows.view(5, 8, -1).flatten(0, 1)
    present = present[present.any(dim=1)]
    assert torch.equal(inner.low, present.amin(dim=0))  # no zeros of positions that no text has
    again = of_states(Chain(first=ScalarQuantization(bits=4), second=Noise(0.0)), 8)
    again.restore(defense.state())  # type: ignore[attr-defined]
    assert torch.equal(again(rows, EXAMPLES, "test"), defense(rows, EXAMPLES, "test"))


def test_secret_orders_are_orders(key: None, rows: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(secret_order(b"k", 100).tolist()) == list(range(100))
    assert not torch.equal(secret_order(b"k", 100), secret_order(b"l", 100))
    assert not torch.equal(secret_order(b"k", 100, b"a"), secret_order(b"k", 100, b"b"))
    vectors = torch.randn(6, 20)
    defended = Permutation()(vectors, EXAMPLES, "test")
    assert torch.equal(defended.sort(dim=1).values, vectors.sort(dim=1).values)
    torch.testing.assert_close(defended @ defended.T, vectors @ vectors.T)
    by_text = of_states(Permutation(axis="positions"), 8)
    moved = by_text(rows, EXAMPLES, "test").view(5, 8, -1)
    assert not torch.equal(moved[2], rows.view(5, 8, -1)[2])
    assert torch.equal(moved[2].sort(dim=0).values, rows.view(5, 8, -1)[2].sort(dim=0).values)
    with pytest.raises(InputError, match=r"defense\.axis=positions: .* defense\.axis=dimensions"):
        Permutation(axis="positions").output_dimension(20)
    monkeypatch.delenv("UNEMBED_PERMUTATION_KEY")
    with pytest.raises(InputError, match="UNEMBED_PERMUTATION_KEY"):
        Permutation()


@pytest.mark.parametrize("unknown", ["positions", "dimensions"])
def test_permuted_states_are_read(
    key: None, model: LanguageModelEmbedder, rows: Tensor, tmp_path: Path, unknown: str
) -> None:
    """By an attack that knows that they are permuted; one that does not verifies nothing but single tokens."""
    defense: Defense = of_states(Permutation(axis=unknown), 8)  # type: ignore[arg-type]
    defended = defense(rows, EXAMPLES, "test")
    found = inverted(model, tmp_path, defended, unknown=unknown)
    assert [prediction.tokens for prediction in found] == INPUTS
    assert all(prediction.search.verified for prediction in found)
    naive = inverted(model, tmp_path, defended)
    assert sum(prediction.search.verified for prediction in naive) <= 2  # one token, or one five times
    assert all(p.tokens == ids for p, ids in zip(naive, INPUTS, strict=True) if p.search.verified)


def test_fewer_dimensions_and_noise_are_read(model: LanguageModelEmbedder, rows: Tensor, tmp_path: Path) -> None:
    cut = of_states(Truncation(dimensions=12, renormalize=False), 8)(rows, EXAMPLES, "test")
    assert [p.tokens for p in inverted(model, tmp_path, cut)] == INPUTS
    noisy = of_states(Noise(0.002), 8)(rows, EXAMPLES, "test")
    assert not any(p.search.verified for p in inverted(model, tmp_path, noisy))
    assert [p.tokens for p in inverted(model, tmp_path, noisy, noise=0.002)] == INPUTS
    with pytest.raises(InputError, match="the targets have shape"):
        inverted(model, tmp_path, torch.zeros(1, 8 * 32 + 1))
