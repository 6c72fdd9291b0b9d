"""The tables of the benchmarks of language models from cells by hand, and each script to its end."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import read_lines, write_lines
from support.running_benchmarks import Benchmarks


@pytest.fixture
def tables(benchmarks: Benchmarks) -> Any:
    return benchmarks.load("lm_inversion_tables")


def test_every_input_comes_once_and_the_comparison_with_a_loop_runs(benchmarks: Benchmarks) -> None:
    blocks = list(benchmarks.load("lm_inversion").every_input(5, 3, together=7))
    assert [tuple(row) for row in torch.cat(blocks).tolist()] == list(itertools.product(range(5), repeat=3))
    assert max(map(len, blocks)) == 7
    small = {"targets": 2, "iterations": 2, "rounds": 1, "vocabulary": 40, "width": 8, "layers": 1}
    small["threads"] = torch.get_num_threads()
    found = benchmarks.result("soda", *(f"--{name}={value}" for name, value in small.items()))
    assert found["targets"] == 2
    assert found["ratio"] > 0


def cell(part: str, name: dict[str, Any], *rows: tuple[list[int], list[int], bool, int]) -> dict[str, Any]:
    keys = ("true", "found", "verified", "passes")
    return {"part": part, "name": name, "seconds": 1.0, "rows": [dict(zip(keys, row, strict=True)) for row in rows]}


def test_tables_cut_all_attacks_at_one_cost(tables: Any) -> None:
    name = {"data": "random", "length": 2, "passes": 100}
    records = [
        cell("lengths", name | {"attack": "soda"}, ([1, 2], [1, 2], True, 90), ([3, 4], [3, 4], True, 110)),
        cell("lengths", name | {"attack": "gcg"}, ([1, 2], [1, 9], True, 40), ([3, 4], [9, 4], False, 100)),
    ]
    text = tables.everything(records)
    soda, gcg = (next(line for line in text.splitlines() if line.startswith(f"| {one} ")) for one in ("soda", "gcg"))
    # The second input of soda came back, but for 110 passes.
    assert soda.split(" | ")[1:6] == ["50.0 (9-91)", "100.0", "0.0", "100", "-"]
    assert gcg.split(" | ")[1:6] == ["0.0 (0-66)", "50.0", "100.0", "70", "-"]
    assert tables.plot(records).count("<polyline") == 2


def test_inputs_of_an_inverters_training_are_distinguished(tables: Any) -> None:
    name = {"data": "text", "length": 1, "attack": "logits_inverter"}
    record = cell("lengths", name, ([1], [1], False, 0), ([2], [2], False, 0), ([3], [9], False, 0))
    for row, shown in zip(record["rows"], (True, False, False), strict=True):
        row["shown"] = shown
    every, new = (line for line in tables.everything([record]).splitlines() if line.startswith("| logits_inverter"))
    assert every.split(" | ")[1:3] == ["66.7 (21-94)", "66.7"]
    assert new.split(" | ")[1:3] == ["50.0 (9-91)", "50.0"]


def test_a_line_that_a_kill_cut_short_is_done_again(benchmarks: Benchmarks, tmp_path: Path) -> None:
    rows_of = benchmarks.load("measuring").Rows
    whole = cell("slander", {"claim": "true", "logits": 0}, ([1], [1], True, 3))
    (tmp_path / "cells.jsonl").write_text(f'{json.dumps(whole)}\n{{"part": "sl', encoding="utf-8")
    rows = rows_of(tmp_path / "cells.jsonl")
    assert rows == [whole]
    rows.add(whole)
    assert rows_of(tmp_path / "cells.jsonl") == [whole, whole]
    assert rows_of(tmp_path / "none.jsonl") == []


def test_the_oracle_tells_an_ambiguous_output_from_a_wrong_claim(tables: Any) -> None:
    record = cell("oracle", {"count": 2}, ([1], [1], True, 9), ([2], [3], True, 9), ([4, 5], [4, 6], True, 9))
    # Input 3 gives the output of 2 as well; nothing but 4 5 gives that of 4 5.
    text = tables.everything([record | {"agreeing": [[[1]], [[2], [3]], [[4, 5]]]}])
    assert "| 1 | 50.0 (9-91) | 2 | 50.0 | 1 | 0 |" in text
    assert "| 2 | 0.0 (0-79) | 1 | 100.0 | 0 | 1 |" in text


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stories") / "stories.jsonl"
    rows = []
    for split, animals in (("train", ["cat", "dog", "cow", "hen", "fox"]), ("test", ["bird", "bear", "wolf"])):
        for animal, colour in itertools.product(animals, ["red", "blue", "green", "black"]):
            text = f"One day, a {colour} {animal} saw the moon and was very happy. The {animal} ran home to its mother."
            rows.append({"split": split, "text": text})
    write_lines(path, rows)
    return path


@pytest.fixture
def model(benchmarks: Benchmarks, stories: Path) -> Path:
    """A model of a few steps, trained by the first test that asks for it."""
    folder = stories.parent / "model"
    if not folder.exists():
        shape = ["--layers=1", "--width=16", "--heads=2", "--positions=64", "--vocabulary=280", "--window=24"]
        found = benchmarks.result(
            "train_language_model", str(stories), f"--output={folder}", "--steps=3", "--batch-size=4", *shape
        )
        assert (found["steps"], found["vocabulary"]) == (3, 280)
        assert 0 < found["validation_loss"] < 2 * math.log(280)
    return folder


@pytest.mark.slow
def test_every_part_of_the_comparison_of_attacks(
    benchmarks: Benchmarks, model: Path, stories: Path, tmp_path: Path
) -> None:
    cells = tmp_path / "cells.jsonl"
    command = [f"--model={model}", f"--texts={stories}", f"--output={cells}", f"--threads={torch.get_num_threads()}"]
    small = [
        "--passes=4", "--long-passes=4", "--count=1", "--small-count=1", "--oracle-count=1", "--inverter-steps=1",
        "--iterations-share=0.001", "--longest=1",
    ]  # fmt: skip
    benchmarks.run("lm_inversion", *command, *small)
    records = read_lines(cells)
    parts = benchmarks.load("lm_inversion").CELLS
    assert {record["part"] for record in records} == {*parts, "inverter"}
    assert all(record["rows"] for record in records if record["part"] != "inverter")
    assert benchmarks.printed.endswith(f"plot: {cells.with_suffix('.svg')}\n")
    assert cells.with_suffix(".svg").read_text(encoding="utf-8").startswith("<svg")
    before = cells.read_bytes()
    benchmarks.run("lm_inversion", *command, *small, "--parts", "wrong_length", "long")  # nothing is done again
    assert cells.read_bytes() == before


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("captions") / "captions.jsonl"
    people, verbs = {"men": "Männer", "women": "Frauen", "boys": "Jungen"}, {"cook": "kochen", "sing": "singen"}
    rows = [
        {"split": split, "en": f"Two {one} {do}.", "de": f"Zwei {other} {machen}."}
        for split, count in (("train", 3), ("test", 1))
        for (one, other), (do, machen) in itertools.product(list(people.items())[:count], verbs.items())
    ]
    write_lines(path, rows)
    return path


def test_a_translator_is_trained(benchmarks: Benchmarks, captions: Path, tmp_path: Path) -> None:
    small = ["--steps=2", "--layers=1", "--width=64", "--vocabulary=300", "--batch-size=4", "--beams=1"]
    output = tmp_path / "de-en"
    found = benchmarks.result(
        "train_translator", str(captions), "--source=de", "--target=en", f"--output={output}", *small
    )
    assert (found["source"], found["target"], found["steps"]) == ("de", "en", 2)
    assert found["translated"] <= 100
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in output.iterdir()}
