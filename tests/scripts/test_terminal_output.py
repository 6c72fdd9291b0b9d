"""Only our own lines on the terminal of a run; those of installed packages in its log."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import logging.config
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tqdm

from support.processes import ROOT, Warm, program
from support.tiny_models import tiny_language_model
from unembed.launch import console
from unembed.launch.console import UNREAD

SITE = Path(sysconfig.get_path("purelib"))
SMALL = [
    "attack=geia", "trainer.accelerator=cpu", "trainer.max_steps=1", "trainer.max_time=null",
    "datamodule.limit_train=128", "datamodule.limit_valid=16", "datamodule.limit_test=16",
    "datamodule.eval_batch_size=8", "trainer.precision=32-true", "attack.decoding.beams=1",
    "attack.decoding.max_new_tokens=8", "++datamodule.source.sentences=300", "++datamodule.source.valid=20",
    "++datamodule.source.test=60",
]  # fmt: skip
NOT_OURS = [
    "litlogger", "was configured so", "GPU available", "TPU available", "Mixed Precision", "`Trainer.fit` stopped",
    "weights_only", "deprecated", "Warning", "site-packages", "GLOBAL_RANK", "distributed_backend",
    "distributed processes", "[Gloo]", "c10d", "socket.cpp", "gemm_4bit", "Restoring states", "Loaded model weights",
    "it/s", "Loading weights", "Materializing", "PyTorch was not found", "max_length", "generation flags",
]  # fmt: skip
CODE = """
import logging, sys, warnings
from unembed.launch import console
console.begin()
import bitsandbytes  # whose operators for a CPU may be missing, of which it warns on stderr
logging.getLogger("library").warning("of our own file, before there is a log")
console.quieten()
warnings.warn("for the user")
warnings.warn("for developers", FutureWarning)
logging.getLogger("lightning").info("said here")
"""


def script(name: str, *arguments: str, folder: Path, warm: Warm | None = None) -> str:
    """All that a script writes on a terminal; with ``warm``, after its imports."""
    command, added = [*program(name), *arguments], {"PYTHONPATH": str(ROOT), "UNEMBED_CACHE": str(folder / "cache")}
    if warm is not None:
        done = warm.run(command, cwd=folder, environment=os.environ | added)
    else:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=os.environ | added, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=500, check=False,
        )  # fmt: skip
    written = (done.stderr or "") + done.stdout
    assert done.returncode == 0, written
    return written


@pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP")
@pytest.mark.parametrize(("given", "used"), [({}, "30000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_spin_for_a_short_time_unless_the_user_says_otherwise(
    given: dict[str, str], used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)  # the tester's own, or a script's that ran in this process
    code = "from unembed.launch import console; console.begin(); import torch"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_DISPLAY_ENV": "VERBOSE"} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True)
    assert f"GOMP_SPINCOUNT = '{used}'" in done.stderr


@pytest.mark.parametrize("name", ["train", "compare"])  # more and less than the buffer of a pipe
def test_help_in_a_pipe_that_is_closed(name: str) -> None:
    command = [sys.executable, "-m", "unembed", name, "--help"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == ""
    assert running.returncode == UNREAD


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terminal")


@pytest.fixture(scope="module")
def first_run(folder: Path) -> str:
    """What a training wrote on the terminal. Its directory, named by the time, is called ``run`` afterwards."""
    terminal = script("train", *SMALL, folder=folder)
    (folder / terminal.splitlines()[0].removeprefix("run directory: ")).rename(folder / "run")
    return terminal


def foreign(terminal: str) -> list[str]:
    return [fragment for fragment in NOT_OURS if fragment in terminal]


@pytest.mark.slow
def test_a_first_run_shows_our_own_lines_only(folder: Path, first_run: str) -> None:
    assert foreign(first_run) == []
    assert re.match(r"run directory: runs/\S+\ntexts: 128 train, 16 valid, 16 test", first_run)
    assert (folder / "run" / "report.html").is_file()
    log = (folder / "run" / "log").read_text(encoding="utf-8")
    for fragment in ("GPU available", "limit_train_batches=1.0", "`Trainer.fit` stopped", "texts: 128 train"):
        assert fragment in log


@pytest.mark.slow
@pytest.mark.usefixtures("first_run")
def test_an_evaluation_and_an_audit_are_quiet_too(folder: Path, warm: Warm) -> None:
    assert foreign(script("evaluate", "run=run", "output_dir=again", folder=folder, warm=warm)) == []
    log = (folder / "again" / "log").read_text(encoding="utf-8")
    for fragment in ("GPU available", "Loaded model weights", "texts: 128 train"):
        assert fragment in log
    vectors = np.random.default_rng(0).standard_normal((6, 384)).astype(np.float32)
    np.save(folder / "mine.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    given = ["run=run", "vectors=mine.npy", "output_dir=audit", "defenses=[]"]
    audited = script("audit", *given, folder=folder, warm=warm)
    assert foreign(audited) == []
    assert audited.endswith("Report: audit/audit.html\n")


@pytest.mark.slow
@pytest.mark.usefixtures("first_run")  # which has embedded the texts
def test_two_processes_that_read_a_pretrained_model_are_as_quiet(folder: Path) -> None:
    """They share a directory, whose name has the time in it, which is read once."""
    model = tiny_language_model(folder / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "w58"}))
    llm = ["attack=llm", f"attack.backbone.name={model}", "datamodule.max_tokens=8", "attack.decoding.max_new_tokens=4"]
    terminal = script("train", *SMALL, *llm, "trainer=ddp", "trainer.devices=2", folder=folder)
    assert foreign(terminal) == []
    assert terminal.startswith("run directory: runs/llm")
    assert terminal.count("run directory: ") == terminal.count("\ntexts: 128 train, 16 valid, 16 test") == 1
    (run,) = (path for path in (folder / "runs").glob("*/*") if "llm" in path.parent.name)
    assert "distributed_backend=gloo" in (run / "log").read_text(encoding="utf-8")


def test_imports_are_held_until_there_is_a_log(tmp_path: Path, warm: Warm) -> None:
    if find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    file = tmp_path / "said.py"
    file.write_text(CODE)
    done = warm.run([str(file)], environment=os.environ | {"PYTHONPATH": str(ROOT)})
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
        (ROOT / "benchmarks" / "site-packages" / "x.py", logging.WARNING, False),
        (ROOT / "train.py", logging.INFO, True),
    ],
)
def test_who_is_shown(file: Path, level: int, shown: bool) -> None:
    record = logging.LogRecord("lightning.pytorch", level, str(file), 1, "said", None, None)
    assert console.is_shown(record) == shown


def test_a_line_does_not_break_into_a_bar() -> None:
    terminal = io.StringIO()
    handler = console.Terminal(terminal)
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


def test_after_an_installation_our_own_lines_are_still_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "lib" / "site-packages"
    monkeypatch.setattr(console, "_OURS", site / "unembed")
    for file, shown in {
        "unembed/attacks/base.py": True,
        "unembed/session.py": True,
        "lightning/trainer.py": False,
        "six.py": False,
    }.items():
        record = logging.LogRecord("any", logging.WARNING, str(site / file), 1, "said", None, None)
        assert console.is_shown(record) == shown


ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202egnp.\x9b1A"


def test_no_line_of_a_log_is_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the terminal and in the log, with a traceback."""
    try:
        raise KeyError(ESCAPES)
    except KeyError:
        error = sys.exc_info()
    record = logging.LogRecord("ours", logging.WARNING, str(ROOT / "train.py"), 1, "%s\nERROR more", (ESCAPES,), error)
    for handler in (console.Terminal(), console.LogFile(tmp_path / "log")):
        handler.handle(record)
        handler.close()
    shown = "\ufffd]0;owned\ufffd\ufffd[2J\ufffdgnp.\ufffd1A"
    said = [capsys.readouterr().err, (tmp_path / "log").read_text(encoding="utf-8")]
    for text in said:
        assert shown in text
        assert not set(ESCAPES) & set(text) - set(shown)
        assert "ERROR more\n" in text
        assert "Traceback (most recent call last):\n" in text
    assert all(line.startswith(("20", "    ")) for line in said[1].splitlines())


def test_no_traceback_is_obeyed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    console.begin()
    sys.excepthook(OSError, OSError(f"a file called {ESCAPES}"), None)
    said = capsys.readouterr().err
    assert "a file called \ufffd]0;owned\ufffd" in said
    assert "\x1b" not in said


def test_a_log_or_a_terminal_that_cannot_be_written_raises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as console.begin does
    (tmp_path / "full" / "log").parent.mkdir()
    (tmp_path / "full" / "log").symlink_to("/dev/full")
    (tmp_path / "folder" / "log").mkdir(parents=True)
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123
        files = [console.LogFile(tmp_path / name / "log") for name in ("full", "folder", "missing")]
        for handler in (*files, console.Terminal(full)):
            handler.handle(logging.LogRecord("ours", logging.INFO, str(ROOT / "train.py"), 1, "line", None, None))
            handler.close()
    assert capsys.readouterr().err == ""


def test_a_wrong_command_line_is_quoted_as_text(warm: Warm, tmp_path: Path) -> None:
    """A shell's ``*`` may stand for any names."""
    for name in ("train", "evaluate"):
        done = warm.run([*program(name), "--\x1b[2J"], cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr == "unrecognized arguments: --\ufffd[2J; --help lists what can be given\n"
