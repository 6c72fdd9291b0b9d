"""The benchmark of attacks with few known texts: its rows, its ratios, and that it measures only what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.files import read_lines
from support.own_space import DECODER, OWN, SHORT, TEXTS
from support.places import Place
from support.running_benchmarks import Benchmarks
from support.tiny_models import pretrained_model
from unembed.runs import layout
from unembed.runs.trust import trusting

PAIRS, TESTS = (2, 40), 12
EACH = {"paper", "map", "ours", "teia"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained decoder on the attacker's own encoder, and a model whose hidden states are attacked."""
    folder = tmp_path_factory.mktemp("alignment")
    pretrained_model(folder / "victim", "gpt2", TEXTS)
    Place(folder, TEXTS, SHORT, OWN).train("own", *DECODER, steps=20)
    return folder


def measured(benchmarks: Benchmarks, base: Path, output: Path, *more: str) -> dict[tuple[int, str], dict[str, Any]]:
    """The lines of the table."""
    given = [
        f"--source={base / 'own'}", "--data", f"letters={base / 'data.jsonl'}", f"--output={output}",
        "--pairs", *map(str, PAIRS), f"--texts={TESTS}", "--public=60", "--steps=1",
        "--victim", "embedder=transformer", f"embedder.model={base / 'victim'}", "embedder.max_tokens=40", *more,
    ]  # fmt: skip
    with trusting("support.letters"):
        found = benchmarks.result("alignment", *given)
    return {(row["pairs"], row["attack"]): row for row in found["rows"]}


def test_each_attack_and_number_of_known_texts_has_a_row(benchmarks: Benchmarks, base: Path, tmp_path: Path) -> None:
    output = tmp_path / "alignment.jsonl"
    rows = measured(benchmarks, base, output)
    assert rows.keys() == {(0, "mean"), (0, "ceiling"), *((n, attack) for n in PAIRS for attack in EACH)}
    scores = {(line["pairs"], line["attack"]): line["scores"] for line in read_lines(output)}
    for key, row in rows.items():
        assert len(scores[key]) == TESTS
        assert row["rougeL"] == pytest.approx(np.mean(scores[key]), abs=1e-3)
        assert row["low"] <= row["rougeL"] <= row["high"]
    for n in PAIRS:
        assert "ratio" not in rows[n, "paper"]
        for attack in EACH - {"paper"}:
            row = rows[n, attack]
            ratio = np.mean(scores[n, attack]) / np.mean(scores[n, "paper"])
            assert row["ratio"] == pytest.approx(ratio, abs=1e-3)
            assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert (tmp_path / f"teia_letters_{n}" / layout.PREDICTIONS).is_file()


def test_only_what_is_missing_is_measured(benchmarks: Benchmarks, base: Path, tmp_path: Path) -> None:
    output = tmp_path / "alignment.jsonl"
    only = ["--attacks", "paper", "ours"]
    first = measured(benchmarks, base, output, *only)
    lines = output.read_text().splitlines()
    output.write_text("\n".join(lines[:-1]) + "\n")
    assert measured(benchmarks, base, output, *only) == first
    assert benchmarks.printed.count(f"letters {PAIRS[-1]} ours: ") == 1
    assert f"letters {PAIRS[0]} ours: " not in benchmarks.printed
    assert list(map(json.loads, output.read_text().splitlines())) == list(map(json.loads, lines))
    assert measured(benchmarks, base, output, *only) == first
    assert "ours: " not in benchmarks.printed
