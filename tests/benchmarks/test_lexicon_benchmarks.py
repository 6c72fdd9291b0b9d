"""Benchmarks of lexicon search, each to its end at its smallest size."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from support import tiny_settings
from support.files import read_lines, write_lines
from support.places import Place
from support.running_benchmarks import Benchmarks
from unembed.attacks.refine.lexicon.language import Language

SMALL = ["attack/refine=[lexicon]", "attack.refine.lexicon.vocabulary=false", "attack.refine.lexicon.numbers=0"]
LINES = ["nearest", "attack", "attack + lexicon", "nearest + lexicon", "attack + reranking"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of attack=geia, hardly trained."""
    texts = [f"we sell {thing} in {place}." for thing in ("tea", "milk", "snow") for place in ("rome", "oslo", "lima")]
    place = Place(tmp_path_factory.mktemp("lexicon"), texts, [*tiny_settings.FILES, "attack.backbone.vocabulary=280"])
    return place.train("geia", *tiny_settings.GEIA, "attack.decoding.max_new_tokens=8", steps=1)


@pytest.mark.slow
def test_cost_of_a_search(benchmarks: Benchmarks, run: Path) -> None:
    small = ["--targets=1", "--block=1", "--threads=1", *SMALL]
    found = benchmarks.result("lexicon_cost", f"--run={run}", *small)
    assert 0 < found["embedder_share"] < 1
    assert 0 < found["decoder_share"] < 1  # the search asks the attack's decoder, as it does in a test
    assert found["texts"] > 1
    assert min(found["ratio"], found["ratio_to_embedder"]) > 0


def test_curves_are_completed_and_drawn(benchmarks: Benchmarks, run: Path, tmp_path: Path) -> None:
    points = tmp_path / "curve.json"
    for budgets in ("1", "3"):  # the second time adds what is missing
        command = [f"--run={run}", f"--output={points}", "--targets=2", "--budgets", "1", budgets]
        command += ["--other", "Vec2Text", "1.5:70", "--", *SMALL]
        assert benchmarks.result("lexicon_curve", *command)["targets"] == 2
    rows = read_lines(points)
    assert sorted({row["line"] for row in rows}) == sorted(LINES)
    assert [row["budget"] for row in rows if row["line"] == "nearest + lexicon"] == [1, 3]
    assert all(row["queries"] <= row["budget"] for row in rows if "lexicon" in row["line"])
    assert all(row["exact"][1] == 2 for row in rows)
    drawn = ElementTree.parse(tmp_path / "curve.svg")
    assert "Vec2Text" in {node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")}


def test_first_names_are_replaced_by_unknown_ones(
    benchmarks: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lexicon = tmp_path / "run" / "artifacts" / "refine" / "lexicon"
    lexicon.mkdir(parents=True)
    Language.count(["we met ada in rome."]).save(lexicon / "language.json")
    rows = [
        {"reference": "We met Ada in Rome.", "spans": [[7, 10, "first_name"], [14, 18, "city"]]},
        {"reference": "It rains.", "spans": []},
    ]
    write_lines(tmp_path / "run" / "predictions.jsonl", rows)
    given: list[set[str]] = []
    unknown = [f"N{number:03}" for number in range(200)]
    script = benchmarks.load("prepare_names")
    monkeypatch.setattr(script, "unknown_names", lambda known: given.append(known) or unknown)
    benchmarks.run("prepare_names", f"--run={tmp_path / 'run'}", f"--output={tmp_path / 'names.jsonl'}")
    (found,) = read_lines(tmp_path / "names.jsonl")
    begin, end, kind = found["spans"][0]
    assert found["text"][begin:end] in unknown
    assert found["text"] == f"We met {found['text'][begin:end]} in Rome."
    assert (kind, {"ada", "hospital"} <= given[0]) == ("first_name", True)
