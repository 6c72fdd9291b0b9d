"""Defenses in runs: who knows of them, what is kept and read back, what the attacker's own texts are answered."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from support import tiny_settings
from support.files import metrics_of, rows_of, write_lines
from support.places import Place
from unembed import launch
from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.embedded import DefendedEmbedder, FittedDefense, defended
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.files import FilesDataModule
from unembed.defenses.language_agnostic import LanguageAgnostic
from unembed.defenses.noise import Noise
from unembed.defenses.product_quantization import ProductQuantization
from unembed.defenses.rounding import Rounding
from unembed.defenses.scalar_quantization import ScalarQuantization
from unembed.defenses.threat import KNOWLEDGE, threat_of
from unembed.defenses.truncation import Truncation
from unembed.embedders.base import fingerprint_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.launch.composing import survey
from unembed.runs import layout
from unembed.runs.config_file import read_config

KEY = "a key that nobody guesses"


class Trigrams:
    """Counts of character trigrams in 16 places, of length 1."""

    dimension = 16
    max_tokens = 64
    fingerprint = fingerprint_of(kind="trigrams", used="test_defended_runs")

    def embed(self, texts: Sequence[str]) -> Tensor:
        vectors = torch.full((len(texts), 16), 0.1)
        for row, text in enumerate(texts):
            for begin in range(len(text) - 2):
                vectors[row, zlib.crc32(text[begin : begin + 3].encode()) % 16] += 1
        return torch.nn.functional.normalize(vectors, dim=1)


WHO, WHERE = ("ada", "bob", "cleo", "dan", "eve", "fay"), {"en": "paris rome oslo lima", "de": "bonn kiel ulm hof"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every text stands in training; the test texts are some of them: a neighbour at distance 0 is the text itself."""
    rows = []
    for language, cities in WHERE.items():
        for number, city in enumerate(cities.split()):
            for name in WHO:
                text = f"{name} lives in {city} ." if language == "en" else f"{name} wohnt in {city} ."
                rows.append({"text": text, "split": "train", "language": language})
                if number < 2:
                    rows.append({"text": text, "split": "valid", "language": language})
                    rows.append({"text": text, "split": "test", "language": language})
    path = tmp_path / "data.jsonl"
    write_lines(path, rows)
    return path


COMMON = [*tiny_settings.NEIGHBOR, "datamodule.language_field=language", "datamodule.drop_repeated=false"]


@pytest.fixture
def place(tmp_path: Path, data: Path) -> Place:
    return Place(tmp_path, data, COMMON, {"_target_": f"{__name__}.Trigrams"})


def texts(count: int) -> list[Example]:
    return [Example(i, f"text number {i}") for i in range(count)]


# -- writing them down -----------------------------------------------------------------------------------------------


def test_one_is_written_flat_and_several_in_a_list() -> None:
    one = launch.compose("train", ["defense=noise", "defense.level=0.5", "defense.adaptive=true"])
    threat = threat_of(one.defense)
    assert (type(threat.defense), threat.adaptive, threat.hypotheses) == (Noise, True, "clean")
    assert threat.settings == {"_target_": "unembed.defenses.noise.Noise", "level": 0.5, "relative": False, "seed": 0}
    lines = ["defense=[language_agnostic,noise,noise]", "defense.noise_2.level=0.5", "defense.hypotheses=defended"]
    several = launch.compose("train", lines)
    assert launch.check(several) == []
    assert several.choices.defense == "language_agnostic+noise+noise"
    threat = threat_of(several.defense)
    assert list(threat.defense.steps) == ["language_agnostic", "noise", "noise_2"]
    assert [threat.defense.steps[name].level for name in ("noise", "noise_2")] == [0.01, 0.5]
    assert threat.hypotheses == "defended"
    (message,) = survey("train", ["defense=[masking,noise],none"], multirun=True)[1]
    assert message.startswith("defense=[masking,noise],none: ")
    assert "swept" in message


