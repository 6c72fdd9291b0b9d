"""Each defense against hand-computed values: what it changes, what it keeps, what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, gamma, kstest
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import Role
from unembed.defenses.chain import Chain
from unembed.defenses.language_agnostic import LanguageAgnostic
from unembed.defenses.laplace import Laplace
from unembed.defenses.masking import Masking
from unembed.defenses.noise import Noise
from unembed.defenses.pca import PrincipalComponents
from unembed.defenses.product_quantization import ProductQuantization
from unembed.defenses.purmech import PurMech
from unembed.defenses.rotation import Rotation
from unembed.defenses.rounding import Rounding
from unembed.defenses.scalar_quantization import ScalarQuantization
from unembed.defenses.truncation import Truncation


def rows(count: int, dimension: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32))


def texts(count: int, language: str | None = None) -> list[Example]:
    return [Example(i, f"text {i}", language=language) for i in range(count)]


# -- noise -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.sampled_from(["train", "test", "query"]))
def test_noise_does_not_depend_on_the_batches(sizes: list[int], role: Role) -> None:
    count = sum(sizes)
    vectors, examples = rows(count, 5), texts(count)
    noise, epoch = Noise(level=0.5, seed=3), 2 if role == "train" else None
    whole = noise(vectors, examples, role, epoch)
    order = np.random.default_rng(count).permutation(count)
    parts, begin = torch.empty_like(whole), 0
    for size in sizes:
        chosen = order[begin : begin + size].tolist()
        parts[chosen] = Noise(level=0.5, seed=3)(vectors[chosen], [examples[i] for i in chosen], role, epoch)
        begin += size
    assert torch.equal(parts, whole)


def test_noise_is_normal_and_of_its_level() -> None:
    sampled = Noise(level=0.25)(torch.zeros(2000, 50), texts(2000), "test") / 0.25
    assert abs(float(sampled.mean())) < 5 / math.sqrt(sampled.numel())
    assert abs(float(sampled.var()) - 1) < 5 * math.sqrt(2 / sampled.numel())
    assert abs(float((sampled.abs() < 1).float().mean()) - math.erf(1 / math.sqrt(2))) < 0.01
    correlations = torch.corrcoef(sampled.T) - torch.eye(50)
    assert float(correlations.abs().max()) < 5 / math.sqrt(2000)
    vectors = torch.tensor([[3.0, 4.0], [0.6, 0.8]])
    same = [Example(0, "a"), Example(0, "a")]
    absolute = Noise(level=0.1)(vectors, same, "test") - vectors
    relative = Noise(level=0.1, relative=True)(vectors, same, "test") - vectors
    torch.testing.assert_close(relative[0], 5 * absolute[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(relative[1], absolute[1], atol=1e-6, rtol=0)
    assert torch.equal(Noise(level=0.0)(rows(3, 4), texts(3), "test"), rows(3, 4))


def test_no_two_uses_share_noise() -> None:
    zero, noise = torch.zeros(1, 16), Noise(level=1.0)
    example = Example(4, "one text")
    uses: list[tuple[Example, Role, int | None, int]] = [
        *((example, role, None, 0) for role in ("train", "valid", "test", "query", "document")),
        *((example, "train", epoch, 0) for epoch in (0, 1, 10)),
        (Example(5, "one text"), "test", None, 0),
        (Example(4, "another data set's text"), "test", None, 0),
        (example, "test", None, 1),
    ]
    sampled = [tuple(Noise(level=1.0, seed=seed)(zero, [e], role, epoch)[0].tolist()) for e, role, epoch, seed in uses]
    assert len(set(sampled)) == len(uses)
    assert torch.equal(noise(zero, [example], "test"), noise(zero, [example], "test"))


# -- masking ---------------------------------------------------------------------------------------------------------


def test_masking_replaces_the_first_dimensions() -> None:
    vectors = torch.tensor([[0.5, -0.5, 0.25, 0.1], [0.3, 0.2, 0.1, 0.0]])
    one = Masking()(vectors, texts(2), "test")
    assert one.tolist() == torch.tensor([[1.0, -0.5, 0.25, 0.1], [1.0, 0.2, 0.1, 0.0]]).tolist()
    examples = [Example(0, "hello", language="en"), Example(1, "hallo", language="de")]
    two = Masking(dimensions=2, scale=0.5, languages={"en": 1, "de": 3})(vectors, examples, "test")
    assert two.tolist() == torch.tensor([[0.5, 0.5, 0.25, 0.1], [1.5, 1.5, 0.1, 0.0]]).tolist()
    assert vectors[0, 0] == 0.5  # what came in is as it was
    masking = Masking(languages={"en": 1, "de": 2})
    with pytest.raises(InputError, match=r"query text 0 is in 'dea', which has no identifier; did you mean de\?"):
        masking(rows(1, 4), texts(1, "dea"), "query")
    with pytest.raises(InputError, match=r"test text 0 has no language.*datamodule\.language_field"):
        masking(rows(1, 4), texts(1), "test")


# -- truncation and rounding -----------------------------------------------------------------------------------------


def test_truncation_keeps_the_length_and_rounding_gives_the_nearest_multiple() -> None:
    vectors = torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 2.0]])
    assert Truncation(dimensions=2).output_dimension(3) == 2
    kept = Truncation(dimensions=2)(vectors, texts(2), "test")
    torch.testing.assert_close(kept, torch.tensor([[7.8, 10.4], [0.0, 0.0]]))
    assert Truncation(dimensions=2, renormalize=False)(vectors, texts(2), "test").tolist() == [[3.0, 4.0], [0.0, 0.0]]
    vectors = torch.tensor([[0.11, -0.13, 0.37], [0.0, 0.26, -0.24]])
    rounded = Rounding(step=0.25)(vectors, texts(2), "test")
    assert rounded.tolist() == [[0.0, -0.25, 0.25], [0.0, 0.25, -0.25]]


@pytest.mark.parametrize("defense", [Truncation(dimensions=9), Masking(dimensions=9)])
def test_more_dimensions_than_there_are(defense: Any) -> None:
    with pytest.raises(InputError, match=r"dimensions=9: the vectors have only 8; take at most 8"):
        defense.output_dimension(8)
    assert defense.output_dimension(9) == 9


def test_principal_components_are_the_coordinates_that_have_most_of_the_length() -> None:
    train = torch.tensor([[3.0, 3.0, 0.5], [-1.0, -1.0, 0.5], [1.0, -1.0, 0.5], [-1.0, 1.0, 0.5]])
    defense = PrincipalComponents(dimensions=1, renormalize=False)
    defense.fit(train, texts(4))
    expected = torch.tensor([[3.0], [1.0], [0.0], [0.0]]) * 2**0.5  # about along (1, 1, 0)
    torch.testing.assert_close(defense(train, texts(4), "test").abs(), expected, atol=0.2, rtol=0)
    again = PrincipalComponents(dimensions=3)
    again.restore(defense.state())
    kept = again(train, texts(4), "test")
    torch.testing.assert_close(kept @ kept.T, train @ train.T, atol=1e-5, rtol=1e-5)  # a search finds the same
    with pytest.raises(InputError, match="not principal axes"):
        again.restore({"axes": torch.zeros(3)})
    with pytest.raises(InputError, match=r"defense=pca, dimensions=9: the vectors have only 8"):
        PrincipalComponents(dimensions=9).output_dimension(8)


# -- language_agnostic -----------------------------------------------------------------------------------------------


def test_the_mean_of_a_language_is_subtracted() -> None:
    train = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 8.0]])
    examples = [Example(0, "a", language="en"), Example(1, "b", language="en"), Example(2, "c", language="de")]
    defense = LanguageAgnostic()
    defense.fit(train, examples)
    assert {name: mean.tolist() for name, mean in defense.state().items()} == {"de": [0.0, 8.0], "en": [2.0, 1.0]}
    seen = defense(torch.tensor([[2.0, 2.0], [2.0, 2.0]]), [examples[2], examples[0]], "test")
    assert seen.tolist() == [[2.0, -6.0], [0.0, 1.0]]
    with pytest.raises(InputError, match=r"test text 0 is in 'fr', and no training text is.*valid: de, en"):
        defense(train[:1], texts(1, "fr"), "test")
    with pytest.raises(InputError, match=r"document text 0 has no language.*defense\.language"):
        defense(train[:1], texts(1), "document")
    with pytest.raises(InputError, match="a text that the attack wrote has no language"):
        defense(train[:1], texts(1), "hypothesis")
    with pytest.raises(InputError, match="train text 0 has no language"):
        LanguageAgnostic().fit(rows(3, 2), texts(3))
    defense = LanguageAgnostic(language="en")
    defense.fit(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), texts(2, "fr"))
    assert defense(torch.tensor([[2.0, 2.0]]), texts(1), "test").tolist() == [[0.0, 1.0]]


def test_the_mean_of_each_vectors_coordinates_is_subtracted_as_in_the_authors_code() -> None:
    defense = LanguageAgnostic(mean="coordinates")
    train = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    defense.fit(train, texts(2))
    assert defense.state() == {}, "nothing is estimated"
    vectors = torch.tensor([[1.0, 2.0, 6.0], [-1.0, 0.0, 4.0]])
    # means 3 and 1, of the vectors alone: no language is asked for, and no training text is needed
    for role in ("test", "query", "document", "hypothesis"):
        assert defense(vectors, texts(2), role).tolist() == [[-2.0, -1.0, 3.0], [-2.0, -1.0, 3.0]]
    assert vectors.tolist() == [[1.0, 2.0, 6.0], [-1.0, 0.0, 4.0]]
    defense.restore({})
    assert defense(vectors[:1], texts(1, "fr"), "test").tolist() == [[-2.0, -1.0, 3.0]]


# -- rotation --------------------------------------------------------------------------------------------------------

KEY = "0123456789abcdef-this-is-secret"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", KEY)
    return KEY


def test_a_rotation_keeps_lengths_and_angles_and_is_uniform(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = rows(40, 12)
    turned = Rotation()(vectors, texts(40), "document")
    torch.testing.assert_close(turned @ turned.T, vectors @ vectors.T, atol=1e-5, rtol=0)
    assert float(torch.cosine_similarity(turned, vectors).abs().mean()) < 0.5
    matrix = Rotation()(torch.eye(12), texts(12), "test").double()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(12, dtype=torch.float64), atol=1e-6, rtol=0)
    assert torch.equal(Rotation()(vectors[:3], texts(3), "query"), Rotation()(vectors[:3], texts(3), "train"))
    # The square of each entry of a uniform orthogonal matrix is Beta(1/2, (d - 1) / 2), and its sign is either.
    blocks = []
    for number in range(4):
        monkeypatch.setenv("UNEMBED_ROTATION_KEY", f"{KEY} {number}")
        blocks.append(Rotation()(torch.eye(120), texts(120), "test")[:20, :20].double().numpy())
    entries = np.stack(blocks)  # of so small a part, nearly independent
    assert kstest((entries**2).ravel(), beta(0.5, 59.5).cdf).pvalue > 1e-3
    assert abs((entries > 0).mean() - 0.5) < 5 * 0.5 / math.sqrt(entries.size)
    diagonals = np.diagonal(entries, axis1=1, axis2=2)  # a QR decomposition alone would make these of one sign
    assert abs((diagonals > 0).mean() - 0.5) < 5 * 0.5 / math.sqrt(diagonals.size)


def test_the_key_of_a_rotation(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.key"
    path.write_text(f"{KEY}\n", encoding="utf-8")
    vectors = rows(2, 6)
    of_file = Rotation(key_file=str(path))
    assert torch.equal(of_file(vectors, texts(2), "test"), Rotation()(vectors, texts(2), "test"))
    kept = Rotation().state()
    assert KEY.encode() not in bytes(kept["key_check"].tolist())
    of_file.restore(kept)
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", KEY + "!")
    other = Rotation()
    assert not torch.equal(other(vectors, texts(2), "test"), of_file(vectors, texts(2), "test"))
    with pytest.raises(InputError, match="the key is not the one that this run was made with"):
        other.restore(kept)
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", "short")
    with pytest.raises(InputError, match="a key of 5 bytes can be guessed; give at least 16"):
        Rotation()
    monkeypatch.delenv("UNEMBED_ROTATION_KEY")
    with pytest.raises(InputError, match=r"defense\.key_env=UNEMBED_ROTATION_KEY: .* is not set; .*key_file"):
        Rotation()
    with pytest.raises(InputError, match=r"defense\.key_file=.*absent: .* cannot be read: No such file"):
        Rotation(key_file=str(tmp_path / "absent"))
    with pytest.raises(InputError, match="/dev/zero: a pipe or a device, not a file"):
        Rotation(key_file="/dev/zero")


# -- quantisation ----------------------------------------------------------------------------------------------------


def test_scalar_quantisation() -> None:
    defense = ScalarQuantization(bits=2)
    defense.fit(torch.tensor([[0.0, 5.0, -3.0], [3.0, 5.0, 3.0], [1.0, 5.0, 0.0]]), texts(3))
    seen = defense(torch.tensor([[0.4, 5.0, -0.9], [2.6, 7.0, 1.1], [9.0, 5.0, -9.0]]), texts(3), "test")
    assert seen.tolist() == [[0.0, 5.0, -1.0], [3.0, 5.0, 1.0], [3.0, 5.0, -3.0]]
    vectors, defense = rows(200, 7), ScalarQuantization()
    defense.fit(vectors, texts(200))
    seen = defense(vectors, texts(200), "test")
    step = (vectors.max(dim=0).values - vectors.min(dim=0).values) / 255
    assert bool(((seen - vectors).abs() <= step / 2 + 1e-6).all())
    assert all(len(set(column)) <= 256 for column in seen.T.tolist())
    defense = ScalarQuantization(quantile=0.9)
    defense.fit(torch.arange(101.0)[:, None], texts(101))
    assert (defense.low.tolist(), defense.high.tolist()) == ([5.0], [95.0])


def test_product_quantisation() -> None:
    train, vectors = rows(300, 6), rows(25, 6, seed=1)
    defense = ProductQuantization(subvectors=3, centroids=8, iterations=4)
    defense.fit(train, texts(300))
    books = defense.state()["codebooks"]
    assert books.shape == (3, 8, 2)
    seen = defense(vectors, texts(25), "test")
    for row in range(25):  # brute force
        for part in range(3):
            own = vectors[row, 2 * part : 2 * part + 2]
            nearest = min(range(8), key=lambda n: float((books[part, n] - own).square().sum()))
            assert torch.equal(seen[row, 2 * part : 2 * part + 2], books[part, nearest])
    with pytest.raises(InputError, match=r"centroids=256: there are only 10 training vectors .* at most 10"):
        ProductQuantization(subvectors=2).fit(rows(10, 4), texts(10))
    with pytest.raises(InputError, match=r"subvectors=5: vectors of dimension 12 cannot be cut.*take 4"):
        ProductQuantization(subvectors=5).output_dimension(12)
    same = ProductQuantization(subvectors=1, centroids=4)
    same.fit(torch.ones(9, 2), texts(9))  # fewer different vectors than centroids
    assert same(torch.tensor([[1.0, 1.0]]), texts(1), "test").tolist() == [[1.0, 1.0]]


def test_codebooks_are_those_of_k_means() -> None:
    """Four clouds far apart: each centroid is the mean of its cloud, whatever k-means began with; and Lloyd's rule."""
    corners = torch.tensor([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0], [50.0, 50.0]])
    train = (corners[:, None] + rows(30, 2).expand(4, 30, 2)).reshape(120, 2)
    found = []
    for seed in range(6):
        defense = ProductQuantization(subvectors=1, centroids=4, iterations=50, seed=seed)
        defense.fit(train, texts(120))
        centroids = defense.codebooks[0]
        owner = torch.cdist(train, centroids).argmin(dim=1)
        torch.testing.assert_close(centroids, torch.stack([train[owner == n].mean(dim=0) for n in range(4)]))
        found.append(sorted(centroids.round().tolist()))
    means = sorted((corners + rows(30, 2).mean(dim=0)).round().tolist())
    assert means in found


