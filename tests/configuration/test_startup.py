"""Mistakes on the command line are answered before anything heavy is imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from support.processes import ROOT
from unembed import launch
from unembed.launch.checking import check_written
from unembed.launch.composing import survey
from unembed.launch.named_runs import shipped
from unembed.launch.signatures import UNKNOWN, imported, written
from unembed.launch.source_files import find, source_path

TARGETS = sorted(
    {
        target
        for file in (ROOT / "configs").rglob("*.yaml")
        for target in re.findall(r"_target_: ([\w.]+)", file.read_text(encoding="utf-8"))
    }
)
HEAVY = ("torch", "lightning", "transformers", "scipy", "torchmetrics")
# Runs each command in a fork of a process that has imported what all scripts import first.
WRAPPED = f"""
import atexit, json, os, runpy, sys
from unembed import launch as configuration
for number, command in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{{sys.argv[2]}}/{{number}}.{{name}}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        atexit.register(lambda: print("imported", *(name for name in {HEAVY} if name in sys.modules)))
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 2, command
"""


def answers(*commands: list[str], folder: Path) -> list[list[str]]:
    """What scripts say of mistakes, which they must do without an import of HEAVY and with code 2."""
    given = json.dumps([[str(ROOT / f"{script}.py"), *arguments] for script, *arguments in commands])
    with tempfile.TemporaryDirectory() as said:
        done = subprocess.run(
            [sys.executable, "-c", WRAPPED, given, said], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = [[(Path(said) / f"{n}.{kind}").read_text() for kind in ("out", "err")] for n in range(len(commands))]
    assert all(out == "imported\n" for out, _ in found), found
    return [errors.splitlines() for _, errors in found]


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["embedder=minilmm"], ["embedder=minilmm: did you mean minilm?"]),
    (
        ["attack.learning_rat=1", "attack.label_smoothing=2"],
        [
            "attack.learning_rat: unknown key, valid: backbone, decoding, label_smoothing, optimizer, prefix, refine",
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
]


def test_training_answers_mistakes_without_heavy_imports(tmp_path: Path) -> None:
    found = answers(*(["train", *overrides] for overrides, _ in MISTAKES), folder=tmp_path)
    assert found == [messages for _, messages in MISTAKES]
    assert list(tmp_path.iterdir()) == []


def test_scripts_on_a_run_answer_mistakes_without_heavy_imports(tmp_path: Path) -> None:
    config = launch.plain(launch.compose("train", ["run_dir=run"]))
    (tmp_path / "run").mkdir()
    OmegaConf.save(OmegaConf.create(config), tmp_path / "run" / "config.yaml")
    amended = ["run=run", "trainer=default", "trainer.max_stps=1", "attack.decoding.beams=0"]
    messages = [
        "trainer.max_stps: unknown key, did you mean max_steps?",
        "attack.decoding.beams=0: must be at least 1",
    ]
    commands = [["evaluate", *amended], ["invert", *amended, "vectors=v.npy"], ["audit", *amended, "vectors=v.npy"]]
    assert answers(*commands, folder=tmp_path) == [messages] * 3
    found = answers(["evaluate", "run=rnu"], ["compare", "rnu"], folder=tmp_path)
    attackers = f"; shipped attackers: {', '.join(shipped())}" if shipped() else ""
    assert found == [
        [f"run=rnu: no directory rnu, did you mean run?{attackers}"], ["rnu: no directory rnu, did you mean run?"],
    ]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_a_source_file_tells_what_the_import_does(target: str) -> None:
    """The arguments of every class that a configuration names; a hint may be left to the import, but never differ."""
    written_down, is_so = written(target), imported(target)
    if target == "datetime.timedelta":  # written in C
        assert written_down is None
        return
    assert written_down is not None
    assert is_so is not None
    assert list(written_down.required.items()) == list(is_so.required.items())
    assert written_down.open_ended == is_so.open_ended
    for name in written_down.required:
        assert written_down.hint(name) is UNKNOWN or repr(written_down.hint(name)) == repr(is_so.hint(name)), name


def test_what_no_file_tells_is_left_to_the_import() -> None:
    for target in (
        "no_such_module.Thing",
        "unembed.attacks.geia.NoSuchClass",
        "torch.nn.functional.conv2d",
        "unembed.attacks.geia",
    ):
        assert written(target) is None
    assert source_path("torch._C") is None
    assert find("unembed.attacks.geia", "no_such_name") is None
    config = OmegaConf.create({"car": {"_target_": "attacks.gia.GEIA", "nothing": 1}, "seed": -1})
    assert check_written(config) == ["seed=-1: must be at least 0"]
    assert launch.check(config)[-1] == "car._target_=attacks.gia.GEIA: no gia in attacks, did you mean geia?"


@pytest.mark.parametrize("overrides", [[], ["attack.learning_rat=1"]])
def test_nothing_is_measured_before_names_and_values_are_right(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    measured = []

    def measure(*_: Any) -> str:
        measured.append(True)
        return "32-true"

    OmegaConf.register_new_resolver("test_measured", measure, replace=True)
    monkeypatch.setattr("unembed.launch.sources._MEASURED", "${test_measured:")
    configs, errors = survey("train", [*overrides, "trainer.precision='${test_measured:}'", "attack.label_smoothing=2"])
    assert len(errors) == len(overrides)
    assert isinstance(configs[0], DictConfig)
    assert check_written(configs[0]) == ["attack.label_smoothing=2: must be less than 1.0"]
    assert measured == []
