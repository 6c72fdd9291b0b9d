"""A directory belongs to one process: claimed by making it, locked while it is written, gone if nothing was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from support.processes import ROOT, Warm
from support.small_scripts import TINY, Scripts, wait_for
from unembed.core.errors import InputError
from unembed.runs import layout

SECOND = "2026-01-02_03-04-05"
# A script on whose machine it is always the same second.
CLOCK = f"""
import datetime, runpy, sys, time
import hydra.core.utils
class Clock:
    def now(*_):
        return datetime.datetime(2026, 1, 2, 3, 4, 5)
hydra.core.utils.datetime = Clock
time.strftime = lambda *_: {SECOND!r}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
HOLDER = """
import sys, time
from pathlib import Path
from unembed.runs import layout
with layout.locked(Path(sys.argv[1]), "run_dir"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Scripts:
    """In their folder, ``run`` is a trained run."""
    made = Scripts(tmp_path_factory.mktemp("claims"), warm)
    assert made.end(made.start("train", *TINY, "run_dir=run"))[0] == 0
    assert not (made.folder / "run" / layout.LOCK).exists()
    return made


# -- claims ---------------------------------------------------------------------------------------------------------


def test_the_next_free_name_is_claimed(tmp_path: Path) -> None:
    wanted = tmp_path / "above" / "name"
    assert [layout.claim(wanted).name for _ in range(3)] == ["name", "name-2", "name-3"]


def test_a_name_below_a_link_that_leads_nowhere_is_refused(scripts: Scripts, tmp_path: Path) -> None:
    """As runs/ does that leads to a disk which is not there; no other name would help."""
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    with pytest.raises(FileExistsError):
        layout.claim(tmp_path / "runs" / "name")
    with pytest.raises(FileNotFoundError):
        layout.claim(Path("/proc/name"))
    done = scripts.warm.run([str(ROOT / "train.py")], cwd=tmp_path, environment={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (2, "runs: File exists\n")


@pytest.mark.slow
def test_trainings_of_one_second_have_a_directory_each(scripts: Scripts) -> None:
    first, second = (scripts.start("train", *TINY, f"seed={seed}", code=CLOCK) for seed in (1, 2))
    several = scripts.start("train", "-m", *TINY, "seed=3,4", code=CLOCK)
    assert [scripts.end(script)[0] for script in (first, second, several)] == [0, 0, 0]
    (sweep,) = (scripts.folder / "runs" / "multirun").iterdir()
    places = list((scripts.folder / "runs" / "geia-minilm-synthetic").iterdir())
    assert {yaml.safe_load((place / layout.CONFIG).read_text())["seed"] for place in places} == {1, 2, 3, 4}
    assert {place.name for place in places} == {SECOND, f"{SECOND}-2", *(f"{sweep.name}-{n}" for n in range(2))}


def test_ranks_from_outside_must_agree(scripts: Scripts, tmp_path: Path) -> None:
    """torchrun's processes cannot tell each other what they claimed."""
    environment = {**os.environ, "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    done = scripts.warm.run([str(ROOT / "train.py"), "trainer=ddp"], cwd=tmp_path, environment=environment)
    message = "run_dir: torchrun and srun start processes that must agree on it: set RUN_ID, or run_dir=<dir>\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert list(tmp_path.iterdir()) == []
    np.save(tmp_path / "mine.npy", np.ones((2, 384)))
    audit = ["-m", "unembed", "audit", "run=minilm", "vectors=mine.npy"]
    done = scripts.warm.run(audit, cwd=tmp_path, environment=environment)
    assert (done.returncode, done.stderr) == (2, message.replace("run_dir", "output_dir"))


# -- the lock -------------------------------------------------------------------------------------------------------


def test_a_killed_process_keeps_no_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError) as refused, layout.locked(tmp_path, "run_dir"):
            pass
        pattern = rf"run_dir={tmp_path}: process {holder.pid} on \S+, started [\d-]+ [\d:]+, is writing there; wait .*"
        assert re.fullmatch(pattern, str(refused.value))
        layout.check_links(tmp_path)
        holder.kill()
    assert (tmp_path / layout.LOCK).exists()
    with layout.locked(tmp_path, "run_dir"):
        assert str(os.getpid()) in (tmp_path / layout.LOCK).read_text()
    assert not tmp_path.exists()


def test_a_lock_of_somebody_elses_run_writes_nothing_else(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    run.mkdir()
    for make in (os.link, os.symlink):
        make(victim, run / layout.LOCK)
        with pytest.raises(InputError, match=r"\.lock: a link or not a file"), layout.locked(run, "run_dir"):
            pass
        (run / layout.LOCK).unlink()
    (run / layout.LOCK).mkdir()
    with pytest.raises(InputError, match="remove it"), layout.locked(run, "run_dir"):
        pass
    assert victim.read_text() == "mine"


@pytest.mark.slow
def test_a_run_is_trained_by_one_process_at_a_time(scripts: Scripts) -> None:
    training = scripts.start("train", *TINY, "trainer.max_steps=1000000", "run_dir=twice")
    try:
        wait_for(training, (scripts.folder / "twice" / layout.HISTORY).exists)
        before = (scripts.folder / "twice" / layout.CONFIG).read_bytes()
        for more in (["seed=7"], ["ckpt_path=last"]):
            message = scripts.refuse("train", *TINY, "run_dir=twice", *more)
            assert message.startswith(f"run_dir=twice: process {training.pid} on ")
        assert (scripts.folder / "twice" / layout.CONFIG).read_bytes() == before
        assert training.poll() is None
    finally:
        training.kill()
    assert scripts.end(scripts.start("train", *TINY, "run_dir=twice", "ckpt_path=last"))[0] == 0


@pytest.mark.slow
def test_an_evaluation_is_written_by_one_process_at_a_time(scripts: Scripts) -> None:
    output = scripts.folder / "same"
    with layout.locked(output, "output_dir"):
        message = scripts.refuse("evaluate", "run=run", "output_dir=same")
    assert message.startswith(f"output_dir=same: process {os.getpid()} on ")


# -- failed starts --------------------------------------------------------------------------------------------------


def test_a_directory_that_nothing_was_written_to_is_removed(tmp_path: Path) -> None:
    for name, left in (("empty", []), ("run", ["config.yaml"])):
        with layout.locked(tmp_path / name, "run_dir"):
            for file in left:
                (tmp_path / name / file).touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.yaml", "run"]


@pytest.mark.slow
def test_what_stood_there_before_stays(scripts: Scripts, tmp_path: Path) -> None:
    """A run that was killed before its first checkpoint holds no more than a failed start does."""
    own = Scripts(tmp_path, scripts.warm)
    run = tmp_path / "run"
    run.mkdir()
    (run / layout.CONFIG).write_bytes((scripts.folder / "run" / layout.CONFIG).read_bytes())
    own.refuse("train", *TINY[:4], "datamodule=files", "datamodule.path=nothere.jsonl", "run_dir=run", "ckpt_path=last")
    assert (run / layout.CONFIG).is_file()
