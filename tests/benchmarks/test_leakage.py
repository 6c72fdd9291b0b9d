"""benchmarks/prepare_leakage.py and leakage.py: texts cut to lengths, words counted, the law fitted."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import yaml

from support.running_benchmarks import Benchmarks

TEXT = "the patient is a nurse from the old town who came with a fever and a cough on monday"


def jsonl(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_texts_are_cut_at_words_and_held_out(benchmarks: Benchmarks, tmp_path: Path) -> None:
    cut = benchmarks.load("prepare_leakage").cut
    assert cut("Embeddings leak", [1, 2, 3, 4, 9]) == {4: "Embeddings"}  # em ##bed ##ding ##s leak
    assert cut("We saw it.  Then", [2, 4, 5]) == {2: "We saw", 4: "We saw it.", 5: "We saw it.  Then"}
    tested = jsonl(tmp_path / "notes.jsonl", [{"text": "too short"}, {"text": TEXT}])
    known = jsonl(tmp_path / "chat.jsonl", [{"text": TEXT}, *({"text": f"number {n} of them"} for n in range(9))])
    output = tmp_path / "leakage.jsonl"
    benchmarks.run("prepare_leakage", "--known", known, "--tested", tested, "--lengths", "4", "8", f"--output={output}")
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    test = {row["tokens"]: row["text"] for row in rows if row["split"] == "test"}
    assert test == {4: "the patient is a", 8: "the patient is a nurse from the old"}
    training = [row["text"] for row in rows if row["split"] == "train"]
    assert sorted(training) == [f"number {n} of them" for n in range(9)]  # the long one is a test text at any length


def test_words_by_chance_are_taken_off(benchmarks: Benchmarks) -> None:
    leakage = benchmarks.load("leakage")
    pairs = [("The nurse has a fever", "a nurse, a cough"), ("A fever in London", "The fever"), ("Ships sail", "cough")]
    cell = leakage.scored("a, 4 tokens", 384, 16, 4, pairs)
    # nurse; fever; none. Of "nurse fever" another prediction has one word (fever); of the others' words, none has any.
    assert cell.content == pytest.approx(2.0)
    assert cell.words == pytest.approx((1 - 1 / 2 + 1 + 0) / 3)
    assert cell.scores["content_word_recovery"] == pytest.approx(100 * 2 / 6)
    assert cell.scores["parts_recovered"] == 0  # London
    assert cell.scores["token_f1"] == pytest.approx(100 * (2 * 2 / 9 + 2 * 1 / 6) / 3)


def test_a_law_is_found_again_and_predicts(benchmarks: Benchmarks) -> None:
    leakage = benchmarks.load("leakage")

    def words(d: float, b: float, n: float) -> float:
        room = 4 * d / 384 * (1 - math.exp(-b / 1.5))
        return room * (1 - math.exp(-n / room))

    cells = [
        leakage.Cell(f"{d} {b}, {n}", d, b, n, 9, float(n), words(d, b, n) * (1 + wrong), (0.0, 0.0), {})
        for (d, b), wrong in zip([(384, 16), (384, 1), (96, 16), (96, 2), (24, 4), (192, 1)],
                                 [0.02, -0.02, 0.02, -0.02, 0.02, -0.02], strict=True)
        for n in (2, 8, 30)
    ]  # fmt: skip
    laws = {law.form: law for law in (leakage.Law.of(form, cells) for form in leakage.FORMS)}
    law = laws["saturating"]
    assert law.r2 > 0.99
    assert law.left_out == min(one.left_out for one in laws.values())
    assert math.exp(law.values[0]) == pytest.approx(4, rel=0.05)
    middle, low, high = law.predict(256, 3, 20)
    assert low < words(256, 3, 20) < high
    assert middle == pytest.approx(words(256, 3, 20), rel=0.05)


def test_runs_become_rows_and_a_picture(benchmarks: Benchmarks, tmp_path: Path) -> None:
    for d in (24, 96, 384):
        for bits in (1, 16):
            run = tmp_path / f"{d}-{bits}"
            run.mkdir()
            defense = {"truncation": {"_target_": "x.truncation.Truncation", "dimensions": d}, "int8": {"bits": bits}}
            config = {"choices": {"embedder": "minilm"}, "defense": defense, "attack": {"aligner": {}}}
            (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
            rows = [
                {"reference": " ".join(f"w{k}" for k in range(length * i, length * (i + 1))),
                 "prediction": " ".join(f"w{k}" for k in range(length * i, length * i + d * bits // 400 + 1)),
                 "attributes": {"tokens": str(length)}}
                for length in (4, 20) for i in range(4)
            ]  # fmt: skip
            jsonl(run / "predictions.jsonl", [dict(row) for row in rows])
    csv_file, svg = tmp_path / "rows.csv", tmp_path / "picture.svg"
    runs = sorted(str(path) for path in tmp_path.iterdir() if path.is_dir())
    for _ in range(2):  # the second time replaces the lines of the first
        found = benchmarks.result("leakage", *runs, f"--rows={csv_file}", f"--picture={svg}", "--commit=0123456")
    assert found["cells"] == 12
    with csv_file.open(encoding="utf-8", newline="") as file:
        lines = {(row["row"], row["metric"]): row["value"] for row in csv.DictReader(file)}
    assert lines["minilm, 24 dimensions, 1 bits, 4 tokens", "words_recovered"] == "1.000"
    assert "minilm: saturating" in {row for row, _ in lines}
    assert svg.read_text(encoding="utf-8").startswith("<svg")
