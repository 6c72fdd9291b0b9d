"""Mistakes on the command line are answered before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from support.light_scripts import answers
from support.processes import Warm, program
from unembed import launch
from unembed.launch.locations import shipped

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
