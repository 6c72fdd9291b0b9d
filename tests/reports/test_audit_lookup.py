"""The second attacker of an audit: the lookup of the nearest training text, which knows the defenses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import tiny_settings
from support.files import load, write_lines
from support.places import Place
from unembed import launch
from unembed.attacks.refine.lexicon.words import WordSources
from unembed.audit.attackers import Lookup, among_others, closest
from unembed.audit.results import Reading, Truth
from unembed.commands import audit
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.noise import Noise
from unembed.defenses.truncation import Truncation
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM

WHO, CITIES = ("Ada", "Bob", "Cleo", "Dan", "Eve"), ("Paris", "Rome", "Oslo", "Lima")
TRAIN = [f"{who} lives in {city} and sings" for who in WHO for city in CITIES]
TEST = [f"{who} lives in {city} and sings well" for who in WHO for city in CITIES[:3]]
UNKNOWN = [f"invoice {n} is due in {n} days" for n in range(10)]
STORE = [*TRAIN[:10], *UNKNOWN]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    base = tmp_path_factory.mktemp("lookup")
    rows = [{"text": text, "split": "train"} for text in TRAIN] + [{"text": text, "split": "test"} for text in TEST]
    made = Place(base, write_lines(base / "data.jsonl", rows), [*tiny_settings.FILES, *tiny_settings.GEIA])
    made.train("run", "datamodule.valid_fraction=0", "attack.decoding.max_new_tokens=4", steps=2)
    np.save(base / "store.npy", CachedEmbedder(MiniLM(), made.cache).embed(STORE, "scoring").numpy())
    write_lines(base / "truth.jsonl", [{"text": text} for text in STORE])
    return made


def neighbour(place: Place) -> Place:
    """The same data, for runs of the nearest neighbour."""
    return Place(place.base, place.data, [*tiny_settings.NEIGHBOR, "datamodule.valid_fraction=0"])


def audited(place: Place, name: str, *lines: str, defenses: tuple[str, ...] = ()) -> dict[str, Any]:
    given = [
        f"run={place.base / 'run'}", f"vectors={place.base / 'store.npy'}", f"output_dir={place.base / name}",
        f"defenses={json.dumps(list(defenses))}", *lines,
    ]  # fmt: skip
    audit.audit(*launch.on_run("audit", given))
    return load(place.base / name / "audit.json")


def test_whoever_knows_the_other_texts_takes_the_nearest() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9], [1.0, 0.0]])
    truths = [Truth(text) for text in "abcda"]
    # Never the row itself; a text that stands twice is read.
    assert among_others(vectors, truths) == ["a", "a", "d", "c", "a"]


@pytest.mark.slow
def test_a_lookup_reads_what_an_untrained_attack_does_not(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten of the store's twenty texts stand in the training text; the attack, after two steps, writes nothing."""
    truncation, noise = "defense=truncation defense.dimensions=128", "defense=noise defense.level=0.01"
    found = audited(place, "measured", f"texts={place.base / 'truth.jsonl'}", defenses=(truncation, noise))
    shares = {one["name"]: one["readable"]["value"] for one in found["attackers"]}
    assert shares == {"attack": 0, "lookup": 0.5, "closest": 0.5}
    assert found["readable"]["value"] == found["exact"]["value"] == 0.5
    assert [one["readable"]["value"] for one in found["tried"]] == [0, 0, 0]
    assert [one["lookup"]["value"] for one in found["tried"]] == [0.5, 0.5, 0.5]
    page = (place.base / "measured" / "audit.html").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    for words in (
        "The lookup of the nearest training text reads 50",
        "nearest training text: 50",
        "None of the defenses tried",
    ):
        assert words in page, words
        assert words in " ".join(said.split()), words


