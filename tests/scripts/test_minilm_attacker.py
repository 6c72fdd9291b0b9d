"""The shipped attacker of all-MiniLM-L6-v2: it reads short everyday sentences, and holds no text and no paths."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from support.files import read_lines
from unembed import launch
from unembed.audit.exposure import FREE, classes
from unembed.commands import invert
from unembed.embedders.minilm import MiniLM
from unembed.launch.locations import SHIPPED
from unembed.metrics.tokens import token_overlap
from unembed.scoring.recognisers import LABELS

MINILM = SHIPPED / "minilm"
TEXTS = [
    "I have two cats.", "My sister lives in London.", "What time does the train leave?", "The weather is nice today.",
    "I want to book a table for four.", "She works as a nurse.", "Please call me tomorrow.", "He lost his credit card.",
]  # fmt: skip


def test_short_sentences_come_back_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("mine.npy", MiniLM().embed(TEXTS).numpy())
    invert.invert(*launch.on_run("invert", ["vectors=mine.npy", f"cache_dir={tmp_path / 'cache'}"]))
    found = [row["text"] for row in read_lines(tmp_path / "mine.npy.texts.jsonl")]
    scores = [token_overlap(text, read).f1 for text, read in zip(TEXTS, found, strict=True)]
    assert np.mean(scores) > 60


def test_it_holds_no_path_and_its_scores_no_text() -> None:
    for file in ("config.yaml", "record.json", "data.json"):
        assert not re.search(r"/(tmp|home|root|work|Users)\b", (MINILM / file).read_text(encoding="utf-8"))
    sources = set()
    for line in (MINILM / "calibration.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert {"source", "words", "cosine", "f1", "exact"} <= row.keys()
        assert row.keys() <= {"source", "words", "cosine", "f1", "exact", "classes", "kinds"}
        for group, names in (("classes", {*classes().values(), FREE}), ("kinds", set(LABELS))):
            assert row.get(group, {}).keys() <= names
        sources.add(row["source"])
    assert len(sources) == 53
    assert (MINILM / "checkpoints" / "last.ckpt").stat().st_size < 25e6
