"""Mistakes on the command line are answered before anything heavy is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from support.processes import ROOT, Warm, program
from unembed import launch
from unembed.launch.locations import shipped

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
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 2, command
"""


def answers(*commands: list[str], folder: Path) -> list[list[str]]:
    """What scripts say of mistakes, which they must do without an import of HEAVY and with code 2."""
    given = json.dumps([[*program(script), *arguments] for script, *arguments in commands])
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
        ["attack.learning_rat=1", "trainer.max_stps=2"],
        [
            "attack.learning_rat: unknown key, valid: backbone, decoding, label_smoothing, optimizer, prefix, refine; "
            "an argument that no option sets is added by +attack.learning_rat=1",
            "trainer.max_stps: unknown key, did you mean max_steps?",
        ],
    ),
    (
        ["attack=llm", "attack/adapter=lora", "attack.adapter.rnk=3", "sed=0"],
        ["attack.adapter.rnk: unknown key, did you mean rank?", "sed: unknown key, did you mean seed?"],
    ),
    (
        ["seed", "=", "3"],
        [f"{word}: write key=value or group=option, without spaces around =" for word in ("seed", "=", "3")],
    ),
]


def test_training_answers_misspelt_names_without_heavy_imports(tmp_path: Path) -> None:
    found = answers(*(["train", *overrides] for overrides, _ in MISTAKES), folder=tmp_path)
    assert found == [messages for _, messages in MISTAKES]
    assert list(tmp_path.iterdir()) == []


def test_all_wrong_values_are_told_at_once_and_nothing_is_left(tmp_path: Path, warm: Warm) -> None:
    wrong = ["attack.label_smoothing=2", "seed=-1", "trainer.max_steps=many", "+trainer.nothing=1"]
    done = warm.run([*program("train"), *wrong], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "seed=-1: must be at least 0"
    assert {line for line in done.stderr.splitlines()[1:] if not line.startswith("trainer.nothing: unknown key, ")} == {
        "attack.label_smoothing=2: must be less than 1.0",
        "trainer.max_steps=many: must be an integer",
    }
    assert list(tmp_path.iterdir()) == []


def test_commands_on_a_run_answer_misspelt_names_without_heavy_imports(tmp_path: Path) -> None:
    config = launch.plain(launch.compose("train", ["run_dir=run"]))
    (tmp_path / "run").mkdir()
    OmegaConf.save(OmegaConf.create(config), tmp_path / "run" / "config.yaml")
    amended = ["run=run", "trainer=default", "trainer.max_stps=1", "attack.decoding.bems=0"]
    messages = [
        "trainer.max_stps: unknown key, did you mean max_steps?",
        "attack.decoding.bems: unknown key, did you mean beams?",
    ]
    commands = [["evaluate", *amended], ["invert", *amended, "vectors=v.npy"], ["audit", *amended, "vectors=v.npy"]]
    assert answers(*commands, folder=tmp_path) == [messages] * 3
    found = answers(["evaluate", "run=rnu"], ["compare", "rnu"], folder=tmp_path)
    attackers = f"; shipped attackers: {', '.join(shipped())}" if shipped() else ""
    assert found == [
        [f"run=rnu: no directory rnu, did you mean run?{attackers}"], ["rnu: no directory rnu, did you mean run?"],
    ]  # fmt: skip


def test_a_target_that_does_not_exist() -> None:
    config = OmegaConf.create({"car": {"_target_": "unembed.attacks.gia.GEIA", "nothing": 1}, "seed": -1})
    nearest = "car._target_=unembed.attacks.gia.GEIA: no gia in unembed.attacks, did you mean geia?"
    assert launch.check(config) == ["seed=-1: must be at least 0", nearest]


def test_arguments_that_a_constructor_passes_on_are_known() -> None:
    node = {"_target_": "unembed.attacks.llm.LLM", "_partial_": True, "label_smoothing": 0, "decodng": 0}
    config = OmegaConf.create(
        {"attack": node, "time": {"_target_": "datetime.timedelta", "minutes": 1}}
    )  # written in C
    own, misspelt = launch.check(config)
    assert own.startswith("attack.label_smoothing: unknown key, valid: adapter, ")  # which the constructor sets itself
    assert misspelt == "attack.decodng: unknown key, did you mean decoding?"
