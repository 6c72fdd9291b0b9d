"""Mistakes on the command line are answered before anything heavy is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import configuration
from configuration.checking import check_written
from configuration.composing import survey
from configuration.signatures import UNKNOWN, imported, written
from configuration.source_files import find, source_path
from support.processes import ROOT

TARGETS = sorted(
    {
        target
        for file in (ROOT / "configs").rglob("*.yaml")
        for target in re.findall(r"_target_: (\S+)", file.read_text(encoding="utf-8"))
    }
)
HEAVY = ("torch", "lightning", "transformers", "scipy", "torchmetrics")
WRAPPED = f"""
import atexit, runpy, sys
atexit.register(lambda: print("imported", *(name for name in {HEAVY} if name in sys.modules)))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def answer(script: str, *arguments: str, folder: Path) -> list[str]:
    """What a script says of mistakes, which it must do without an import of HEAVY and with code 2."""
    done = subprocess.run(
        [sys.executable, "-c", WRAPPED, str(ROOT / f"{script}.py"), *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "imported\n"), done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (["embedder=minilmm"], ["embedder=minilmm: did you mean minilm?"]),
        (
            ["attack.learning_rat=1", "attack.label_smoothing=2"],
            [
                "attack.learning_rat: unknown key, valid: backbone, decoding, label_smoothing, optimizer, prefix",
                "attack.label_smoothing=2: must be less than 1.0",
            ],
        ),
        (["attack.label_smoothing=2"], ["attack.label_smoothing=2: must be less than 1.0"]),
        (
            ["attack=llm", "attack/adapter=lora", "attack.adapter.rnk=3", "attack.adapter.rank=0"],
            ["attack.adapter.rnk: unknown key, did you mean rank?", "attack.adapter.rank=0: must be at least 1"],
        ),
        (
            ["trainer.enable_autolog_hparams=true", "trainer.max_steps=many"],
            [
                "trainer.enable_autolog_hparams: not set by the chosen option; to set it, write "
                "+trainer.enable_autolog_hparams=true",
                "trainer.max_steps=many: must be an integer",
            ],
        ),
        (["defense.levl=1"], ["defense.levl: unknown key, valid: adaptive, hypotheses"]),
    ],
)
def test_training_answers_mistakes_without_heavy_imports(
    tmp_path: Path, overrides: list[str], messages: list[str]
) -> None:
    assert answer("train", *overrides, folder=tmp_path) == messages
    assert list(tmp_path.iterdir()) == []


def test_scripts_on_a_run_answer_mistakes_without_heavy_imports(tmp_path: Path) -> None:
    config = configuration.plain(configuration.compose("train", ["run_dir=run"]))
    (tmp_path / "run").mkdir()
    OmegaConf.save(OmegaConf.create(config), tmp_path / "run" / "config.yaml")
    amended = ["run=run", "trainer=default", "trainer.max_stps=1", "attack.decoding.beams=0"]
    messages = [
        "trainer.max_stps: unknown key, did you mean max_steps?",
        "attack.decoding.beams=0: must be at least 1",
    ]
    assert answer("evaluate", *amended, folder=tmp_path) == messages
    assert answer("invert", *amended, "vectors=v.npy", folder=tmp_path) == messages
    assert answer("audit", *amended, "vectors=v.npy", folder=tmp_path) == messages
    assert answer("evaluate", "run=rnu", folder=tmp_path) == ["run=rnu: no directory rnu, did you mean run?"]
    assert answer("compare", "rnu", folder=tmp_path) == ["rnu: no directory rnu, did you mean run?"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_source_file_tells_what_the_import_does(target: str) -> None:
    """The arguments of every class that a configuration names; a hint may be left to the import, but never differ."""
    told, is_so = written(target), imported(target)
    if target == "datetime.timedelta":  # written in C
        assert told is None
        return
    assert told is not None
    assert is_so is not None
    assert list(told.required.items()) == list(is_so.required.items())
    assert told.open_ended == is_so.open_ended
    for name in told.required:
        assert told.hint(name) is UNKNOWN or repr(told.hint(name)) == repr(is_so.hint(name)), name


def test_what_no_file_tells_is_left_to_the_import() -> None:
    for target in ("no_such_module.Thing", "attacks.geia.NoSuchClass", "torch.nn.functional.conv2d", "attacks.geia"):
        assert written(target) is None
    assert source_path("torch._C") is None
    assert find("attacks.geia", "no_such_name") is None
    config = OmegaConf.create({"car": {"_target_": "attacks.gia.GEIA", "nothing": 1}, "seed": -1})
    assert check_written(config) == ["seed=-1: must be at least 0"]
    assert configuration.check(config)[-1] == "car._target_=attacks.gia.GEIA: no gia in attacks, did you mean geia?"


@pytest.mark.parametrize("overrides", [[], ["attack.learning_rat=1"]])
def test_nothing_is_measured_before_names_and_values_are_right(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    measured = []

    def measure(*_: Any) -> str:
        measured.append(True)
        return "32-true"

    OmegaConf.register_new_resolver("test_measured", measure, replace=True)
    monkeypatch.setattr("configuration.resolving._MEASURED", "${test_measured:")
    configs, errors = survey("train", [*overrides, "trainer.precision='${test_measured:}'", "attack.label_smoothing=2"])
    assert len(errors) == len(overrides)
    assert isinstance(configs[0], DictConfig)
    assert check_written(configs[0]) == ["attack.label_smoothing=2: must be less than 1.0"]
    assert measured == []
