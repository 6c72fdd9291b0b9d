"""Only our own lines on the terminal of a run; those of installed packages in its log."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tqdm

from configuration import console
from support.tiny_models import tiny_language_model

ROOT = Path(console.__file__).resolve().parent.parent
SITE = Path(sysconfig.get_path("purelib"))
SMALL = [
    "trainer.accelerator=cpu", "trainer.max_steps=1", "trainer.max_time=null", "datamodule.limit_train=128",
    "datamodule.limit_valid=16", "datamodule.limit_test=16", "datamodule.eval_batch_size=8",
    "trainer.precision=32-true", "attack.decoding.beams=1", "attack.decoding.max_new_tokens=8",
]  # fmt: skip
NOT_OURS = [
    "litlogger", "was configured so", "GPU available", "TPU available", "Mixed Precision", "`Trainer.fit` stopped",
    "weights_only", "deprecated", "Warning", "site-packages", "GLOBAL_RANK", "distributed_backend",
    "distributed processes", "[Gloo]", "c10d", "socket.cpp", "gemm_4bit", "Restoring states", "Loaded model weights",
    "it/s", "Loading weights", "Materializing", "PyTorch was not found", "max_length", "generation flags",
]  # fmt: skip
CODE = """
import logging, sys, warnings
from configuration import console
held = console.hold()
import bitsandbytes  # whose operators for a CPU may be missing, of which it warns on stderr
logging.getLogger("library").warning("of our own file, before there is a log")
console.show_and_log(None)
console.quieten(held)
warnings.warn("for the user")
warnings.warn("for developers", FutureWarning)
logging.getLogger("lightning").info("said here")
"""


def script(name: str, *arguments: str, folder: Path) -> str:
    """All that a script writes on a terminal."""
    done = subprocess.run(
        [sys.executable, str(ROOT / f"{name}.py"), *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "UNEMBED_CACHE": str(folder / "cache")}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terminal")


@pytest.fixture(scope="module")
def first_run(folder: Path) -> str:
    return script("train", *SMALL, "run_dir=run", folder=folder)


def foreign(terminal: str) -> list[str]:
    return [fragment for fragment in NOT_OURS if fragment in terminal]


@pytest.mark.slow
def test_a_first_run_shows_our_own_lines_only(folder: Path, first_run: str) -> None:
    assert foreign(first_run) == []
    assert first_run.startswith("run directory: run\ntexts: 128 train, 16 valid, 16 test")
    log = (folder / "run" / "log").read_text(encoding="utf-8")
    for fragment in ("GPU available", "limit_train_batches=1.0", "`Trainer.fit` stopped", "texts: 128 train"):
        assert fragment in log


@pytest.mark.slow
@pytest.mark.usefixtures("first_run")
def test_an_evaluation_is_quiet_too_and_has_a_log(folder: Path) -> None:
    assert foreign(script("evaluate", "run=run", "output_dir=again", folder=folder)) == []
    log = (folder / "again" / "log").read_text(encoding="utf-8")
    for fragment in ("GPU available", "Loaded model weights", "texts: 128 train"):
        assert fragment in log


@pytest.mark.slow
@pytest.mark.usefixtures("first_run")  # which has embedded the texts
def test_two_processes_are_as_quiet_as_one(folder: Path) -> None:
    terminal = script("train", *SMALL, "run_dir=two", "trainer=ddp", "trainer.devices=2", folder=folder)
    assert foreign(terminal) == []
    assert terminal.count("run directory: two\n") == 1
    assert "distributed_backend=gloo" in (folder / "two" / "log").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("first_run")
def test_reading_vectors_back_and_an_audit_are_quiet(folder: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((6, 384)).astype(np.float32)
    np.save(folder / "mine.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    read = script("invert", "run=run", "vectors=mine.npy", folder=folder)
    assert foreign(read) == []
    assert read.endswith("6 texts written to mine.npy.texts.jsonl\n")
    audited = script("audit", "run=run", "vectors=mine.npy", "output_dir=audit", "defenses=[]", folder=folder)
    assert foreign(audited) == []
    assert audited.endswith("Report: audit/audit.html\n")


@pytest.mark.slow
@pytest.mark.usefixtures("first_run")  # which has embedded the texts
def test_the_directory_that_is_named_is_the_runs_own(folder: Path) -> None:
    """Its name has the time in it, which is read once."""
    named = script("train", *SMALL, folder=folder).splitlines()[0].removeprefix("run directory: ")
    assert (folder / named / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("first_run")  # which has embedded the texts
def test_a_pretrained_model_is_read_quietly(folder: Path) -> None:
    model = tiny_language_model(folder / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "w58"}))
    llm = ["attack=llm", f"attack.backbone.name={model}", "datamodule.max_tokens=8", "attack.decoding.max_new_tokens=4"]
    terminal = script("train", *SMALL, *llm, "run_dir=llm", folder=folder)
    assert foreign(terminal) == []
    assert terminal.startswith("run directory: llm\n")
    assert "\ntexts: 128 train, 16 valid, 16 test" in terminal


def test_imports_are_held_until_there_is_a_log(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    file = tmp_path / "said.py"
    file.write_text(CODE)
    done = subprocess.run(
        [sys.executable, str(file)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr.splitlines()) == (
        "",
        ["of our own file, before there is a log", "for the user", "said here"],
    )


@pytest.mark.parametrize(
    ("file", "level", "shown"),
    [
        (ROOT / "attacks" / "base.py", logging.INFO, True),
        (Path("/home/somebody/word_guesser.py"), logging.WARNING, True),
        (SITE / "lightning" / "pytorch" / "trainer.py", logging.WARNING, False),
        (SITE / "lightning" / "pytorch" / "trainer.py", logging.ERROR, True),
        (ROOT / ".venv" / "lib" / "python3" / "site-packages" / "peft" / "x.py", logging.WARNING, False),
        (Path(sysconfig.get_path("stdlib")) / "subprocess.py", logging.WARNING, False),
    ],
)
def test_who_is_shown(file: Path, level: int, shown: bool) -> None:
    record = logging.LogRecord("lightning.pytorch", level, str(file), 1, "said", None, None)
    assert console.is_shown(record) == shown


def test_a_log_waits_for_its_directory(tmp_path: Path) -> None:
    log = console.LaterFile(tmp_path / "out" / "log")
    for number in range(3):
        if number == 1:
            (tmp_path / "out").mkdir()
        log.handle(logging.LogRecord("ours", logging.INFO, __file__, 1, "line %d", (number,), None))
    lines = (tmp_path / "out" / "log").read_text(encoding="utf-8").splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == ["line 0", "line 1", "line 2"]


def test_a_line_does_not_break_into_a_bar() -> None:
    terminal = io.StringIO()
    handler = console.Terminal(logging.StreamHandler(terminal))
    bar = tqdm.tqdm(total=4, desc="training", file=terminal, ncols=40)
    for number, named in enumerate((dict[str, bool](), {"for_log_alone": True})):
        record = logging.LogRecord("ours", logging.INFO, str(ROOT / "train.py"), 1, "line %d", (number,), None)
        record.__dict__.update(named)
        handler.handle(record)
    bar.close()
    written = terminal.getvalue()
    assert "line 1" not in written
    before, after = written.split("line 0\n")
    assert before.endswith("\r")  # the bar was wiped out
    assert before.rstrip("\r ").startswith("\rtraining:")
    assert after.lstrip("\r").startswith("training:")
