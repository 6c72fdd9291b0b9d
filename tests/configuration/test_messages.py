"""What the command line answers to values that are nearly right, and configurations kept outside this repository."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator
from omegaconf import OmegaConf

from support.processes import ROOT, Warm
from unembed import launch
from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean, listed
from unembed.core.ranks import check_devices
from unembed.launch.composing import survey
from unembed.launch.overrides import Overrides


def said(*overrides: str) -> list[str]:
    """All messages on a command line of train.py."""
    configs, errors = survey("train", overrides)
    return [*errors, *(message for config in configs for message in launch.check(config))]


@pytest.mark.parametrize("given", ["10m", "-1", "600", "'10:00'", "{minute:3}"])
def test_a_time_limit_of_another_form_is_answered_with_the_valid_one(given: str) -> None:
    (message,) = said(f"trainer.max_time={given}", "trainer.precision=32-true")
    assert message.startswith("trainer.max_time=")
    assert message.endswith(", such as 00:00:10:00 for ten minutes, or null for no limit")


@pytest.mark.parametrize("given", ["00:00:10:00", "12:23:59:59", "{minutes:3}", "null"])
def test_a_time_limit_that_lightning_takes_is_taken(given: str) -> None:
    assert said(f"trainer.max_time={given}", "trainer.precision=32-true") == []


def test_spaces_around_the_equals_sign() -> None:
    """The shell makes several words of it."""
    reason = "write key=value or group=option, without spaces around ="
    words = ["seed", "=", "3", "seed =3", "embedder=minlim"]
    wrong = [f"{word}: {reason}" for word in words[:-1]]
    assert survey("train", words)[1] == [*wrong, "embedder=minlim: did you mean minilm?"]


@pytest.mark.parametrize(
    "value", ["runs/a", "my run (2)", "a,b=c", "Bücher.npy", "it's", 'so "called"', "back\\slash", "end\\", "a\\'b", ""]
)
def test_a_printed_value_is_read_back_as_it_was(value: str) -> None:
    (word,) = shlex.split(command("train", run_dir=value))[2:]
    (override,) = Overrides([word]).overrides
    assert (override.key_or_group, override.value()) == ("run_dir", value)


@pytest.mark.parametrize(
    ("words", "vectors"),
    [
        (["mine.npy"], "mine.npy"),
        (["limit=5", "my", "store (2).npy", "show_text=true"], "my store (2).npy"),
        (["chroma:../db"], "chroma:../db"),
        (["vectors=Bücher (2), neu.npy"], "Bücher (2), neu.npy"),
    ],
)
def test_a_path_is_taken_as_it_is_and_alone_for_vectors(words: list[str], vectors: str) -> None:
    run = ROOT / "unembed" / "attackers" / "minilm"
    settings, _ = launch.on_run("audit", [f"run={run}", *words])
    assert settings.vectors == vectors
    with pytest.raises(InputError, match=r"^mine\.npy: write key=value"):
        launch.on_run("audit", [f"run={run}", "vectors=other.npy", "mine.npy"])


def test_a_part_that_the_chosen_option_does_not_take_is_named() -> None:
    (message,) = said("attack=soda", "attack/refine=[rerank]")
    assert message.startswith("attack/refine: the chosen attack takes no refine")


def test_a_value_that_others_take_over_is_wrong_once() -> None:
    assert said("seed=abc", "defense=noise", "trainer.precision=32-true") == ["seed=abc: must be an integer"]
    assert said("datamodule.seed=abc", "trainer.precision=32-true") == ["datamodule.seed=abc: must be an integer"]


@pytest.mark.slow
@pytest.mark.parametrize("override", ["trainer=gpu", "trainer.accelerator=cuda"])
def test_a_gpu_that_is_not_there_is_one_message_and_no_directory(override: str, tmp_path: Path, warm: Warm) -> None:
    arguments = [str(ROOT / "train.py"), override, "trainer.precision=32-true", "run_dir=out"]
    done = warm.run(arguments, cwd=tmp_path, environment=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    name = "gpu" if override == "trainer=gpu" else "cuda"
    assert line.startswith(f"trainer.accelerator={name}: torch ")
    assert line.endswith(" finds no GPU on this machine; give trainer.accelerator=auto or cpu")
    assert not (tmp_path / "out").exists()


def test_more_devices_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: False))
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(CUDAAccelerator, "auto_device_count", staticmethod(lambda: 1))

    def checked(**trainer: object) -> None:
        check_devices(trainer)

    for accelerator in ("auto", "gpu", "cuda"):
        for devices in (4, [1]):
            with pytest.raises(
                InputError, match=r"torch finds 1 GPU, number 0 on this machine; give trainer.devices=1 or fewer"
            ):
                checked(accelerator=accelerator, devices=devices)
    checked(accelerator="gpu", devices=1)
    checked(accelerator="cpu", devices=4)
    with pytest.raises(InputError, match=r"^trainer.accelerator=gup: did you mean gpu\?$"):
        checked(accelerator="gup")


@pytest.mark.slow
def test_what_lightning_refuses_of_a_trainer_is_one_message(tmp_path: Path, warm: Warm) -> None:
    arguments = ["trainer.gradient_clip_val=1.0", "trainer.strategy=dpd", "trainer.precision=32-true", "trainer=cpu"]
    done = warm.run([str(ROOT / "train.py"), *arguments, "run_dir=out"], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "trainer: " in done.stderr
    assert "dpd" in done.stderr
    assert "Traceback" not in done.stderr
    assert "HYDRA_FULL_ERROR" not in done.stderr


def test_an_unknown_name_lists_the_nearest_ones_only() -> None:
    ids = [f"document-{number:06}" for number in range(200_000)]
    assert did_you_mean("document-123", ids).startswith("did you mean document-")
    far = did_you_mean("q7", ids)
    assert far.startswith("valid: document-")
    assert far.endswith(" more")
    assert len(far) < 350
    assert did_you_mean("q7", ["a", "b"]) == "valid: a, b"
    assert len(did_you_mean("x" * 100_000, ["y" * 100_000, "z" * 100_000])) < 350
    assert listed(f"column_{number}" for number in range(1000)).endswith(" more")
    assert len(listed(f"column_{number}" for number in range(1000))) < 350


HALVED = """from unembed.defenses.identity import Identity
class Halved(Identity):
    def __call__(self, embeddings, examples, role, epoch=None):
        return embeddings / 2
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A defense with its configuration in a directory of its own, and a run."""
    (tmp_path / "outside.py").write_text(HALVED)
    (tmp_path / "my configs" / "defense").mkdir(parents=True)
    (tmp_path / "my configs" / "defense" / "halved.yaml").write_text("_target_: outside.Halved\n")
    (tmp_path / "run").mkdir()
    plain = launch.plain(launch.compose("train", ["trainer.precision=32-true"]))
    OmegaConf.save(OmegaConf.create(plain), tmp_path / "run" / "config.yaml")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


SCRIPT = """import sys
from unembed import launch as configuration