def test_a_run_is_given_another_defense() -> None:
    before = launch.compose("train", ["defense=[masking,noise]", "defense.noise.level=0.5", "seed=3"])
    run = OmegaConf.create(launch.plain(before))
    alone = launch.amend(run, ["defense=rounding", "defense.step=0.25"])
    assert launch.plain(alone)["defense"] == {
        "adaptive": False, "hypotheses": "clean", "recall": None, "step": 0.25,
        "_target_": "unembed.defenses.rounding.Rounding",
    }  # fmt: skip
    changed = launch.amend(run, ["defense.noise.level=2", "defense.adaptive=true"])
    assert (changed.defense.noise.level, changed.defense.adaptive, changed.choices.defense) == (
        2,
        True,
        "masking+noise",
    )
    other = launch.amend(run, ["defense=[rounding,truncation]", "defense.truncation.dimensions=9"])
    assert [name for name in other.defense if name not in (*KNOWLEDGE, "_target_")] == [
        "rounding", "truncation"
    ]  # fmt: skip
    assert other.choices.defense == "rounding+truncation"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("defense=[masking,nois]", "defense=nois: did you mean noise?"),
        ("defense.hypotheses=defnded", "defense.hypotheses=defnded: did you mean defended?"),
        ("defense.adaptive=maybe", "defense.adaptive=maybe: must be true or false"),
        ("defense.adptive=true", "defense.adptive: unknown key, did you mean adaptive?"),
    ],
)
def test_what_is_misspelt(line: str, message: str) -> None:
    configs, errors = survey("train", [line])
    assert message in [*errors, *(error for config in configs for error in launch.check(config))]


# -- what the attacker's own texts are answered ----------------------------------------------------------------------


def test_a_defended_service_answers_alike_and_never_with_the_noise_of_the_target(tmp_path: Path) -> None:
    cached, noise = CachedEmbedder(Trigrams(), tmp_path), Noise(level=0.2)
    service = DefendedEmbedder(cached, noise)
    asked = ["ada lives in rome .", "bob lives in oslo ."]
    answers = service.embed(asked, "attack")
    assert torch.equal(service.embed(asked[::-1], "attack"), answers.flip(0))
    service.fill(asked, "training")
    assert torch.equal(service.view(asked)[[1, 0]], answers.flip(0))
    assert torch.equal(service.view(asked)[:], answers)
    clean = cached.embed(asked)
    assert not torch.equal(answers, clean)
    for role in ("train", "valid", "test", "query", "document"):
        target = noise(clean, [Example(0, text) for text in asked], role)
        assert float((target - answers).abs().min()) > 0
    assert service.queries.asked["attack"] == cached.queries.asked["attack"] == 2
    assert service.source is cached
    assert DefendedEmbedder(cached, Truncation(dimensions=5)).dimension == 5
    service = DefendedEmbedder(CachedEmbedder(Trigrams(), tmp_path), Rounding(step=10.0))
    with pytest.raises(InputError, match=r"hypothesis text 0, and of 1 of these 1, is all zeros; take a weaker"):
        service.embed(["ada lives in rome ."])


# -- data ------------------------------------------------------------------------------------------------------------


def module(data: Path, tmp_path: Path, defense: Any, **options: Any) -> InversionDataModule:
    found: InversionDataModule = FilesDataModule(
        path=str(data), split_field="split", language_field="language", drop_repeated=False, eval_batch_size=5
    )
    found.connect(CachedEmbedder(Trigrams(), tmp_path / "cache"), defense, **options)
    return found


def test_naive_and_adaptive_attackers(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"defense\.adaptive=false: .* 4 out of 16, .* defense\.adaptive=true"):
        module(data, tmp_path, Truncation(dimensions=4))
    assert module(data, tmp_path, Truncation(dimensions=4), adaptive=True).dimension == 4
    assert not (tmp_path / "cache").exists()
    naive, adaptive = (module(data, tmp_path, Noise(level=0.1), adaptive=known) for known in (False, True))
    for one in (naive, adaptive):
        one.setup()
        assert not torch.equal(one.vectors("test", [0, 1]), one.clean_vectors("test", [0, 1]))
    assert torch.equal(naive.vectors("train", [0, 1], epoch=0), naive.clean_vectors("train", [0, 1]))
    first, second = (adaptive.vectors("train", [0, 1], epoch=epoch) for epoch in (0, 1))
    assert not torch.equal(first, adaptive.clean_vectors("train", [0, 1]))
    assert not torch.equal(first, second)  # new noise in every epoch