# -- local differential privacy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 20.0])
def test_purmech_samples_its_angles_from_their_density(epsilon: float) -> None:
    """In two and three dimensions the distribution of the angle has a closed form."""

    def on_circle(t: float) -> float:
        return 1 - math.exp(-epsilon * t)

    def on_sphere(t: float) -> float:
        return 1 - math.exp(-epsilon * t) * (epsilon * math.sin(t) + math.cos(t))

    for dimension, integral in ((2, on_circle), (3, on_sphere)):
        vectors = torch.nn.functional.normalize(rows(1, dimension), dim=1).expand(1500, -1).double()
        seen = PurMech(epsilon=epsilon)(vectors, texts(1500), "test")
        torch.testing.assert_close(seen.norm(dim=1), torch.ones(1500, dtype=torch.float64))
        angles = (seen * vectors).sum(dim=1).clamp(-1, 1).arccos().numpy()
        whole = integral(math.pi)
        assert kstest(angles, lambda t, f=integral, w=whole: np.array([f(one) / w for one in t])).pvalue > 1e-3


def test_purmech_keeps_its_promise() -> None:
    """No part of the circle is more than exp(epsilon * angle) times likelier for one vector than for another."""
    epsilon, apart, count = 1.5, 1.0, 6000
    counts = []
    for seed, angle in enumerate((0.0, apart)):
        vectors = torch.tensor([[math.cos(angle), math.sin(angle)]]).expand(count, -1)
        seen = PurMech(epsilon=epsilon, seed=seed)(vectors, texts(count), "test")
        counts.append(np.histogram(torch.atan2(seen[:, 1], seen[:, 0]).numpy(), bins=12, range=(-math.pi, math.pi))[0])
    ratios = np.abs(np.log(counts[0] / counts[1]))
    slack = 5 * np.sqrt(1 / counts[0] + 1 / counts[1])
    assert (ratios <= epsilon * apart + slack).all()
    assert ratios.max() > 0.8 * epsilon * apart  # and the budget is used


