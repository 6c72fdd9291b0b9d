"""Which embedder made vectors: real vectors, rotated, scaled, cut and foreign ones; densities against torch's own."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from unembed.commands import identify as command
from unembed.core.errors import InputError
from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.embedders.minilm import MiniLM
from unembed.metrics import identify as module
from unembed.metrics.identify import KnownSpace, Name, identify, invariants, known_spaces, write_spaces

TEXTS = [
    "Could you send me the report by Friday?", "The patient was given 20 mg of prednisone.", "I have two cats.",
    "Turn off the lights in the kitchen.", "What is the capital of Mongolia?", "The court rejected the appeal.",
    "Add the onions and stir for five minutes.", "She plays the cello in a small orchestra.",
    "Our quarterly revenue grew by nine percent.", "The train to Leeds was late again.",
]  # fmt: skip


@pytest.fixture(scope="module")
def vectors() -> Tensor:
    """Of 200 sentences of the built-in corpus and ten others."""
    corpus = SyntheticCorpus(sentences=220, valid=10, test=10, seed=1).load()["train"]
    return MiniLM().embed([*TEXTS, *(one.text for one in corpus)])


def rotation(dimension: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dimension, dimension, generator=torch.Generator().manual_seed(0))).Q


def test_single_vectors_of_the_bundled_embedder_are_named(vectors: Tensor) -> None:
    found = [identify(vector[None]) for vector in vectors[:10]]
    assert sum(one.space == Name("minilm", "all-MiniLM-L6-v2", "mean pooling") for one in found) >= 9
    assert all(one.length == pytest.approx(1, abs=1e-5) for one in found)


def test_many_vectors_of_it_are_named_with_their_length(vectors: Tensor) -> None:
    whole = identify(3 * vectors)
    assert str(whole.space) == "all-MiniLM-L6-v2, mean pooling (embedder=minilm)"
    assert (whole.count, whole.dimension, whole.rotated) == (210, 384, False)
    assert whole.length == pytest.approx(3)
    assert whole.share > 0.9
    assert identify(vectors * torch.linspace(1, 2, 210)[:, None]).length is None


def test_a_cut_vector_is_one_of_the_first_dimensions(vectors: Tensor) -> None:
    found = identify(vectors[:, :128]).space
    assert found is not None
    assert found.title == "all-MiniLM-L6-v2"
    assert found.details == "mean pooling, the first 128 of 384 dimensions"
    assert found.overrides is None


def test_a_secret_rotation_leaves_the_angles(vectors: Tensor) -> None:
    rotated = vectors @ rotation(384)
    found = identify(rotated)
    assert found.rotated
    assert found.space is not None
    assert found.space.title == "all-MiniLM-L6-v2"
    assert "rotated in secret" in str(found)
    few = identify(rotated[:50])
    assert few.space is None
    assert "could be told from 100 vectors on" in str(few)
    torch.testing.assert_close(invariants(rotated), invariants(vectors), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("dimension", [384, 700])
def test_random_vectors_are_of_an_unknown_embedder(count: int, dimension: int) -> None:
    found = identify(torch.randn(count, dimension, generator=torch.Generator().manual_seed(1)))
    assert found.space is None
    assert "of an unknown embedder" in str(found)


def test_vectors_without_a_direction_are_refused() -> None:
    for wrong in (0.0, math.nan, math.inf):
        with pytest.raises(InputError, match="zero, or has NaN or infinity"):
            identify(torch.full((2, 384), wrong))


def test_the_command_names_the_space_and_the_attacker_that_reads_it(
    vectors: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "mine.npy", vectors[:3].numpy())
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).standard_normal((3, 384)).astype(np.float32))
    monkeypatch.chdir(tmp_path)

    def printed(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["unembed", "identify", *words])
        command.main()
        return capsys.readouterr().out

    assert printed("mine.npy").splitlines() == [
        "mine.npy: 3 vectors of 384 dimensions, of length 1: all-MiniLM-L6-v2, mean pooling (embedder=minilm)",
        "read by the shipped attacker minilm: unembed audit vectors=mine.npy",
    ]
    told = json.loads(printed("vectors=mine.npy", "--json"))
    assert (told["attacker"], told["space"]["embedder"], told["rotated"]) == ("minilm", "minilm", False)
    assert "of an unknown embedder" in printed("noise.npy")
    for words, message in (
        (["vectrs=x"], "did you mean vectors"),
        ([], "give the vectors"),
        (["no.npy"], "no such file"),
    ):
        with pytest.raises(SystemExit):
            printed(*words)
        assert message in capsys.readouterr().err


@pytest.fixture
def toy() -> KnownSpace:
    """Of 20 dimensions whose standard deviations fall from 1 to .05."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(4000, 20, generator=draw) * torch.linspace(1, 0.05, 20) @ rotation(20) + 0.3
    return KnownSpace.of(Name("toy", "Toy", "no pooling"), points, ["one", "two"] * 2000)


def test_the_density_is_that_of_a_gaussian_whose_last_variances_are_equal(toy: KnownSpace) -> None:
    main = toy.main.double()
    others = torch.eye(20, dtype=torch.float64) - main @ main.T
    covariance = main @ torch.diag(toy.variance.double()) @ main.T + toy.rest.double() * others
    points = torch.randn(5, 20, generator=torch.Generator().manual_seed(2)).double()
    expected = MultivariateNormal(toy.mean.double(), covariance).log_prob(points) + 10 * math.log(2 * math.pi)
    torch.testing.assert_close(toy.compare(points)[0].double() * 20, expected, rtol=2e-2, atol=0.1)


def test_the_bounds_leave_out_a_share_of_the_space_itself(toy: KnownSpace) -> None:
    draw = torch.Generator().manual_seed(3)
    own = torch.randn(4000, 20, generator=draw) * torch.linspace(1, 0.05, 20) @ rotation(20) + 0.3
    assert 0.97 < toy.share_typical(own) < 1
    assert toy.share_typical(toy.mean.repeat(3, 1)) == 0  # the middle of all texts is no text's vector
    assert toy.share_typical(torch.randn(100, 20, generator=draw)) == 0


def test_spaces_are_read_as_they_were_written(toy: KnownSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_spaces([toy], tmp_path / "spaces.safetensors")
    monkeypatch.setattr(module, "FILE", tmp_path / "spaces.safetensors")
    (again,) = known_spaces.__wrapped__()
    assert again.name == toy.name
    points = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 20))).float()
    torch.testing.assert_close(again.compare(points)[1], toy.compare(points)[1])
