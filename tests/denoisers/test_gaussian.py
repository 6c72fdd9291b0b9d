"""denoiser=gaussian: the posterior mean, the noise level from vectors alone, and what cannot be denoised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed import launch
from unembed.core.errors import InputError
from unembed.defenses.denoisers.gaussian import GaussianDenoiser, averages, noise_level
from unembed.launch.composing import survey


def sample(count: int, deviations: np.ndarray, level: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Clean vectors of length about 1 in rotated axes with these standard deviations, and the same with noise."""
    generator = np.random.default_rng(seed)
    axes = np.linalg.qr(generator.standard_normal((len(deviations), len(deviations))))[0]
    clean = 0.2 + (generator.standard_normal((count, len(deviations))) * deviations) @ axes.T
    noisy = clean + level * generator.standard_normal(clean.shape)
    return torch.from_numpy(clean), torch.from_numpy(noisy)


def decaying(dimension: int, empty: int) -> np.ndarray:
    return np.concatenate([0.5 / np.arange(1, dimension - empty + 1), np.zeros(empty)])


def test_the_posterior_mean_is_that_of_a_linear_gaussian_case() -> None:
    rows = [(2.0, 0.0), (-2.0, 0.0), (0.0, 1.0), (0.0, -1.0)]
    store = torch.tensor([row for row in rows for _ in range(4)])  # each of the four folds has each row once
    denoiser = GaussianDenoiser(level=(4 / 15) ** 0.5)
    denoiser.fit(store)
    found = denoiser(torch.tensor([[2.0, 1.0]]))[0]
    # Variances of the noisy vectors 32/15 and 8/15, of the noise 4/15: gains 1 - 4/32 = 7/8 and 1 - 4/8 = 1/2.
    assert found[0] / found[1] == pytest.approx(2 * 7 / 8 / 0.5)
    # Squared lengths: mean 2.5, of the clean ones 2.5 - 2 * 4/15 = 59/30; their variance 2.4, of which noise explains
    # 4 * (4/15)^2 + 4 * 4/15 * 59/30 = 2.382222, so 2.4 - 2.382222 of 2.4 is the vectors' own.
    expected = 59 / 30 + (0.017778 / 2.4) * (5 - 8 / 15 - 59 / 30)
    assert found.square().sum().item() == pytest.approx(expected, rel=1e-5)


def test_it_comes_near_to_the_posterior_mean_of_the_true_distribution() -> None:
    deviations, level = decaying(16, 3), 0.1
    clean, noisy = sample(6000, deviations, level)
    covariance = np.cov(clean.numpy().T)
    gain = covariance @ np.linalg.inv(covariance + level**2 * np.eye(16))
    mean = clean.numpy().mean(axis=0)
    best = mean + (noisy.numpy() - mean) @ gain.T
    denoiser = GaussianDenoiser()
    denoiser.fit(noisy)
    found = denoiser(noisy).numpy()
    cosines = (found * best).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(best, axis=1)
    assert cosines.mean() > 0.999
    before, after = (np.square(one - clean.numpy()).sum(1).mean() for one in (noisy.numpy(), found))
    assert after < 0.62 * before


@pytest.mark.parametrize("level", [0.003, 0.03, 0.3])
def test_the_level_shows_in_the_vectors_alone(level: float) -> None:
    for dimension, count in ((128, 1500), (64, 4000)):
        noisy = sample(count, decaying(dimension, 4), level)[1]
        assert noise_level(noisy) == pytest.approx(level, rel=0.12)


def test_of_vectors_that_were_normalised_after_the_noise_the_relative_level_is_reported() -> None:
    clean, _ = sample(4000, decaying(32, 4), 0)
    clean = torch.nn.functional.normalize(clean, dim=1)
    noisy = clean + 0.1 * torch.from_numpy(np.random.default_rng(1).standard_normal(clean.shape))
    denoiser = GaussianDenoiser()
    denoiser.fit(torch.nn.functional.normalize(noisy, dim=1))
    found = denoiser(torch.nn.functional.normalize(noisy, dim=1))
    assert torch.allclose(found.norm(dim=1), torch.ones(4000, dtype=torch.float64))
    relative = float(denoiser.report().split(" relative")[0].rsplit(" ", 1)[1])
    assert relative == pytest.approx(0.1, rel=0.08)
    assert (found * clean).sum(1).mean() > (noisy * clean).sum(1).div(noisy.norm(dim=1)).mean() + 0.02


def test_the_rest_of_a_batch_makes_no_difference_and_vectors_without_noise_hardly_change() -> None:
    noisy = sample(200, decaying(8, 1), 0.1)[1].float()
    denoiser = GaussianDenoiser()
    denoiser.fit(noisy)
    together = denoiser(noisy)
    assert together.dtype == torch.float32
    assert torch.allclose(together[7:9], denoiser(noisy[7:9]), rtol=1e-6, atol=1e-9)
    clean = sample(300, decaying(8, 2), 0)[0]
    denoiser = GaussianDenoiser()
    denoiser.fit(clean)
    assert torch.allclose(denoiser(clean), clean, atol=1e-4)


def test_repeated_releases_are_averaged() -> None:
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn((60, 24), generator=generator, dtype=torch.float64)
    clean = torch.nn.functional.pad(torch.nn.functional.normalize(directions, dim=1), (0, 8))
    noise = 0.05 * torch.randn((60 * 9, 32), generator=generator, dtype=torch.float64)
    store = clean.repeat(9, 1) + noise  # nine releases of each
    means, counts = averages(store, store, 0.05)
    assert counts.median() == 9
    errors = []
    for releases in (False, True):
        denoiser = GaussianDenoiser(releases=releases)
        denoiser.fit(store)
        errors.append((denoiser(store) - clean.repeat(9, 1)).square().sum().item())
    assert (means - clean.repeat(9, 1)).square().sum() < noise.square().sum() / 3
    assert errors[1] < errors[0] / 2
    alone = averages(torch.full((1, 32), 3.0, dtype=torch.float64), store, 0.05)
    assert (alone[0] == 3).all()
    assert alone[1].tolist() == [1]


def test_what_cannot_be_denoised() -> None:
    with pytest.raises(InputError, match=r"row 2 of the store, and 1 in all, holds NaN"):
        GaussianDenoiser().fit(torch.tensor([[1.0], [2.0], [float("nan")]]))
    with pytest.raises(InputError, match=r"has 1 vectors of dimension 4, and 8 are needed .*give denoiser.level"):
        GaussianDenoiser().fit(torch.ones(1, 4))
    with pytest.raises(InputError, match=r"has 1 vectors of dimension 4, and 8 are needed for a covariance"):
        GaussianDenoiser(level=0.1).fit(torch.ones(1, 4))
    with pytest.raises(InputError, match=r"denoiser.level=5: noise of this level alone would be longer"):
        GaussianDenoiser(level=5).fit(sample(50, decaying(8, 1), 0.1)[1])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["denoiser=gausian"], "denoiser=gausian: did you mean gaussian?"),
        (["denoiser=gaussian", "denoiser.level=0"], "denoiser.level=0: must be greater than 0.0"),
        (["denoiser=gaussian", "denoiser.levl=1"], "denoiser.levl: unknown key, did you mean level?"),
        (["denoiser=gaussian", "denoiser.rows=2"], "denoiser.rows=2: must be at least 8"),
    ],
)
def test_what_is_misspelt(lines: list[str], message: str) -> None:
    configs, errors = survey("train", lines)
    assert message in [*errors, *(error for config in configs for error in launch.check(config))]