def test_purmech_in_many_dimensions_and_laplace_noise() -> None:
    vectors = torch.nn.functional.normalize(rows(200, 384), dim=1)
    seen = PurMech(epsilon=1000.0)(vectors, texts(200), "test")
    angles = torch.cosine_similarity(seen, vectors).arccos()
    assert abs(float(angles.mean()) - math.atan(382 / 1000)) < 0.01
    noise = Laplace(epsilon=4.0)(torch.zeros(1500, 5, dtype=torch.float64), texts(1500), "test")
    assert kstest(noise.norm(dim=1).numpy(), gamma(5, scale=1 / 4).cdf).pvalue > 1e-3
    directions = torch.nn.functional.normalize(noise, dim=1)
    torch.testing.assert_close(directions.T @ directions / 1500, torch.eye(5).double() / 5, atol=0.03, rtol=0)


# -- several ---------------------------------------------------------------------------------------------------------


def test_a_chain_keeps_the_order_and_fits_each_to_what_it_gets() -> None:
    train, examples = torch.tensor([[1.0, 0.0, 2.0], [3.0, 4.0, 2.0]]), texts(2)
    chain = Chain(truncation=Truncation(dimensions=2, renormalize=False), mean=LanguageAgnostic(language="en"))
    assert chain.output_dimension(3) == 2
    chain.fit(train, examples)
    assert {name: value.tolist() for name, value in chain.state().items()} == {"mean/en": [2.0, 2.0]}
    assert chain(train, examples, "test").tolist() == [[-1.0, -2.0], [1.0, 2.0]]
    again = Chain(truncation=Truncation(dimensions=2, renormalize=False), mean=LanguageAgnostic(language="en"))
    again.restore(chain.state())
    assert torch.equal(again(train, examples, "test"), chain(train, examples, "test"))
    back = Chain(masking=Masking(), rounding=Rounding(step=3.0)), Chain(rounding=Rounding(step=3.0), masking=Masking())
    assert [one(train, examples, "test")[0].tolist() for one in back] == [[0.0, 0.0, 3.0], [1.0, 0.0, 3.0]]
    with pytest.raises(ValueError, match="no defenses"):
        Chain()
