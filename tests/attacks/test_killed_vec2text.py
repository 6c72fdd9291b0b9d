"""kill -9 of a real corrector: while its hypotheses are written, and in an evaluation of fifty steps.

This file is also the program that is killed: ``python test_killed_vec2text.py train|evaluate <directory>``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import tiny_settings
from support.files import load, metrics_of, write_lines
from support.places import Place
from support.processes import ROOT, Warm
from unembed.attacks.vec2text import corrector
from unembed.datamodules.hypotheses import HypothesisStore
from unembed.runs import layout

WHO, PLACES = ("ada", "bob", "cleo", "dan", "eve", "fay"), ("paris", "rome", "oslo")
TEXTS = [f"{a} {does} {b} in {place} ." for a in WHO for does in ("met", "saw") for b in WHO for place in PLACES]
SHORT = [*tiny_settings.FILES, "datamodule.batch_size=16"]
INVERTER = [
    *tiny_settings.INVERTER, "attack.decoding.max_new_tokens=8", "attack.decoding.beams=1",
]  # fmt: skip
CORRECTOR = [
    *tiny_settings.CORRECTOR, "attack.max_new_tokens=8", "attack.search.steps=1",
    "attack.hypotheses.noise=[0.0,0.2]",
]  # fmt: skip
FIFTY = [
    "attack.search.steps=50", "attack.search.beams=1", "callbacks=iterative_correction",
    "callbacks.iterative_correction.steps=[0,1,50]", "callbacks.iterative_correction.beams=[2]",
    "datamodule.eval_batch_size=1",
]  # fmt: skip


def place(base: Path, cache: str = "cache") -> Place:
    made = Place(base, base / "data.jsonl", SHORT, {"_target_": "support.letters.LettersAndSigns"})
    made.cache = base / cache
    return made


def corrected(base: Path, name: str, cache: str, *overrides: str) -> Path:
    """Hypotheses in parts of eight, so that there are enough to be killed between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corrector, "HypothesisStore", functools.partial(HypothesisStore, part=8))
        given = [*CORRECTOR, f"attack.inverter_run={base / 'inverter'}", *overrides]
        return place(base, cache).train(name, *given, steps=5)


def evaluated(base: Path, run: str, name: str) -> Path:
    return place(base).evaluate(base / run, name, *FIFTY)


def killed_when(warm: Warm, due: Callable[[], bool], *arguments: str) -> None:
    """Start this file, and kill -9 it and its children once something is due."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    warm.start([__file__, *arguments], environment={**os.environ, "PYTHONPATH": paths}).kill_when(due)


def outcome(run: Path) -> dict[str, Any]:
    """All that a test says, apart from how long it took."""
    found = {"predictions": (run / layout.PREDICTIONS).read_bytes(), "metrics": metrics_of(run)}
    if (run / "corrections.json").exists():
        found["table"] = [{**row, "seconds": 0} for row in load(run / "corrections.json")["table"]]
    return found


@pytest.mark.slow
def test_a_killed_corrector_resumes(tmp_path: Path, warm: Warm) -> None:
    splits = ["test" if n % 73 == 0 else "valid" if n % 50 == 1 else "train" for n in range(len(TEXTS))]
    rows = [{"text": text, "split": split} for text, split in zip(TEXTS, splits, strict=True)]
    write_lines(tmp_path / "data.jsonl", rows)
    place(tmp_path).train("inverter", *INVERTER, steps=20)

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
