"""unembed membership: planted members are found in a store, whatever was done to its vectors; other texts are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.files import read_lines, write_lines
from support.places import Place
from unembed import launch
from unembed.commands import membership
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.defenses.noise import Noise
from unembed.defenses.product_quantization import ProductQuantization
from unembed.defenses.truncation import Truncation
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.reports.membership import Comparison, look_up, nearest
from unembed.runs.config_file import write_config

CORPUS = [one.text for one in SyntheticCorpus(sentences=420, valid=10, test=10).load()["train"]]
STORE, OTHERS, REFERENCES = CORPUS[:150], CORPUS[150:180], CORPUS[180:400]
MEMBERS = [*STORE[20:40], STORE[50].upper()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run of the embedder, a store, candidates with a blank line, and references."""
    made = Place(tmp_path_factory.mktemp("members"), STORE, ["datamodule=files"])
    run = made.base / "run"
    run.mkdir()
    given = [f"run_dir={run}", f"cache_dir={made.cache}", "datamodule=files", f"datamodule.path={made.data}"]
    write_config(run, launch.plain(launch.compose("train", given)))
    np.save(made.base / "store.npy", vectors_of(made, STORE).numpy())
    candidates = [*MEMBERS, "", *OTHERS]
    (made.base / "candidates.txt").write_text("\n".join(candidates) + "\n")
    (made.base / "references.txt").write_text("\n".join(REFERENCES) + "\n")
    return made


def vectors_of(place: Place, texts: list[str]) -> torch.Tensor:
    return CachedEmbedder(MiniLM(), place.cache).embed(texts)


def looked_up(place: Place, *lines: str, store: str = "store.npy") -> list[dict[str, Any]]:
    base = place.base
    given = [f"run={base / 'run'}", f"vectors={base / store}", f"output={base / 'out.jsonl'}", *lines]
    if not any(line.startswith("candidates=") for line in lines):
        given.append(f"candidates={base / 'candidates.txt'}")
    if not any(line.startswith("references=") for line in lines):
        given.append(f"references={base / 'references.txt'}")
    membership.membership(*launch.on_run("membership", given))
    return read_lines(base / "out.jsonl")


def test_planted_members_are_found_with_their_rows(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    rows = looked_up(place)
    assert [row["line"] for row in rows] == [*range(1, 22), *range(23, 53)]  # line 22 is blank
    assert [row["id"] for row in rows[:21]] == [*map(str, range(20, 40)), "50"]
    assert {row["member"] for row in rows[:21]} == {"exact"}  # the embedder reads lower case
    assert all(row["cosine"] > 0.999 and row["p"] <= 0.01 for row in rows[:21])
    assert sum(row["member"] != "no" for row in rows[21:]) <= 2
    assert all((row["p"] <= 0.01) == (row["member"] != "no") for row in rows)
    said = capsys.readouterr().out
    assert "of 51 candidates are in the store of 150 rows" in said
    assert "21 of them with a vector as near as the text's own" in said


def test_members_of_a_defended_store_are_found(place: Place) -> None:
    plain = vectors_of(place, STORE)
    examples = [Example(row, text) for row, text in enumerate(STORE)]
    np.save(place.base / "cut.npy", Truncation(64)(plain, examples, "document").numpy())
    rows = looked_up(place, "defense=truncation", "defense.dimensions=64", store="cut.npy")
    assert [row["member"] for row in rows[:21]] == ["exact"] * 21
    np.save(place.base / "noisy.npy", Noise(0.03, seed=5)(plain, examples, "document").numpy())
    rows = looked_up(place, "defense=noise", "defense.level=0.03", store="noisy.npy")
    assert sum(row["member"] != "no" for row in rows[:21]) >= 18
    assert [row["id"] for row in rows[:20]] == [*map(str, range(20, 40))]


def test_a_quantisation_is_read_off_the_store(place: Place) -> None:
    plain = vectors_of(place, STORE)
    examples = [Example(row, text) for row, text in enumerate(STORE)]
    coarse = ProductQuantization(subvectors=24, centroids=32)
    coarse.fit(plain, examples)
    np.save(place.base / "coarse.npy", coarse(plain, examples, "document").numpy())
    given = ["defense=product_quantization", "defense.subvectors=24", "defense.centroids=32"]
    rows = looked_up(place, *given, store="coarse.npy")
    assert min(row["cosine"] for row in rows[:21]) > 0.999  # the same centroids
    assert max(row["cosine"] for row in looked_up(place, store="coarse.npy")[:21]) < 0.999
    assert sum(row["member"] == "exact" for row in rows[:21]) >= 18


def test_the_stores_own_rows_are_references_where_others_are_of_another_kind() -> None:
    random = torch.Generator().manual_seed(0)
    kinds = torch.randn(100, 64, generator=random)  # a store of much repeated phrases
    alike = torch.cat(
        [kinds + spread * torch.randn(100, 64, generator=random) for spread in torch.linspace(0.05, 0.6, 12)]
    )
    alike = alike[torch.randperm(len(alike), generator=random)]
    store, strangers = alike[:800], alike[800:]
    foreign = torch.randn(400, 64, generator=random)
    way = Comparison(torch.cat([store[:50], strangers]), foreign, foreign)

    def reported(by_store: bool) -> list[bool]:
        found = look_up([way], store, 0.01, by_store)
        assert found.by_store == by_store
        return [answer != "no" for answer in found.answers]

    assert sum(reported(False)[50:]) > 100
    assert sum(reported(True)[50:]) <= 10
    assert all(reported(True)[:50])


def test_a_row_that_is_there_twice_hides_no_member() -> None:
    store = torch.eye(4)[[0, 1, 0, 2]]
    found = nearest(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]]), store)
    assert found.rows == [0, 1]
    assert found.cosines == pytest.approx([1, 0.5**0.5])
    assert found.next == pytest.approx([0, 0.5**0.5])
    assert found.scores == pytest.approx([1000, 1], rel=0.01)


def test_mistakes_are_named(place: Place) -> None:
    with pytest.raises(
        InputError, match=r"^false_positives=0\.1: needs 999 texts .* has 220; .*ask for 0\.45 or more$"
    ):
        looked_up(place, "false_positives=0.1")
    with pytest.raises(InputError, match=r"^candidates=.*candidate\.txt: no such file, .*candidates\.txt"):
        looked_up(place, f"candidates={place.base / 'candidate.txt'}")
    (place.base / "blank.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"^references=.*blank\.txt: holds no text$"):
        looked_up(place, f"references={place.base / 'blank.txt'}")
    broken = write_lines(place.base / "broken.jsonl", [{"text": "a"}])
    broken.write_text(broken.read_text() + "{\n")
    with pytest.raises(InputError, match=r"broken\.jsonl:2: not JSON"):
        looked_up(place, f"candidates={broken}")
    with pytest.raises(InputError, match=r"^false_positives=0"):
        looked_up(place, "false_positives=0")
    with pytest.raises(InputError, match="keeps no state"):
        looked_up(place, "defense=product_quantization")


def test_rotated_vectors_are_refused(place: Place) -> None:
    turned = torch.linalg.qr(torch.randn(384, 384, generator=torch.Generator().manual_seed(0))).Q
    np.save(place.base / "turned.npy", (vectors_of(place, STORE) @ turned).numpy())
    with pytest.raises(InputError, match=r"^vectors=.*turned\.npy: these are not .* vectors"):
        looked_up(place, store="turned.npy")
