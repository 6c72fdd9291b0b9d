"""benchmarks/prepare_general.py: the text of the shipped attacker."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from support.running_benchmarks import Benchmarks


def write(file: Path, texts: list[str]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def test_a_file_follows_from_its_texts_alone(benchmarks: Benchmarks, tmp_path: Path) -> None:
    sentences = [f"Sentence number {number}." for number in range(2000)]
    passages = [f"Passage number {number}." for number in range(1000)]
    written = []
    for order in (1, -1):
        folder = tmp_path / f"text{order}"
        folder.mkdir()
        write(folder / "chat.jsonl.gz", sentences[::order])
        write(folder / "chat_passages.jsonl.gz", passages[::order])
        output = tmp_path / f"{order}.jsonl"
        benchmarks.run("prepare_general", f"--folder={folder}", f"--output={output}", "--passages=0.25")
        written.append(output.read_text(encoding="utf-8"))
    assert written[0] == written[1]
    rows = [json.loads(line) for line in written[0].splitlines()]
    assert {row["source"] for row in rows} == {"chat"}
    assert {row["text"] for row in rows} >= set(sentences)
    kept = [row for row in rows if row["split"] == "train" and row["text"].startswith("Passage")]
    assert 200 < len(kept) < 300
    held_out = {split: sum(row["split"] == split for row in rows) for split in ("test", "valid")}
    assert 4 <= held_out["test"] <= 24  # 12 expected
    assert 1 <= held_out["valid"] <= 15  # 6 expected
    assert [row["text"] for row in rows][:5] != sentences[:5]


def test_a_folder_without_text_is_named(benchmarks: Benchmarks, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no \*.jsonl.gz"):
        benchmarks.run("prepare_general", f"--folder={tmp_path}", f"--output={tmp_path / 'x.jsonl'}")


def test_derived_texts_are_made_of_training_texts_only(benchmarks: Benchmarks, tmp_path: Path) -> None:
    texts = [
        f"We saw Anna and Bruno in Lisbon in {1950 + n % 70} with {n} cats. It was fun number {n}." for n in range(900)
    ]
    write(tmp_path / "chat.jsonl.gz", texts)
    for name, more in (("plain", []), ("derived", ["--derived"])):
        benchmarks.run("prepare_general", f"--folder={tmp_path}", f"--output={tmp_path / name}", *more)
    plain, derived = (
        [json.loads(line) for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        for name in ("plain", "derived")
    )
    assert [row for row in derived if row["split"] != "train"] == [row for row in plain if row["split"] != "train"]
    training = {row["text"] for row in plain if row["split"] == "train"}
    made = [row["text"] for row in derived if row["split"] == "train" and row["text"] not in training]
    parts = {part for text in training for part in (text[: text.index(" It")], text[text.index("It") :])}
    assert set(made) >= parts  # the two sentences of each text
    rewritten = [text for text in made if text not in parts and text.count("We saw") == 1]
    pattern = re.compile(
        r"We saw (Anna|Bruno|Lisbon) and (Anna|Bruno|Lisbon) in (Anna|Bruno|Lisbon) in (19|20)\d\d "
        r"with \d+ cats\. It was fun number \d+\."
    )
    assert len(rewritten) > 800
    assert all(pattern.fullmatch(text) for text in rewritten)
    joined = [text for text in made if text.count("We saw") > 1]
    assert joined
    assert all(30 <= len(text.split()) <= 110 for text in joined)


def test_folders_of_several_languages_are_merged(benchmarks: Benchmarks, tmp_path: Path) -> None:
    texts = {"en": ["One cat. Two cats sleep here."] * 3, "de": ["Eine Katze. Zwei Katzen schlafen hier."]}
    for language, rows in texts.items():
        (tmp_path / language).mkdir()
        write(tmp_path / language / "chat.jsonl.gz", rows)
    folders = [f"{language}={tmp_path / language}" for language in texts]
    benchmarks.run("prepare_general", "--folder", *folders, f"--output={tmp_path / 'x.jsonl'}", "--derived")
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows if row["language"] == "de"] == texts["de"]  # nothing is made from German
    assert "Two cats sleep here." in [row["text"] for row in rows if row["language"] == "en"]
