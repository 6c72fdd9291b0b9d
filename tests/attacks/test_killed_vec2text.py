"""kill -9 of a real corrector: while its hypotheses are written, and in an evaluation of fifty steps.

This file is also the program that is killed: ``python test_killed_vec2text.py train|evaluate <directory>``.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

import configuration
import evaluate
import train
from attacks.vec2text import corrector
from datamodules.hypotheses import HypothesisStore
from embedders.base import fingerprint_of
from run_directory import layout
from run_directory.trust import trusting
from support import tiny_vec2text
from support.processes import ROOT, Warm

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
WHO, PLACES = ("ada", "bob", "cleo", "dan", "eve", "fay"), ("paris", "rome", "oslo")
TEXTS = [f"{a} {does} {b} in {place} ." for a in WHO for does in ("met", "saw") for b in WHO for place in PLACES]
SHORT = [*tiny_vec2text.FILES, "datamodule.batch_size=16"]
INVERTER = [
    *tiny_vec2text.INVERTER, "attack.decoding.max_new_tokens=8", "attack.decoding.beams=1", "trainer.max_steps=20",
]  # fmt: skip
CORRECTOR = [
    *tiny_vec2text.CORRECTOR, "attack.max_new_tokens=8", "attack.search.steps=1",
    "attack.hypotheses.noise=[0.0,0.2]", "trainer.max_steps=5",
]  # fmt: skip
FIFTY = [
    "attack.search.steps=50", "attack.search.beams=1", "callbacks=iterative_correction",
    "callbacks.iterative_correction.steps=[0,1,50]", "callbacks.iterative_correction.beams=[2]",
    "datamodule.eval_batch_size=1",
]  # fmt: skip


class Letters:
    """Counts of letters."""

    dimension = len(LETTERS)
    max_tokens = 64
    fingerprint = fingerprint_of(kind="letters", used="test_killed_vec2text")

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[0.1 + text.count(letter) for letter in LETTERS] for text in texts])


def trained(base: Path, name: str, cache: str, *overrides: str) -> Path:
    """Train in ``base/name``; hypotheses in parts of eight, so that there are enough to be killed between."""
    place = [f"run_dir={base / name}", f"datamodule.path={base / 'data.jsonl'}", f"cache_dir={base / cache}"]
    config = configuration.compose("train", [*SHORT, *overrides, *place])
    config.embedder = OmegaConf.create({"_target_": "test_killed_vec2text.Letters"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corrector, "HypothesisStore", functools.partial(HypothesisStore, part=8))
        with trusting("test_killed_vec2text"):
            train.train(config)
    return base / name


def corrected(base: Path, name: str, cache: str, *overrides: str) -> Path:
    return trained(base, name, cache, *CORRECTOR, f"attack.inverter_run={base / 'inverter'}", *overrides)


def evaluated(base: Path, run: str, name: str) -> Path:
    lines = [f"run={base / run}", f"output_dir={base / name}", *FIFTY, "trust=test_killed_vec2text"]
    with trusting("test_killed_vec2text"):
        evaluate.evaluate(*configuration.on_run("evaluate", lines))
    return base / name


def killed_when(warm: Warm, due: Callable[[], bool], *arguments: str, seconds: float = 300) -> None:
    """Start this file, and kill -9 it and its children once something is due."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = warm.start([__file__, *arguments], environment={**os.environ, "PYTHONPATH": paths})
    end = time.monotonic() + seconds
    try:
        while not due():
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < end
            time.sleep(0.005)
    finally:
        process.kill()


def outcome(run: Path) -> dict[str, Any]:
    """All that a test says, apart from how long it took."""
    found: dict[str, Any] = {"predictions": (run / layout.PREDICTIONS).read_bytes()}
    found["metrics"] = {**json.loads((run / layout.METRICS).read_text()), "seconds": 0}
    if (run / "corrections.json").exists():
        table = json.loads((run / "corrections.json").read_text())["table"]
        found["table"] = [{**row, "seconds": 0} for row in table]
    return found


@pytest.mark.slow
def test_a_killed_corrector_goes_on(tmp_path: Path, warm: Warm) -> None:
    splits = ["test" if n % 73 == 0 else "valid" if n % 50 == 1 else "train" for n in range(len(TEXTS))]
    rows = [{"text": text, "split": split} for text, split in zip(TEXTS, splits, strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trained(tmp_path, "inverter", "cache", *INVERTER)

    def parts() -> dict[Path, tuple[bytes, int]]:
        found = (tmp_path / "cache" / "hypotheses").glob("*/[0-9]*.jsonl")
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in found}

    killed_when(warm, lambda: len(parts()) >= 8, "train", str(tmp_path))
    stood = parts()
    whole = 2 * -(-splits.count("train") // 8) + -(-splits.count("valid") // 8)  # two sets, and one of validation texts
    assert 8 <= len(stood) < whole
    run = corrected(tmp_path, "corrector", "cache", "ckpt_path=last")
    assert len(parts()) == whole
    assert {path: parts()[path] for path in stood} == stood
    assert outcome(run) == outcome(corrected(tmp_path, "unbroken", "other_cache"))

    out = tmp_path / "out"
    killed_when(warm, lambda: len(list((out / layout.TEST_BATCHES).glob("*.json"))) >= 3, "evaluate", str(tmp_path))
    assert not (out / layout.METRICS).exists()
    assert 3 <= len(list((out / layout.TEST_BATCHES).glob("*.json"))) < 2 * splits.count("test")
    again = outcome(evaluated(tmp_path, "corrector", "out"))
    assert again == outcome(evaluated(tmp_path, "corrector", "unbroken_out"))
    assert {row["step"] for row in again["table"]} == {0, 1, 50}
    assert not (out / layout.TEST_BATCHES).exists()


if __name__ == "__main__":
    if sys.argv[1] == "train":
        corrected(Path(sys.argv[2]), "corrector", "cache")
    else:
        evaluated(Path(sys.argv[2]), "corrector", "out")