def test_ranks_and_batches_see_the_same_noise(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = module(data, tmp_path, Noise(level=0.1))
    one.setup("test")
    count = len(one.examples("test"))
    whole = one.vectors("test", range(count))
    for world in (1, 2, 3):
        seen = torch.zeros(count, 16)
        for rank in range(world):
            monkeypatch.setattr(one, "_place", lambda rank=rank, world=world: (rank, world))
            for batch in one.test_dataloader():
                seen[batch["index"]] = batch["vectors"]
        assert torch.equal(seen, whole)


def test_a_fitted_state_belongs_to_its_settings_and_embedder(tmp_path: Path) -> None:
    fitted = ProductQuantization(subvectors=2, centroids=4)
    fitted.fit(torch.eye(8), texts(8))
    kept = FittedDefense(tmp_path, {"subvectors": 2}, "one embedder")
    kept.write(fitted)
    again = ProductQuantization(subvectors=2, centroids=4)
    assert not FittedDefense(tmp_path, {"subvectors": 4}, "one embedder").restore(again)
    assert not FittedDefense(tmp_path, {"subvectors": 2}, "another").restore(again)
    assert kept.restore(again)
    assert torch.equal(again.codebooks, fitted.codebooks)
    kept.path.write_bytes(kept.path.read_bytes()[:20])
    with pytest.raises(InputError, match="the fitted defense cannot be read"):
        kept.restore(again)


@pytest.mark.parametrize(
    ("defense", "state", "said"),
    [
        (ProductQuantization(subvectors=2, centroids=4), {"other": torch.ones(2)}, "cannot be read: 'codebooks'"),
        (ProductQuantization(subvectors=2, centroids=4), {"codebooks": torch.ones(2)}, "not 2 of 4 centroids"),
        (ProductQuantization(subvectors=2, centroids=4), {"codebooks": torch.ones(1, 4, 8)}, "not 2 of 4 centroids"),
        (ProductQuantization(subvectors=2, centroids=4), {"codebooks": torch.ones(2, 4, 3)}, "vectors of dimension 6"),
        (ProductQuantization(subvectors=2, centroids=4), {"codebooks": torch.full((2, 4, 4), torch.nan)}, "is NaN"),
        (ScalarQuantization(bits=8), {"low": torch.ones(8)}, "cannot be read: 'high'"),
        (ScalarQuantization(bits=8), {"low": torch.ones(8), "high": torch.ones(7)}, "not the two ends"),
        (
            ScalarQuantization(bits=8),
            {"low": torch.zeros(7), "high": torch.ones(7)},
            "does not fit vectors of dimension 8",
        ),
        (LanguageAgnostic("en"), {"en": torch.ones(2, 8)}, "not one vector a language"),
        (LanguageAgnostic("en"), {"en": torch.ones(7)}, "does not fit vectors of dimension 8"),
    ],
)
def test_a_fitted_state_that_fits_nothing_is_one_message(
    tmp_path: Path, defense: Any, state: dict[str, torch.Tensor], said: str
) -> None:
    kept = FittedDefense(tmp_path, {}, "embedder")
    save_file(state, kept.path, {"settings": "{}", "embedder": "embedder"})

    def used() -> None:
        kept.restore(defense)
        defended(defense, torch.eye(8), texts(8), "test")

    with pytest.raises(InputError, match=said):
        used()


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_fitted_defense_goes_from_training_to_evaluation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, of_it = "defense=[rounding,product_quantization]", "defense.product_quantization"
    quantised = [chain, "defense.rounding.step=1e-3", f"{of_it}.subvectors=4", f"{of_it}.centroids=6"]
    run = place.train("run", *quantised)
    first = metrics_of(run)
    assert first["cosine"] < 0.9999
    assert first["cosine_clean"] > first["cosine"]
    assert set(rows_of(run)[0]) >= {"cosine", "cosine_clean"}
    with safe_open(run / "artifacts" / "defense.safetensors", framework="pt") as file:
        assert file.get_tensor("product_quantization/codebooks").shape == (4, 6, 4)

    def never(*_: Any) -> None:
        raise AssertionError("fitted anew")

    monkeypatch.setattr(ProductQuantization, "fit", never)
    assert rows_of(place.evaluate(run, "again")) == rows_of(run)
    assert rows_of(place.evaluate(run, "the same in words", *quantised)) == rows_of(run)
    monkeypatch.undo()
    other = place.evaluate(run, "finer", *quantised[:3], f"{of_it}.centroids=24")
    assert metrics_of(other)["cosine_clean"] > first["cosine_clean"]


@pytest.mark.slow
def test_an_evaluation_fits_its_defense_to_the_training_text_of_the_run(place: Place, tmp_path: Path) -> None:
    run = place.train("run")
    assert metrics_of(run)["cosine_clean"] is None
    assert "cosine_clean" not in rows_of(run)[0]
    assert metrics_of(run)["exact_match"] == 100
    assert not (run / "artifacts" / "defense.safetensors").exists()
    seen = {}
    for name, lines in {
        "all": [],
        "german": ["datamodule.test_languages=[de]"],  # fitted to the same training text
    }.items():
        output = place.evaluate(run, name, "defense=[language_agnostic,rounding]", "defense.rounding.step=1e-4", *lines)
        seen[name] = {row["reference"]: row["cosine_clean"] for row in rows_of(output)}
        found = {row["reference"]: row["cosine"] for row in rows_of(output)}
        assert all(found[text] != seen[name][text] for text in found)
        assert read_config(output).choices.defense == "language_agnostic+rounding"
    assert len(seen["german"]) == 12
    assert {text: seen["all"][text] for text in seen["german"]} == seen["german"]
    assert not (run / "artifacts" / "defense.safetensors").exists()  # the run is as it was
    with pytest.raises(InputError, match=r"test text 0 has no language"):
        place.evaluate(run, "masked", "defense=masking", "defense.languages={de: 1}", "datamodule.language_field=null")


def test_a_rotation_stops_who_does_not_know_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", KEY)
    naive = place.train("naive", "defense=rotation")
    adaptive = place.train("adaptive", "defense=rotation", "defense.adaptive=true", "defense.hypotheses=defended")
    assert metrics_of(naive)["exact_match"] < 30
    assert metrics_of(adaptive)["exact_match"] == 100
    assert metrics_of(adaptive)["cosine"] == metrics_of(adaptive)["cosine_clean"] == pytest.approx(1)
    assert read_json(adaptive / layout.BASELINE)["exact_match"] == 100
    for path in adaptive.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", "another key, as long")
    with pytest.raises(InputError, match="the key is not the one that this run was made with"):
        place.evaluate(adaptive, "wrong key")
    monkeypatch.delenv("UNEMBED_ROTATION_KEY")
    with pytest.raises(Exception, match="UNEMBED_ROTATION_KEY") as raised:
        place.train("no key", "defense=rotation")
    assert isinstance(raised.value.__cause__, InputError)
    assert not (place.base / "no key").exists()


GENERATIVE = [
    "attack=geia", "attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2",
    "attack.backbone.vocabulary=300", "attack.decoding.max_new_tokens=6", "attack.decoding.beams=2",
    "attack.decoding.rerank=2", "trainer.max_steps=2", "trainer.max_time=null", "defense=truncation",
    "defense.dimensions=8", "defense.adaptive=true",
]  # fmt: skip


@pytest.mark.slow
def test_narrower_vectors_are_compared_with_hypotheses_where_these_are_defended(place: Place) -> None:
    with pytest.raises(InputError, match=r"rerank=2: .* dimension 8 .*defense\.hypotheses=defended"):
        place.train("clean", *GENERATIVE)
    run = place.train("defended", *GENERATIVE, "defense.hypotheses=defended")
    metrics = metrics_of(run)
    assert metrics["queries"] > 0
    assert metrics["cosine"] is not None
    assert metrics["cosine"] != metrics["cosine_clean"]
    with pytest.raises(InputError, match="dimension 8 out of 16"):
        place.evaluate(run, "not told", "defense=truncation", "defense.dimensions=8")
    with pytest.raises(InputError, match="the weights of the checkpoint do not fit"):
        place.evaluate(run, "none", "defense=none")


INVERTER = [
    *tiny_settings.INVERTER, "attack.decoding.max_new_tokens=16", "trainer.max_steps=20", "trainer.max_time=null",
]  # fmt: skip
CORRECTOR = [
    *tiny_settings.CORRECTOR, "attack.max_new_tokens=16", "attack.search.steps=1",
    "attack.search.beams=1", "attack.hypotheses.later_rounds=0", "attack.hypotheses.noise=[0]", "trainer.max_steps=2",
    "trainer.max_time=null",
]  # fmt: skip


@pytest.mark.slow
def test_a_corrector_learns_from_hypotheses_that_the_defended_service_answers(place: Place) -> None:
    known = ["defense=truncation", "defense.dimensions=8", "defense.adaptive=true"]
    inverter = place.train("inverter", *INVERTER, *known)
    given = [*CORRECTOR, f"attack.inverter_run={inverter}", *known]
    with pytest.raises(
        InputError, match=r"the attacked vectors have dimension 8 and the embedder's 16.*hypotheses=def"
    ):
        place.train("clean", *given)
    corrector = place.train("corrector", *given, "defense.hypotheses=defended")
    metrics = metrics_of(corrector)
    assert metrics["queries_per_target"] > 0
    assert metrics["cosine"] != metrics["cosine_clean"]
    (described,) = [entry for name, entry in read_json(corrector / "artifacts" / "hypotheses.json").items()
                    if name.startswith("train")]  # fmt: skip
    assert sum(described["cosines"]) == 48  # all were compared in the dimension of the defense
    again = metrics_of(place.evaluate(corrector, "again"))
    assert (again["bleu"], again["cosine"]) == (metrics["bleu"], pytest.approx(metrics["cosine"]))
