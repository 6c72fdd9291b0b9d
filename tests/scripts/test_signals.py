"""Ctrl-C and SIGTERM at any moment of a script: one line, exit code 130 or 143, and what was done is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes import ROOT, Warm, program
from support.small_scripts import TINY, Scripts, wait_for
from unembed.runs import layout
from unembed.runs.checkpoints import load_checkpoint

STEPS = "trainer.max_steps=12"
# A script that takes its time over each step of training and each batch of a test.
SLOW = """
import runpy, sys, time
import unembed.callbacks.pace, unembed.callbacks.results
def slow(function):
    def slowed(*args, **kwargs):
        time.sleep(0.15)
        return function(*args, **kwargs)
    return slowed
from unembed.callbacks.pace import History
from unembed.callbacks.results import Predictions
History.on_train_batch_end = slow(History.on_train_batch_end)
Predictions.on_test_batch_end = slow(Predictions.on_test_batch_end)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
AT_ONCE = "import unembed.callbacks.termination; unembed.callbacks.termination.FIRST_SECONDS = 0\n"
# A library in the midst of whose import a signal comes, and which makes something else of an exception.
INTERRUPTED = """
import os
try:
    os.kill(os.getpid(), {number})
except BaseException as error:
    raise ImportError("could not be imported") from error
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Scripts:
    """In their folder, ``run`` is a run that nobody disturbed."""
    made = Scripts(tmp_path_factory.mktemp("signals"), warm)
    assert made.end(made.start("train", *TINY, STEPS, "run_dir=run"))[0] == 0
    return made


def steps(run: Path) -> int:
    path = run / layout.HISTORY
    return path.read_text().count('"val_loss": null') if path.is_file() else 0


# -- imports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("script", ["train", "evaluate", "invert", "audit", "compare"])
def test_a_signal_while_a_script_imports(tmp_path: Path, script: str, number: signal.Signals) -> None:
    (tmp_path / "pydantic.py" if script == "compare" else tmp_path / "hydra.py").write_text(
        INTERRUPTED.format(number=int(number))
    )
    done = subprocess.run(
        [sys.executable, *program(script), "run=x"], cwd=tmp_path, timeout=60, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    said = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "stopped by SIGTERM")}[number]
    assert (done.returncode, done.stderr) == (said[0], f"{said[1]}: nothing had begun\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_torch_is_imported(tmp_path: Path, number: signal.Signals) -> None:
    """The run's directory is claimed by then."""
    library, folder = tmp_path / "library", tmp_path / "folder"
    library.mkdir()
    folder.mkdir()
    (library / "torch.py").write_text(f"import os; os.kill(os.getpid(), {int(number)})")
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py")], cwd=folder, timeout=100, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{library}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    said = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "stopped by SIGTERM")}[number]
    assert (done.returncode, done.stderr) == (said[0], f"{said[1]}: nothing had begun\n")
    assert list(folder.iterdir()) == []


# -- SIGTERM --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_is_saved_and_resumed(scripts: Scripts) -> None:
    name = "stopped"
    run = scripts.folder / name
    settings = [*TINY, STEPS, "callbacks.history.every_n_steps=1", f"run_dir={name}"]
    training = scripts.start("train", *settings, code=SLOW)
    wait_for(training, lambda: steps(run) >= 3)
    for _ in range(2):  # a scheduler and its launcher
        training.send_signal(signal.SIGTERM)
    code, errors = scripts.end(training)
    saved = int(load_checkpoint(run / layout.CHECKPOINT)["global_step"])
    assert 3 <= saved < 12
    start = f"stopped by SIGTERM: step {saved} is saved in {name}/checkpoints; resume with: python {ROOT / 'train.py'} "
    assert code == 143
    assert errors.splitlines()[-1].startswith(start)
    assert f"run_dir={name} ckpt_path=last" in errors
    assert not (run / layout.METRICS).exists()
    assert not (run / layout.LOCK).exists()
    assert scripts.end(scripts.start("train", *settings, "ckpt_path=last"))[0] == 0
    assert (run / layout.PREDICTIONS).read_bytes() == (scripts.folder / "run" / layout.PREDICTIONS).read_bytes()
    assert steps(run) == 12


@pytest.mark.slow
def test_a_training_that_is_killed_early_has_a_checkpoint(scripts: Scripts) -> None:
    """The first one does not wait for the interval of callbacks.checkpoint, a minute."""
    run = scripts.folder / "killed"
    training = scripts.start("train", *TINY, STEPS, "run_dir=killed", code=f"{AT_ONCE}{SLOW}")
    wait_for(training, (run / layout.CHECKPOINT).is_file)
    training.kill()
    assert 0 < int(load_checkpoint(run / layout.CHECKPOINT)["global_step"]) < 12
    again = scripts.start("train", "run_dir=killed", "ckpt_path=last")
    said, _ = again.communicate()
    assert again.returncode == 0
    assert "there is no" not in said
    assert load_checkpoint(run / layout.CHECKPOINT)["global_step"] == 12