@pytest.mark.slow
def test_without_a_lookup_no_defense_is_recommended(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(place, "alone", f"texts={place.base / 'truth.jsonl'}", "lookup=0", defenses=("defense=masking",))
    assert [one["name"] for one in found["attackers"]] == ["attack"]
    assert [one["lookup"] for one in found["tried"]] == [None, None]
    said = " ".join(capsys.readouterr().out.split())
    assert "No defense is recommended" in said
    assert "defense=masking defense.adaptive=true run_dir=runs/defended" in said


@pytest.mark.slow
def test_estimates_are_those_of_the_closest_text_and_missing_training_text_is_said(place: Place) -> None:
    found = audited(place, "estimated")
    assert not found["readable"]["measured"]
    assert [one["name"] for one in found["attackers"]] == ["attack", "lookup", "closest"]
    shares = [one["readable"] for one in found["attackers"]]
    assert found["readable"] == max(shares, key=lambda share: share["value"])
    assert max(found["cosines"]) == pytest.approx(1, abs=1e-5)
    data = place.base / "data.jsonl"
    moved = data.rename(place.base / "moved.jsonl")
    try:
        without = audited(place, "without")
    finally:
        moved.rename(data)
    assert [one["name"] for one in without["attackers"]] == ["attack"]
    assert any("No lookup in the training text" in warning for warning in without["warnings"])
    # An exported run names its files without their places: nobody expects them here.
    (place.base / "run" / "data.json").rename(place.base / "own.json")
    files = {"files": [{"path": "part.jsonl", "bytes": 1, "sha256": "0" * 64}]}
    (place.base / "run" / "data.json").write_text(json.dumps(files))
    try:
        exported = audited(place, "exported")
    finally:
        (place.base / "own.json").replace(place.base / "run" / "data.json")
    assert [one["name"] for one in exported["attackers"]] == ["attack"]
    assert not any("lookup" in warning for warning in exported["warnings"])
    assert "No attacker looked up" in (place.base / "exported" / "audit.html").read_text(encoding="utf-8")


def test_a_defense_is_undone_by_comparing_with_defended_texts(tmp_path: Path) -> None:
    service = CachedEmbedder(MiniLM(), tmp_path)
    lookup = Lookup.of(TRAIN, service, most=100)
    assert lookup is not None
    vectors = service.embed(TRAIN[5:9], "scoring")
    assert lookup.texts(vectors) == TRAIN[5:9]
    turned = vectors[:, torch.randperm(384, generator=torch.Generator().manual_seed(0))]
    assert lookup.texts(turned) != TRAIN[5:9]
    narrow = Truncation(96)
    assert lookup.texts(narrow(vectors, [], "document"), narrow) == TRAIN[5:9]
    noise = Noise(level=1.0)  # so much that nothing is left: the attacker's noise is not the store's
    stored = noise(service.embed(TRAIN, "scoring"), [Example(n, text) for n, text in enumerate(TRAIN)], "document")
    assert sum(one == other for one, other in zip(lookup.texts(stored, noise), TRAIN, strict=True)) < 8
    evenly = Lookup.of(TRAIN, service, most=len(TRAIN) - 1)
    assert evenly is not None
    assert len(evenly.known) == len(TRAIN) - 1
    assert Lookup.of(TRAIN, service, most=0) is None
    assert Lookup.of([], service, most=5) is None


def test_of_two_texts_the_one_with_the_nearer_vector_is_taken() -> None:
    first = [Reading("a", 0.5), Reading("b", 0.9), Reading("c", 0.7)]
    second = [Reading("x", 0.6), Reading("y", 0.2), Reading("z", 0.7)]
    assert [one.text for one in closest([first, second])] == ["x", "b", "c"]


@pytest.mark.slow
def test_attackers_of_other_runs_and_with_search_stand_beside_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordSources, "public", lambda self, embedder: [])  # words of the training text are enough
    other = neighbour(place).train("other")
    found = audited(
        place,
        "several",
        f"also={other}",
        "max_queries=10",
        "lookup=0",
        "limit=6",
        f"texts={place.base / 'truth.jsonl'}",
    )
    names = [one["name"] for one in found["attackers"]]
    assert names == ["attack", "other", "search", "search", "closest"]
    labels = [one["label"] for one in found["attackers"]]
    assert "the attack of " in labels[1]
    assert labels[2].endswith("with lexicon search")
    assert re.fullmatch(r"[\d,]+ s, [\d,]+ texts embedded", found["attackers"][2]["cost"])
    assert not re.search(r"\d s\b", " ".join(labels))  # what it took differs from audit to audit, its name does not
    shares = [one["readable"]["value"] for one in found["attackers"]]
    assert shares[0] <= shares[2]
    assert found["readable"]["value"] == max(shares)
    cosines = [one["cosine"] for one in found["attackers"]]
    assert cosines[-1] == pytest.approx(max(cosines), abs=0.2)
    assert cosines[-1] >= max(cosines) - 1e-6


@pytest.mark.slow
def test_an_attacker_of_another_embedder_is_refused(place: Place) -> None:
    other = neighbour(place).train("narrow", "defense=truncation", "defense.dimensions=96", "defense.adaptive=true")
    with pytest.raises(InputError, match=r"also=.*narrow: reads vectors of embedder=minilm \(dimension 96\)"):
        audited(place, "refused", f"also={other}")


@pytest.mark.slow
def test_an_attacker_that_reads_noisy_vectors_is_not_given_denoised_ones(place: Place) -> None:
    other = neighbour(place).train("used_to_noise", "defense=noise", "defense.adaptive=true")
    with pytest.raises(InputError, match=r"also=.*used_to_noise: denoiser: an attack .* defense.adaptive=true"):
        audited(place, "denoised", f"also={other}", "denoiser=gaussian")
