"""Unpaired translation over its whole path: a secret rotation is read, evaluate and invert, kill -9, messages.

This file is also the program that is killed: ``python test_unpaired.py <directory> <run>``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.files import load, metrics_of
from support.letters import Rotated
from support.own_space import DECODER, OWN, SHORT, TEXTS, VICTIM
from support.places import Place
from support.processes import ROOT, Warm
from unembed import launch
from unembed.attacks.transfer.translation import Translator
from unembed.commands import invert
from unembed.core.errors import InputError
from unembed.runs import layout
from unembed.runs.trust import trusting

QUICK = ["attack.translator.axes=8", "attack.translator.matchings=2"]
KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained decoder on the attacker's own encoder."""
    folder = tmp_path_factory.mktemp("unpaired")
    Place(folder, TEXTS, SHORT, OWN).train("own", *DECODER, steps=60)
    return folder


def attacked(base: Path, name: str, *overrides: str, embedder: dict[str, str] = VICTIM) -> Path:
    given = ["attack=unpaired", f"attack.source_run={base / 'own'}", *QUICK, *overrides]
    with pytest.warns(UserWarning, match="with fewer than 1,000 a map is rarely found"):
        return Place(base, base / "data.jsonl", SHORT, embedder).train(name, *given)


def test_a_secret_rotation_is_read(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", KEY)
    run = attacked(base, "turned", "defense=rotation", "defense.adaptive=true", embedder=OWN)
    found, own = metrics_of(run), metrics_of(base / "own")
    assert found["queries"] == 0
    assert found["rougeL"] >= own["rougeL"] - 5
    about = load(run / layout.ARTIFACTS / "alignment.json")
    assert about["victim"] == len([row for row in _rows(base / "data.jsonl") if row["split"] != "valid"])


def test_evaluates_and_inverts_without_the_source(base: Path, tmp_path: Path) -> None:
    run = attacked(base, "moved")
    (base / "own").rename(base / "away")
    try:
        again = Place(base, base / "data.jsonl", SHORT, VICTIM).evaluate(run, "again")
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


def test_a_fitted_map_is_kept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    fit = Translator.fit
    monkeypatch.setattr(Translator, "fit", lambda self, x, y: fits.append(len(x)) or fit(self, x, y))
    run = attacked(base, "kept")
    attacked(base, "kept", "ckpt_path=last")
    assert len(fits) == 1
    attacked(base, "kept", "ckpt_path=last", "attack.vectors=30")
    assert fits[1:] == [30]
    assert load(run / layout.ARTIFACTS / "alignment.json")["victim"] == 30


def test_messages(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(base, base / "data.jsonl", SHORT, OWN)
    given = ["attack=unpaired", f"attack.source_run={base / 'own'}"]
    with pytest.raises(InputError, match=r"attack.source_run=.*owm: not a run directory \(no directory .*did you mean"):
        place.train("x1", *given, f"attack.source_run={base / 'owm'}")
    with pytest.raises(InputError, match=r"attack.translator.axes=500: the store's vectors, .* too few"):
        place.train("x2", *given, "attack.translator.axes=500")
    with pytest.raises(InputError, match=r"defense.adaptive=false: attack=unpaired .* set defense.adaptive=true"):
        place.train("x3", *given, "defense=noise")
    with pytest.warns(UserWarning, match="is the victim's embedder itself"):
        place.train("x4", *given, *QUICK)


@pytest.mark.slow
def test_a_killed_attack_resumes(base: Path, warm: Warm) -> None:
    killed, batches = base / "killed", base / "killed" / layout.TEST_BATCHES
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths}
    process = warm.start([__file__, str(base), "killed"], environment=environment)
    process.kill_when(lambda: len(list(batches.glob("*.json"))) >= 3)
    assert not (killed / layout.METRICS).exists()
    one_by_one(base, "killed", "ckpt_path=last")
    # In a process with the same sums: the fitted map depends on their last bits.
    assert warm.start([__file__, str(base), "unbroken"], environment=environment).wait() == 0
    assert (killed / layout.PREDICTIONS).read_bytes() == (base / "unbroken" / layout.PREDICTIONS).read_bytes()
    assert not batches.exists()


def one_by_one(base: Path, name: str, *overrides: str) -> Path:
    return attacked(base, name, "datamodule.eval_batch_size=1", *overrides)


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    one_by_one(Path(sys.argv[1]), sys.argv[2])
