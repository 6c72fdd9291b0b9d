"""Locks with a key or a fit of their own, the owner's search, and the strength at which a search still finds enough."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from support.letters import Letters
from unembed.attacks.transfer.aligners import Known, RidgePath, read_maps, write_maps
from unembed.attacks.transfer.cell_maps import PerCell
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.collections import Collection
from unembed.datamodules.retrieval import Searchable
from unembed.datamodules.usefulness import matched, recall
from unembed.defenses.base import searched
from unembed.defenses.cells import Cells
from unembed.defenses.chain import Chain
from unembed.defenses.guard import Guard
from unembed.defenses.hadamard import Hadamard, hadamard
from unembed.defenses.noise import Noise
from unembed.defenses.sap import SAP
from unembed.defenses.sparse import Sparse
from unembed.defenses.truncation import Truncation
from unembed.embedders.cache.cached import CachedEmbedder

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELLS", "HADAMARD"):
        monkeypatch.setenv(f"UNEMBED_{name}_KEY", KEY)


def texts(count: int) -> list[Example]:
    return [Example(place, f"text {place}") for place in range(count)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def grouped(count: int, dimension: int = 12, groups: int = 3) -> tuple[Tensor, Tensor]:
    """Vectors around few centres, far apart, and the group of each."""
    group = torch.arange(count) % groups
    return 3 * normal(groups, dimension, seed=1)[group] + normal(count, dimension), group


def test_scale_and_perturb_stays_in_its_ball() -> None:
    vectors, examples = normal(200, 8), texts(200)
    sap = SAP(approximation=2.0, scale=10.0)
    locked = sap(vectors, examples, "document")
    distances = (locked / 10 - vectors).norm(dim=1)
    assert float(distances.max()) <= 0.5 + 1e-5
    assert (distances > 0.5 * 0.5 ** (1 / 8)).float().mean() == pytest.approx(0.5, abs=0.12)  # half of the volume
    assert not torch.equal(sap(vectors, examples, "query"), locked)


def test_hadamard_by_hand_and_as_a_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hadamard(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist() == [[5.0, -1.0, -2.0, 0.0]]
    assert hadamard(torch.tensor([[3.0, 1.0, 7.0]])).tolist() == [pytest.approx([4 / 2**0.5, 2 / 2**0.5, 7.0])]
    vectors = normal(20, 12)
    locked = Hadamard()(vectors, texts(20), "test")
    torch.testing.assert_close(locked @ locked.T, vectors @ vectors.T)
    assert float(Hadamard()(torch.eye(12), texts(12), "test").abs().max()) < 0.95  # no coordinate stays one
    monkeypatch.setenv("UNEMBED_HADAMARD_KEY", KEY[::-1])
    assert not torch.allclose(Hadamard()(vectors, texts(20), "test"), locked)


def test_cells_keep_angles_within_a_cell_and_their_prefix() -> None:
    vectors, group = grouped(90)
    cells = Cells(count=3, prefix=2)
    cells.fit(vectors, texts(90))
    locked = cells(vectors, texts(90), "document")
    centred = vectors - vectors.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    torch.testing.assert_close(locked[:, :2].abs(), (centred @ axes.T).abs(), atol=1e-4, rtol=0)
    inside = group[:, None] == group
    products, before = locked @ locked.T, centred @ centred.T
    torch.testing.assert_close(products[inside], before[inside], atol=1e-3, rtol=0)
    assert float((products - before)[~inside].abs().mean()) > 1
    assert torch.equal(searched(cells, vectors, texts(90), "query"), vectors)
    again = Cells(count=3, prefix=2)
    again.restore(cells.state())
    assert torch.equal(again(vectors, texts(90), "document"), locked)


def test_the_key_and_the_dimensions_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = Cells(count=2, prefix=0)
    cells.fit(*(grouped(20)[0], texts(20)))
    monkeypatch.setenv("UNEMBED_CELLS_KEY", KEY[::-1])
    with pytest.raises(InputError, match="the key is not the one that this run was made with"):
        Cells(count=2, prefix=0).restore(cells.state())
    with pytest.raises(InputError, match=r"defense=cells, dimensions=13: the vectors have only 12"):
        Cells(prefix=12).output_dimension(12)


def test_noise_follows_a_concept() -> None:
    examples = [Example(place, "room 7" if place % 2 else "a room") for place in range(400)]
    vectors = normal(400, 6)
    vectors[1::2, 2] += 4
    sparse = Sparse(concept="[0-9]", epsilon=20.0, share=1.0)
    sparse.fit(vectors, examples)
    means = vectors[1::2].mean(0) - vectors[::2].mean(0)
    effects = means.square() / vectors.var(0)
    torch.testing.assert_close(sparse.weights, effects / effects.mean(), atol=1e-4, rtol=1e-4)
    moved = (sparse(vectors, examples, "document") - vectors).square().mean(0)
    assert int(moved.argmax()) == 2
    # E|noise|^2 = d (d + 1) / epsilon^2 at a trace of d
    assert float(moved.sum()) == pytest.approx(6 * 7 / 400, rel=0.25)
    with pytest.raises(InputError, match=r"defense\.concept=xyz: is found in none of 400 texts"):
        Sparse(concept="xyz").fit(vectors, examples)
    with pytest.raises(InputError, match=r"defense\.concept=\(: is not a regular expression"):
        Sparse(concept="(")


def test_a_guard_keeps_neighbours_and_moves_vectors() -> None:
    vectors = normalize(grouped(300, groups=6)[0], dim=1)
    guard = Guard(steps=60)
    guard.fit(vectors, texts(300))
    made = guard(vectors, texts(300), "document")
    torch.testing.assert_close(made.norm(dim=1), torch.ones(300))
    before, after = vectors @ vectors.T, made @ made.T
    assert torch.corrcoef(torch.stack([before.flatten(), after.flatten()]))[0, 1] > 0.9
    assert float(torch.cosine_similarity(vectors, made).mean()) < 0.8
    slight, other = Guard(share=0.01, steps=60), Guard(steps=60)
    for one in (slight, other):
        one.restore(guard.state())
    assert float(torch.cosine_similarity(vectors, slight(vectors, texts(300), "query")).min()) > 0.99
    assert torch.equal(other(vectors, texts(300), "document"), made)


# ----------------------------------------------------------------------------------------------------- equal usefulness

WORDS = ("cat", "dog", "fish", "bird", "snake", "horse", "goat", "duck", "whale", "moth")


@pytest.fixture
def index(tmp_path: Path) -> Searchable:
    documents = [f"{one} {other}" for one in WORDS for other in WORDS]
    examples = [Example(place, text, language="en") for place, text in enumerate(documents)]
    queries = [Example(place, text, language="en") for place, text in enumerate(WORDS)]
    labels = [{text: 1} for text in WORDS]
    collection = Collection(examples, documents, queries, list(WORDS), labels)
    return Searchable(collection, CachedEmbedder(Letters(), tmp_path / "cache"))


def test_the_strength_is_the_strongest_that_leaves_the_recall(index: Searchable) -> None:
    settings = {"_target_": "unembed.defenses.noise.Noise", "level": 0.01, "relative": False, "seed": 0}
    found = matched(settings, index, 0.8)
    level = found.settings["level"]
    assert isinstance(found.defense, Noise)
    assert found.defense.level == level
    exact = index.rankings(k=10) or []
    assert found.recall == recall(exact, index.rankings(found.defense, k=10)) >= 0.8
    assert recall(exact, index.rankings(Noise(1.05 * level), k=10)) < found.recall + 0.02
    assert recall(exact, index.rankings(Noise(2 * level), k=10)) < 0.8
    assert settings["level"] == 0.01
    assert matched(settings, index, 0.5).settings["level"] > level


def test_a_chain_is_set_by_its_last_defense_with_a_strength(index: Searchable) -> None:
    steps = {
        "noise": {"_target_": "unembed.defenses.noise.Noise", "level": 0.001},
        "truncation": {"_target_": "unembed.defenses.truncation.Truncation", "dimensions": 4},
        "hadamard": {"_target_": "unembed.defenses.hadamard.Hadamard"},
    }
    found = matched({"_target_": "unembed.defenses.chain.Chain", **steps}, index, 0.9)
    assert found.settings["noise"] == steps["noise"]
    kept = found.settings["truncation"]["dimensions"]
    assert 4 < kept < index.embedder.dimension
    shorter = Chain(noise=Noise(0.001), truncation=Truncation(kept - 1), hadamard=Hadamard())
    assert recall(index.rankings(k=10) or [], index.rankings(shorter, k=10)) < 0.9


def test_a_lock_without_a_strength_is_measured_and_one_that_is_too_strong_is_refused(index: Searchable) -> None:
    cells = {"_target_": "unembed.defenses.cells.Cells", "count": 2, "prefix": 2}
    assert matched(cells, index, 0.9).recall == 1.0
    steps = {
        "truncation": {"_target_": "unembed.defenses.truncation.Truncation", "dimensions": 4},
        "noise": {"_target_": "unembed.defenses.noise.Noise", "level": 1.0},
    }
    said = r"defense\.recall=0\.99: at the weakest, noise\.level=0\.0001, the search finds 0\.[0-9]+; take at most that"
    with pytest.raises(InputError, match=said):
        matched({"_target_": "unembed.defenses.chain.Chain", **steps}, index, 0.99)


# -------------------------------------------------------------------------------------------------- the attack on cells


def test_a_map_for_each_cell_undoes_what_one_map_cannot(tmp_path: Path) -> None:
    vectors, _ = grouped(700, dimension=16, groups=4)
    cells = Cells(count=4, prefix=0)
    cells.fit(vectors, texts(700))
    locked, own = cells(vectors, texts(700), "document").double(), vectors.double()
    known = Known(victim=locked[:500], own=own[:500], store=locked[500:], public=own[:500])
    found = PerCell(cells=4).fit(known)
    write_maps(tmp_path / "maps", {"start": found.map})
    start = read_maps(tmp_path / "maps")["start"]
    assert start.dimensions == (16, 16)
    assert _explained(start(locked[500:]), own[500:]) > 0.95
    path = RidgePath(known.victim - known.victim.mean(0), known.own - known.own.mean(0))
    one = (locked[500:] - known.victim.mean(0)) @ path.weight(0.1) + known.own.mean(0)
    assert _explained(one, own[500:]) < 0.9


def _explained(found: Tensor, wanted: Tensor) -> float:
    return 1 - float((found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum())