@pytest.mark.slow
def test_a_signal_before_the_first_step(scripts: Scripts) -> None:
    run = scripts.folder / "early"
    training = scripts.start("train", *TINY, "run_dir=early", "datamodule.limit_train=250")
    wait_for(training, (run / layout.CONFIG).exists)
    training.send_signal(signal.SIGTERM)
    code, errors = scripts.end(training)
    assert code == 143
    said = "stopped by SIGTERM: vectors that were embedded are kept and there is no checkpoint yet; start again with: "
    assert errors.splitlines()[-1].startswith(f"{said}python {ROOT / 'train.py'} ")
    assert not (run / layout.CHECKPOINT).exists()
    assert (run / layout.CONFIG).exists()
    again = scripts.start("train", "run_dir=early", "ckpt_path=last")
    said, _ = again.communicate()
    assert again.returncode == 0
    assert said.splitlines()[1] == (
        "run_dir=early: there is no checkpoint to resume (checkpoints/last.ckpt is missing), so it starts from the "
        "beginning"
    )


@pytest.mark.slow
def test_a_signal_in_a_test_keeps_its_batches(scripts: Scripts) -> None:
    settings = ["run=run", "datamodule.eval_batch_size=2", "output_dir=out"]
    evaluation = scripts.start("evaluate", *settings, code=SLOW)
    finished = scripts.folder / "out" / layout.TEST_BATCHES
    wait_for(evaluation, lambda: any(finished.glob("*.json")))
    evaluation.send_signal(signal.SIGTERM)
    code, errors = scripts.end(evaluation)
    assert code == 143
    assert errors.splitlines()[-1].startswith("stopped by SIGTERM: vectors that were embedded are kept; start again ")
    assert "Traceback" not in errors
    assert any(finished.glob("*.json"))
    assert scripts.end(scripts.start("evaluate", *settings))[0] == 0
    assert not finished.exists()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["first", "other"])
def test_all_ranks_end_after_one_step(scripts: Scripts, whom: str) -> None:
    """A signal to any of the ranks stops both after the same step."""
    name = f"ranks-{whom}"
    run = scripts.folder / name
    settings = ["trainer=ddp", *TINY, "trainer.max_steps=1000000", "callbacks.history.every_n_steps=1"]
    training = scripts.start("train", *settings, f"run_dir={name}", code=SLOW)
    wait_for(training, lambda: steps(run) >= 3)
    (other,) = children(training.pid)
    os.kill(training.pid if whom == "first" else other, signal.SIGTERM)
    code, errors = scripts.end(training)
    assert code == 143, errors[-3000:]
    saved = int(load_checkpoint(run / layout.CHECKPOINT)["global_step"])
    assert f"stopped by SIGTERM: step {saved} is saved in {name}/checkpoints" in errors
    assert "Traceback" not in errors
    assert not alive(other)


@pytest.mark.slow
def test_slurm_requeues_as_before(scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGUSR1 is Lightning's: it saves, and asks SLURM for another start; then SLURM sends SIGTERM."""
    asked, control = tmp_path / "asked", tmp_path / "scontrol"
    control.write_text(f'#!/bin/sh\necho "$@" > {asked}\n')
    control.chmod(0o755)
    job = {"JOB_ID": "7", "JOB_NAME": "paper", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    run = scripts.folder / "queued"
    settings = [*TINY, STEPS, "callbacks.history.every_n_steps=1", "run_dir=queued"]
    training = scripts.start("train", *settings, code=SLOW)
    wait_for(training, lambda: steps(run) >= 3)
    training.send_signal(signal.SIGUSR1)
    wait_for(training, asked.exists)
    training.send_signal(signal.SIGTERM)
    code, errors = scripts.end(training)
    assert code == 143, errors[-3000:]
    assert asked.read_text() == "requeue 7\n"
    assert (run / "hpc_ckpt_1.ckpt").is_file()
    assert "stopped by SIGTERM: step " in errors
    assert scripts.end(scripts.start("train", *settings, "ckpt_path=last"))[0] == 0
    assert steps(run) == 12  # not to the last bit the same: Lightning saves in the midst of a step


def children(pid: int) -> list[int]:
    """The ranks that ``pid`` started (support/processes.py)."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"processes.py" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid: int) -> Any:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
