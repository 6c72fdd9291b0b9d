"""Few-shot alignment over its whole path: known pairs only, evaluate and invert, kill -9 and resume, messages.

This file is also the program that is killed: ``python test_algen.py <directory>``.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.files import load, metrics_of, write_lines
from support.letters import Letters, Rotated
from support.own_space import DECODER, OWN, SHORT, TEXTS, VICTIM
from support.places import Place
from support.processes import ROOT, Warm
from unembed import launch
from unembed.attacks.transfer.algen import ALGEN
from unembed.attacks.transfer.aligners import LeaveOneOut
from unembed.commands import invert
from unembed.core.errors import InputError
from unembed.runs import layout
from unembed.runs.trust import trusting


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained decoder on the attacker's own encoder."""
    folder = tmp_path_factory.mktemp("algen")
    Place(folder, TEXTS, SHORT, OWN).train("own", *DECODER, steps=60)
    return folder


def attacked(base: Path, name: str, pairs: int, *overrides: str) -> Path:
    given = ["attack=algen", f"attack.source_run={base / 'own'}", f"datamodule.limit_train={pairs}", *overrides]
    return Place(base, base / "data.jsonl", SHORT, VICTIM).train(name, *given)


def test_known_texts_are_all_that_is_asked(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    embed = Rotated.embed
    monkeypatch.setattr(Rotated, "embed", lambda self, texts: asked.extend(texts) or embed(self, texts))
    run = attacked(base, "thirty", 30, f"cache_dir={base / 'fresh'}")
    rows = [json.loads(line) for line in (base / "data.jsonl").read_text().splitlines()]
    tests = {row["text"] for row in rows if row["split"] == "test"}
    predictions = {json.loads(line)["prediction"] for line in (run / layout.PREDICTIONS).read_text().splitlines()}
    training = [row["text"] for row in rows if row["split"] == "train"]
    assert {text for text in asked if text in training} - predictions == set(training[:30]) - predictions
    assert set(asked) - set(training) <= tests | predictions  # what remains is asked for the score, not by the attack
    assert metrics_of(run)["queries"] == 0
    about = load(run / layout.ARTIFACTS / "alignment.json")
    assert about["pairs"] == 30
    assert 0 < about["error"] < 0.5


def test_reads_as_much_as_the_decoder_with_its_own_vectors(base: Path) -> None:
    """The two spaces are linear images of each other, so a hundred pairs are enough, and two are not."""
    runs = {pairs: attacked(base, f"with{pairs}", pairs, "attack.rounds=0") for pairs in (2, 100)}
    errors = {pairs: load(run / layout.ARTIFACTS / "alignment.json")["error"] for pairs, run in runs.items()}
    assert errors[100] < 0.01 < 0.3 < errors[2]
    read = {name: [row["prediction"] for row in _rows(run / layout.PREDICTIONS)] for name, run in runs.items()}
    own = [row["prediction"] for row in _rows(base / "own" / layout.PREDICTIONS)]
    same = {pairs: sum(map(operator.eq, found, own)) / len(own) for pairs, found in read.items()}
    assert same[2] < same[100]
    assert same[100] > 0.8


def test_evaluates_and_inverts_without_the_source(base: Path, tmp_path: Path) -> None:
    run = attacked(base, "moved", 100)
    (base / "own").rename(base / "away")
    try:
        place = Place(base, base / "data.jsonl", SHORT, VICTIM)
        again = place.evaluate(run, "again")
        assert (again / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
        np.save(tmp_path / "v.npy", Rotated().embed(TEXTS[:5]).numpy())
        with trusting("support.letters"):
            given = [f"run={run}", f"vectors={tmp_path / 'v.npy'}", "trust=support.letters"]
            invert.invert(*launch.on_run("invert", given))
        expected = {row["index"]: row["prediction"] for row in _rows(run / layout.PREDICTIONS)}
        found = _rows(tmp_path / "v.npy.texts.jsonl")
        assert found[0]["text"] == expected[0]  # the first text is the first test text
    finally:
        (base / "away").rename(base / "own")


def test_warns_where_the_decoder_has_seen_the_test_texts(base: Path, recwarn: pytest.WarningsRecorder) -> None:
    rows = _rows(base / "data.jsonl")
    seen = [row["text"] for row in rows if row["split"] == "train"][-2:]
    tests = [*(str(text).upper() for text in seen), "nobody has seen this"]
    known = [row for row in rows if row["split"] == "train"][:5]
    path = write_lines(base / "seen.jsonl", [*known, *({"text": text, "split": "test"} for text in tests)])
    attacked(base, "seen", 5, f"datamodule.path={path}", "attack.rounds=0")
    said = [str(one.message) for one in recwarn if "has seen them" in str(one.message)]
    assert len(said) == 1
    assert "own: 2 of 3 test texts are among its training texts" in said[0]


def test_the_papers_map(base: Path) -> None:
    run = attacked(base, "paper", 100, "attack/aligner=pseudo_inverse")
    assert load(run / layout.ARTIFACTS / "alignment.json")["pairs"] == 100
    assert metrics_of(run)["rougeL"] > 0


def test_messages(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"attack.source_run=.*owm: not a run directory \(no directory .*did you mean"):
        attacked(base, "x1", 5, f"attack.source_run={base / 'owm'}")
    aligned = attacked(base, "aligned", 5)
    with pytest.raises(InputError, match=r"attack.source_run=.*trained decoder of vectors .* is a run of ALGEN"):
        attacked(base, "x2", 5, f"attack.source_run={aligned}")
    empty = write_lines(tmp_path / "tests.jsonl", [{"text": TEXTS[0], "split": "test"}])
    with pytest.raises(InputError, match=r"no training text: .* datamodule.limit_train"):
        attacked(base, "x3", 5, f"datamodule.path={empty}")
    attack = ALGEN(str(base / "own"), LeaveOneOut(), str(tmp_path))
    attack.connect(aligned / layout.ARTIFACTS, None, from_checkpoint=True)
    with pytest.raises(InputError, match=rf"maps vectors of dimension {Rotated.dimension}, .* {Letters.dimension}"):
        attack.restore(None, Letters.dimension)


def test_its_own_embedder_is_warned_of(base: Path) -> None:
    given = ["attack=algen", f"attack.source_run={base / 'own'}", "datamodule.limit_train=5"]
    with pytest.warns(UserWarning, match="is the victim's embedder itself"):
        Place(base, base / "data.jsonl", SHORT, OWN).train("same", *given)


@pytest.mark.slow
def test_a_killed_attack_resumes(base: Path, warm: Warm) -> None:
    killed, batches = base / "killed", base / "killed" / layout.TEST_BATCHES
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = warm.start([__file__, str(base)], environment={**os.environ, "PYTHONPATH": paths})
    process.kill_when(lambda: len(list(batches.glob("*.json"))) >= 3)
    assert not (killed / layout.METRICS).exists()
    stood = {path: path.stat().st_mtime_ns for path in batches.glob("*.json")}
    assert len(stood) >= 3
    one_by_one(base, "killed", "ckpt_path=last")
    whole = one_by_one(base, "unbroken")
    assert (killed / layout.PREDICTIONS).read_bytes() == (whole / layout.PREDICTIONS).read_bytes()
    assert not batches.exists()


def one_by_one(base: Path, name: str, *overrides: str) -> Path:
    return attacked(base, name, 60, "datamodule.eval_batch_size=1", *overrides)


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    one_by_one(Path(sys.argv[1]), "killed")