def task(settings, config):
    print(config.defense._target_, config.choices.defense)
    words = ["defense=halved defense.adaptive=true"]
    print([point.name for point in configuration.defense_points(config, words, "points", settings.config_dir)])

if __name__ == "__main__":
    configuration.main(task, sys.argv.pop(1))
"""


@pytest.mark.parametrize(
    ("name", "flag"),  # which all scripts read by the same function
    [
        ("evaluate", ["--config-dir", "my configs"]),
        ("invert", ["-cd", "my configs"]),
        ("audit", ["config_dir=my configs"]),
    ],
)
def test_configurations_from_outside_work_in_every_script(
    name: str, flag: list[str], outside: Path, warm: Warm
) -> None:
    (outside / "script.py").write_text(SCRIPT)
    vectors = [] if name == "evaluate" else ["vectors=v.npy"]
    environment = os.environ | {"PYTHONPATH": f"{outside}{os.pathsep}{ROOT}"}
    command = [str(outside / "script.py"), name, *flag, "run=run", "defense=halved", *vectors]
    done = warm.run(command, cwd=outside, environment=environment)
    assert done.returncode == 0, done.stderr
    chosen, points = done.stdout.splitlines()
    assert chosen == "outside.Halved halved"
    assert points == "['halved adaptive=true']"


def test_a_directory_of_configurations_that_is_not_there(outside: Path, warm: Warm) -> None:
    command = [str(ROOT / "evaluate.py"), "--config-dir", "my confgs", "run=run"]
    done = warm.run(command, cwd=outside)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("--config-dir=")
    assert "did you mean my configs?" in done.stderr
