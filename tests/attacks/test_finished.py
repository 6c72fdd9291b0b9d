"""attack=finished: a finished run's decoder in a run of its own, under a defense, and a cell of the access table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import unembed
from support import tiny_settings
from support.files import load, metrics_of
from support.letters import TEXTS
from support.places import Place
from unembed import launch
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.sentences import SentenceSearch
from unembed.commands.compare import compare, read_settings
from unembed.core.errors import InputError
from unembed.runs import layout

SHORT = [*tiny_settings.FILES, "datamodule.batch_size=16"]
DECODER = [
    *tiny_settings.GEIA, "attack.backbone.vocabulary=300", "attack.decoding.max_new_tokens=10",
    "attack.decoding.beams=2",
]  # fmt: skip
OWN = {"_target_": "support.letters.LettersAndSigns"}
OTHER = {"_target_": "support.letters.Rotated"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained decoder, a cell of its own."""
    folder = tmp_path_factory.mktemp("finished")
    place = Place(folder, TEXTS * 3, SHORT, OWN)
    place.train("own", *DECODER, declared("queries_0"), steps=30)
    return folder


def declared(has: str) -> str:
    return f"access={{attack:GEIA,has:{has},presumes:'its own text, embedded'}}"


def finished(base: Path, name: str, *overrides: str, embedder: dict[str, str] = OWN) -> Path:
    given = ["attack=finished", f"attack.source_run={base / 'own'}", *overrides]
    return Place(base, base / "data.jsonl", SHORT, embedder).train(name, *given)


def test_reads_what_the_run_reads_and_makes_a_table_with_it(base: Path) -> None:
    run = finished(base, "again")
    rows = [path / layout.PREDICTIONS for path in (run, base / "own")]
    assert rows[0].read_bytes() == rows[1].read_bytes()
    better = finished(
        base, "better", "attack/refine=[rerank]", "attack.refine.rerank.proposals=2", declared("queries_20")
    )
    assert metrics_of(better)["cosine"] >= metrics_of(run)["cosine"]
    assert metrics_of(better)["queries"] > metrics_of(run)["queries"] == 0
    compare(read_settings(["columns=access", f"output={base / 'access'}", str(base / "own"), str(better), str(run)]))
    cells = load(base / "access.json")["cells"]
    assert [one["token_f1"]["value"] for one in cells] == [
        metrics_of(one)["token_f1"] for one in (base / "own", better)
    ]
    assert cells[1]["queries_per_target"] == metrics_of(better)["queries_per_target"]


def test_evaluates_without_the_source(base: Path) -> None:
    run = finished(base, "moved")
    (base / "own").rename(base / "away")
    try:
        again = Place(base, base / "data.jsonl", SHORT, OWN).evaluate(run, "evaluated")
        assert (again / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
    finally:
        (base / "away").rename(base / "own")


def test_defended_vectors_are_filled_up_fitted_and_denoised(base: Path) -> None:
    run = finished(base, "denoised", "defense=int8", "denoiser=gaussian", "denoiser.level=1e-6")
    plain = finished(base, "not-denoised", "defense=int8")
    texts = [
        [json.loads(line)["prediction"] for line in (one / layout.PREDICTIONS).read_text().splitlines()]
        for one in (run, plain)
    ]
    assert texts[0] == texts[1]  # of next to no noise, the denoiser takes nothing away
    run = finished(base, "short", "defense=truncation", "defense.dimensions=9", "defense.adaptive=true")
    assert len((run / layout.PREDICTIONS).read_text().splitlines()) == metrics_of(run)["examples"]
    assert load(run / layout.ARTIFACTS / "finished.json") == {"dimension": 28}
    run = finished(base, "int8", "defense=int8", "defense.adaptive=true")
    assert metrics_of(run)["token_f1"] == pytest.approx(metrics_of(base / "own")["token_f1"], abs=10)


SHORTER = ["defense=truncation", "defense.dimensions=9", "defense.adaptive=true", "defense.hypotheses=defended"]


@pytest.mark.parametrize("defense", [[], SHORTER])
def test_searches_sentences_with_a_surrogate_from_its_own_texts(base: Path, defense: list[str]) -> None:
    """Also where the decoder reads more dimensions than the vectors have."""
    search = [f"attack.refine.sentences.{key}" for key in ("surrogate_steps=3", "max_queries=20", "vocabulary=false")]
    given = ["datamodule.limit_test=3", *defense]
    run = finished(base, f"read-{len(defense)}", *given)
    found = finished(base, f"found-{len(defense)}", *given, "attack/refine=[sentences]", *search)
    assert (found / layout.ARTIFACTS / "refine/sentences/surrogate-3.pt").is_file()
    assert 3 < metrics_of(found)["queries"] <= 60
    assert metrics_of(found)["cosine"] >= metrics_of(run)["cosine"]


def test_a_search_that_takes_minutes_reads_few_targets_at_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test and in ``invert``: progress is shown, and kept, by batch."""
    sizes: list[int] = []
    refine = SentenceSearch.refine

    def recorded(self: SentenceSearch, targets: Targets, *given: Any) -> list[Prediction]:
        sizes.append(len(targets.index))
        return refine(self, targets, *given)

    monkeypatch.setattr(SentenceSearch, "refine", recorded)
    monkeypatch.setattr(SentenceSearch, "at_once", 2)
    search = [f"attack.refine.sentences.{key}" for key in ("surrogate_steps=3", "max_queries=3", "vocabulary=false")]
    found = finished(base, "few", "datamodule.limit_test=5", "attack/refine=[sentences]", *search)
    assert sizes == [2, 2, 1]
    sizes.clear()
    attacker = unembed.load(found, trust="support.letters")
    assert len(attacker.invert(attacker.embed(TEXTS[:3]), None, trust_vectors=True)) == 3
    assert sizes[-2:] == [2, 1]
    assert max(sizes) == 2


def test_messages(base: Path) -> None:
    with pytest.raises(InputError, match=r"attack\.source_run=.*owm: not a run directory"):
        finished(base, "x1", f"attack.source_run={base / 'owm'}")
    with pytest.raises(InputError, match=r"attack\.source_run=.*gives vectors of dimension 28, this one"):
        finished(base, "x2", embedder=OTHER)
    place = Place(base, base / "data.jsonl", SHORT, OWN)
    place.train("words", "attack=bag_of_words", steps=2)
    with pytest.raises(InputError, match=r"a trained decoder of vectors is wanted .* that is a run of BagOfWords"):
        finished(base, "x3", f"attack.source_run={base / 'words'}")


def test_a_shipped_attacker_is_named_in_a_configuration() -> None:
    given = ["attack=finished", "attack.source_run=minilm"]
    config = launch.compose("train", given)
    assert json.loads((Path(config.attack.source_run) / layout.RECORD).read_text())["parameters"]
