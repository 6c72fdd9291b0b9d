"""The report on a claimed output against all inputs there are, and the tables of the benchmark from cells by hand."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_language_model

from embedders.language_model import LanguageModel


@pytest.fixture
def slander(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("slander")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("lm_inversion_tables")


def test_every_input_comes_once(slander: Any) -> None:
    pieces = list(slander.every_input(5, 3, together=7))
    assert [tuple(row) for row in torch.cat(pieces).tolist()] == list(itertools.product(range(5), repeat=3))
    assert max(map(len, pieces)) == 7


def test_a_claim_is_settled_by_trying_all_inputs(slander: Any, tmp_path: Path) -> None:
    model = LanguageModel(str(tiny_language_model(tmp_path / "model")), output_tokens=3, top_k=0, device="cpu")
    everything = torch.cat(list(slander.every_input(VOCABULARY, 2, together=4096)))
    given = model.observe(everything).long()
    claim = given[1234]
    wanted = everything[(given == claim).all(1)][0].tolist()
    assert slander.exhausted(model, claim, 2) == wanted
    outputs = {tuple(row) for row in given.tolist()}
    never = next(row for row in itertools.product(range(VOCABULARY), repeat=3) if row not in outputs)
    assert slander.exhausted(model, torch.tensor(never), 2) is None

    options = argparse.Namespace(
        exhaust=10, iterations=60, restarts=1, lr=0.065, decay=0.9, trials=3, seed=0, max_length=1
    )
    found = slander.report(model, torch.tensor(never), 1, options)
    assert found["input"] is None
    assert not found["settled"]
    assert found["trials"] == 3
    options.exhaust = VOCABULARY
    settled = slander.report(model, torch.tensor(never), 1, options)
    assert settled["settled"]
    assert settled["said"] == "all 60 inputs run: none gives this output"


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


def test_inputs_of_an_inverters_training_are_told_apart(tables: Any) -> None:
    name = {"data": "text", "length": 1, "attack": "logits_inverter"}
    record = cell("lengths", name, ([1], [1], False, 0), ([2], [2], False, 0), ([3], [9], False, 0))
    for row, shown in zip(record["rows"], (True, False, False), strict=True):
        row["shown"] = shown
    every, new = (line for line in tables.everything([record]).splitlines() if line.startswith("| logits_inverter"))
    assert every.split(" | ")[1:3] == ["66.7 (21-94)", "66.7"]
    assert new.split(" | ")[1:3] == ["50.0 (9-91)", "50.0"]


def test_a_line_that_a_kill_cut_short_is_done_again(tables: Any, tmp_path: Path) -> None:
    whole = cell("slander", {"claim": "true", "logits": 0}, ([1], [1], True, 3))
    (tmp_path / "cells.jsonl").write_text(f'{json.dumps(whole)}\n{{"part": "sl', encoding="utf-8")
    assert list(tables.read(tmp_path / "cells.jsonl").values()) == [whole]
    assert tables.read(tmp_path / "none.jsonl") == {}


def test_the_oracle_tells_an_ambiguous_output_from_a_wrong_claim(tables: Any) -> None:
    record = cell("oracle", {"count": 2}, ([1], [1], True, 9), ([2], [3], True, 9), ([4, 5], [4, 6], True, 9))
    # Input 3 gives the output of 2 as well; nothing but 4 5 gives that of 4 5.
    text = tables.everything([record | {"agreeing": [[[1]], [[2], [3]], [[4, 5]]]}])
    assert "| 1 | 50.0 (9-91) | 2 | 50.0 | 1 | 0 |" in text
    assert "| 2 | 0.0 (0-79) | 1 | 100.0 | 0 | 1 |" in text


def test_the_comparison_with_a_loop_over_targets_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    small = {"targets": 2, "iterations": 2, "rounds": 1, "vocabulary": 40, "width": 8, "layers": 1}
    small["threads"] = torch.get_num_threads()
    monkeypatch.setattr("sys.argv", ["soda.py", *(f"--{name}={value}" for name, value in small.items())])
    importlib.import_module("soda").main()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["targets"] == 2
    assert last["ratio"] > 0
