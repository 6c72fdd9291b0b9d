"""Each defense against hand-computed values: what it changes, what it keeps, what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from defenses.base import Role
from defenses.masking import Masking
from defenses.noise import Noise
from defenses.rounding import Rounding
from defenses.truncation import Truncation
from errors import InputError
from examples import Example


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
    drawn = Noise(level=0.25)(torch.zeros(2000, 50), texts(2000), "test") / 0.25
    assert abs(float(drawn.mean())) < 5 / math.sqrt(drawn.numel())
    assert abs(float(drawn.var()) - 1) < 5 * math.sqrt(2 / drawn.numel())
    assert abs(float((drawn.abs() < 1).float().mean()) - math.erf(1 / math.sqrt(2))) < 0.01
    correlations = torch.corrcoef(drawn.T) - torch.eye(50)
    assert float(correlations.abs().max()) < 5 / math.sqrt(2000)


def test_relative_noise_grows_with_the_vector() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.6, 0.8]])
    same = [Example(0, "a"), Example(0, "a")]
    absolute = Noise(level=0.1)(vectors, same, "test") - vectors
    relative = Noise(level=0.1, relative=True)(vectors, same, "test") - vectors
    torch.testing.assert_close(relative[0], 5 * absolute[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(relative[1], absolute[1], atol=1e-6, rtol=0)


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
    drawn = [tuple(Noise(level=1.0, seed=seed)(zero, [e], role, epoch)[0].tolist()) for e, role, epoch, seed in uses]
    assert len(set(drawn)) == len(uses)
    assert torch.equal(noise(zero, [example], "test"), noise(zero, [example], "test"))


def test_no_noise_at_level_zero() -> None:
    assert torch.equal(Noise(level=0.0)(rows(3, 4), texts(3), "test"), rows(3, 4))


# -- masking ---------------------------------------------------------------------------------------------------------


def test_masking_replaces_the_first_dimensions() -> None:
    vectors = torch.tensor([[0.5, -0.5, 0.25, 0.1], [0.3, 0.2, 0.1, 0.0]])
    one = Masking()(vectors, texts(2), "test")
    assert one.tolist() == torch.tensor([[1.0, -0.5, 0.25, 0.1], [1.0, 0.2, 0.1, 0.0]]).tolist()
    examples = [Example(0, "hello", language="en"), Example(1, "hallo", language="de")]
    two = Masking(dimensions=2, scale=0.5, languages={"en": 1, "de": 3})(vectors, examples, "test")
    assert two.tolist() == torch.tensor([[0.5, 0.5, 0.25, 0.1], [1.5, 1.5, 0.1, 0.0]]).tolist()
    assert vectors[0, 0] == 0.5  # what came in is as it was


def test_languages_that_have_no_identifier() -> None:
    masking = Masking(languages={"en": 1, "de": 2})
    with pytest.raises(InputError, match=r"query text 0 is in 'dea', which has no identifier; did you mean de\?"):
        masking(rows(1, 4), texts(1, "dea"), "query")
    with pytest.raises(InputError, match=r"test text 0 says no language.*datamodule\.language_field"):
        masking(rows(1, 4), texts(1), "test")


# -- truncation and rounding -----------------------------------------------------------------------------------------


def test_truncation_keeps_the_length() -> None:
    vectors = torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 2.0]])
    assert Truncation(dimensions=2).output_dimension(3) == 2
    kept = Truncation(dimensions=2)(vectors, texts(2), "test")
    torch.testing.assert_close(kept, torch.tensor([[7.8, 10.4], [0.0, 0.0]]))
    assert Truncation(dimensions=2, renormalize=False)(vectors, texts(2), "test").tolist() == [[3.0, 4.0], [0.0, 0.0]]


@pytest.mark.parametrize("defense", [Truncation(dimensions=9), Masking(dimensions=9)])
def test_more_dimensions_than_there_are(defense: Any) -> None:
    with pytest.raises(InputError, match=r"dimensions=9: the vectors have only 8; take at most 8"):
        defense.output_dimension(8)
    assert defense.output_dimension(9) == 9


def test_rounding_gives_the_nearest_multiple() -> None:
    vectors = torch.tensor([[0.11, -0.13, 0.37], [0.0, 0.26, -0.24]])
    rounded = Rounding(step=0.25)(vectors, texts(2), "test")
    assert rounded.tolist() == [[0.0, -0.25, 0.25], [0.0, 0.25, -0.25]]
