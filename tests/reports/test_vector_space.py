"""Which embedder made these vectors: every fault has a message of its own, and sound vectors pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unembed.attacks.parts.predictions import Prediction
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.vector_files import read_vectors
from unembed.embedders.minilm import MiniLM
from unembed.embedders.transformer import TransformerEmbedder, variants
from unembed.metrics.spaces import Space
from unembed.reports.vector_space import check_reading, check_space, dimension_explained, of_directions

DIMENSION = 96
SESSION: Any = SimpleNamespace(embedder=SimpleNamespace(embedder=SimpleNamespace(title="tiny-embedder")))
SESSION.service = SESSION.embedder


def made(rows: int, seed: int, mean: float = 0.3) -> Tensor:
    """Unit vectors as of an embedder: a mean, few strong directions, two empty dimensions."""
    fixed, generator = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    axes, _ = torch.linalg.qr(torch.randn(DIMENSION, DIMENSION, generator=fixed))
    drawn = torch.randn(rows, DIMENSION, generator=generator) * torch.linspace(1, 0.03, DIMENSION) ** 1.5 @ axes
    drawn = drawn * (0.3 + torch.rand(DIMENSION, generator=fixed)) + mean * torch.randn(DIMENSION, generator=fixed)
    drawn[:, [7, 50]] = 0
    return torch.nn.functional.normalize(drawn, dim=1)


SPACE = Space.restored(Space.of(made(1500, 1)).tensors())
GIVEN = made(200, 2)
AXES, _ = torch.linalg.qr(torch.randn(DIMENSION, DIMENSION, generator=torch.Generator().manual_seed(5)))
ORDER = torch.randperm(DIMENSION, generator=torch.Generator().manual_seed(6))
LOW, HIGH = GIVEN.min(dim=0).values, GIVEN.max(dim=0).values
BYTES = ((GIVEN - LOW) / (HIGH - LOW + 1e-9) * 255).floor()
NOISE = torch.randn(GIVEN.shape, generator=torch.Generator().manual_seed(7))


def check(vectors: Tensor, *, trusted: bool = False) -> list[str]:
    return check_space("mine.npy", vectors, SPACE, SESSION, [], trusted)


@pytest.mark.parametrize(
    ("vectors", "cause", "remedy"),
    [
        (GIVEN * 3, "scaled: their median length is 3", "divide them by 3"),
        (GIVEN * (1 + 9 * torch.rand(200, 1)), "not normalised", "divide each by its length"),
        ((GIVEN - GIVEN.mean(dim=0)) / (GIVEN.std(dim=0) + 1e-9), "standardised", "multiply each dimension"),
        (
            (GIVEN * 100).round(),
            "int8: integers from -.* to .*, in the embedder's directions",
            "divide each by its length",
        ),
        (BYTES - 128, "int8: integers from -128 to 127, each dimension with a scale of its own", "scale each"),
        (BYTES, "uint8: integers from 0 to 255", "scale each"),
        ((GIVEN > 0).float(), "binary: all numbers are 0 or 1", "before quantisation"),
        (GIVEN.sign(), "binary: all numbers are -1 or 1", "before quantisation"),
        (GIVEN @ AXES, "rotated, or another model", "undo the rotation"),
        (GIVEN[:, ORDER], "the same dimensions in another order", "put the dimensions"),
        (NOISE / 10, "random numbers", "find out which embedder"),
        (NOISE[:5] / 10, "another model, or no vectors of text at all", "find out which embedder"),
        (made(200, 3).roll(1, dims=1), "", ""),
        (GIVEN[:1].expand(20, -1), "all 20 rows are the same vector", "embed the texts again"),
    ],
)
def test_every_fault_has_its_message(vectors: Tensor, cause: str, remedy: str) -> None:
    wrong = rf"vectors=mine.npy: these are not tiny-embedder vectors \(.*{cause}.*\): .*{remedy}"
    with pytest.raises(InputError, match=rf"{wrong}.*; trust_vectors=true continues all the same"):
        check(vectors)
    (warning,) = check(vectors, trusted=True)
    assert warning.endswith(".")


@pytest.mark.parametrize(
    ("vectors", "warned"),
    [
        (GIVEN, None),
        (GIVEN[:3], None),
        (GIVEN.half().float(), None),
        (torch.nn.functional.normalize((GIVEN * 100).round(), dim=1), None),
        (made(200, 4, mean=0.1), None),
        (GIVEN + 0.01 * NOISE, "carry noise of about 0.0"),
        (torch.cat([GIVEN, GIVEN[:1].expand(100, -1)]), "101 of 300 rows are one and the same vector"),
        (made(2000, 5) - made(2000, 5).mean(dim=0), "seem to be centred"),
    ],
)
def test_sound_vectors_pass(vectors: Tensor, warned: str | None) -> None:
    found = check(vectors)
    assert len(found) == (warned is not None)
    assert warned is None or warned in found[0]


def test_vectors_of_another_dimension(tmp_path: Path) -> None:
    def message(vectors: Tensor) -> str:
        np.save(tmp_path / "mine.npy", vectors.numpy())
        with pytest.raises(InputError) as raised, dimension_explained(SPACE, SESSION):
            read_vectors(tmp_path / "mine.npy", DIMENSION)
        return str(raised.value)

    assert "These are not tiny-embedder vectors (cut short: the first 64 of its 96 dimensions" in message(GIVEN[:, :64])
    assert "defense=truncation defense.dimensions=64" in message(GIVEN[:, :64])
    assert "(padded: the last 32 of 128 dimensions are zero)" in message(torch.cat([GIVEN, 0 * GIVEN[:, :32]], dim=1))
    assert "(binary: 12 bytes are 96 bits" in message(BYTES[:, :12].to(torch.uint8))
    assert "768 dimensions are those of BERT-base models" in message(torch.randn(20, 768))
    assert message(GIVEN[:, 32:]).endswith("they come from another embedder (or another defense)")


def test_another_pooling_is_named() -> None:
    embedder = MiniLM()
    texts = ["the cat sat", "a dog ran away from home"]
    by_pooling = {one.title: one.embedder.embed(texts) for one in variants(embedder)}
    assert set(by_pooling) == {"pooling=cls instead of mean", "pooling=last instead of mean"}
    other = TransformerEmbedder(embedder.name, pooling="cls", normalize=True, max_tokens=256)
    assert torch.equal(by_pooling["pooling=cls instead of mean"], other.embed(texts))
    fault = of_directions(GIVEN @ AXES, SPACE, {"pooling=cls instead of mean": Space.of(made(64, 8) @ AXES)})
    assert fault.cause.startswith("the same model with pooling=cls instead of mean: likeness ")
    titles = [one.title for one in variants(embedder, prefixes=True)]
    assert "prefix='query: ' instead of ''" in titles


def test_texts_that_have_nothing_to_do_with_the_vectors() -> None:
    given = made(400, 2)

    def reader(texts: Tensor) -> Any:
        """Recovers the number of a row as its text, whose vector is that of ``texts``."""
        return SimpleNamespace(
            read=lambda vectors, rows, _: [Prediction((str(row),)) for row in rows],
            attack=SimpleNamespace(query=lambda prediction: prediction.candidates[0]),
            oracle=SimpleNamespace(
                embed=lambda queries, _: texts[[int(query) for query in queries]], embedder=SESSION.embedder.embedder
            ),
        )

    known = [0.9, None, 0.8]
    assert check_reading("mine.npy", given, reader(given), known, False) == []
    unrelated = reader(torch.nn.functional.normalize(torch.randn(400, DIMENSION), dim=1))
    with pytest.raises(InputError, match=r"not tiny-embedder vectors \(of 32 rows .* no nearer to them than"):
        check_reading("mine.npy", given, unrelated, known, False)
    assert len(check_reading("mine.npy", given, unrelated, known, True)) == 1
    assert check_reading("mine.npy", given[:100], unrelated, known, False) == []  # few are read without a first look
    assert check_reading("mine.npy", given, unrelated, [0.3], False) == []  # an attacker who reads nothing anyway
