"""Read an untrusted file in a child process, so that a crash or a memory bomb affects only that process.

    child = Child("mine.index", open_index, ["mine.index"], imports=["faiss"], limits=limits_for(size))
    child.opened                   # the first result of open_index("mine.index"), a JSON value
    child.ask([0, 5])              # (2, d) float32: its answer to a request

The child is a fresh interpreter with limits on memory, CPU time and wall time. It cannot write files above 64 kB, and
its environment has no secrets. It returns JSON and plain numbers, which are parsed without unpickling. It ends when the
parent closes or drops it, or is killed. It is not a sandbox: code running there has the user's permissions.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

import unembed
from unembed.core.errors import InputError

Answer = Callable[[list[int]], NDArray[np.float32]]
Texts = Callable[[list[int], str | None], Sequence[Mapping[str, str]]]
_ROOT = Path(unembed.__file__).resolve().parents[1]
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from unembed.datamodules.vector_stores.child import serve; serve()"
)
_FRAME = struct.Struct(">QQ")  # bytes of JSON, bytes of numbers
# All of the environment that an interpreter and its libraries need, so that no key or password is in it.
_KEPT = (
    "PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
)  # fmt: skip
_LARGEST_FILE = 1 << 16  # bytes that it may write: its last words are a file
# One thread each, and one heap: every thread would take address space.
_SMALL = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS",
     "MALLOC_ARENA_MAX"), "1",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a child.

    Attributes:
        seconds: CPU seconds for opening and for each answer; the wall-time limit is ten times that plus 30 seconds.
        memory: Bytes in addition to the imported libraries.
        writes: Whether it may write files of more than 64 kB.
    """

    seconds: float
    memory: int
    writes: bool = False


def limits_for(size: int) -> Limits:
    """Limits for reading a file of ``size`` bytes; valid files stay far below them."""
    return Limits(2 + size / 1e6, (512 << 20) + 4 * size)


class Child:
    """A process that opens something and answers questions about it.

    Args:
        name: Of what is read, as messages begin.
        opener: A function of a module: called with ``arguments`` in the child, it gives a JSON value, what answers
            with vectors, and, where there are texts beside them, what answers with those.
        arguments: JSON values.
        imports: Libraries that are imported before the limits count.
        limits: What it may take.

    Raises:
        InputError: The opener raised one; or it broke, or broke a limit.
    """

    def __init__(
        self,
        name: str,
        opener: Callable[..., tuple[Any, Answer] | tuple[Any, Answer, Texts]],
        arguments: Sequence[Any],
        imports: Sequence[str],
        limits: Limits,
    ) -> None:
        self.name, self.limits = name, limits
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- open as long as the process
        environment = {key: os.environ[key] for key in _KEPT if key in os.environ} | _SMALL
        # -P: nothing is imported from the current directory, which may be untrusted
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE, str(_ROOT)], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._stderr,
        )  # fmt: skip
        self.close = weakref.finalize(self, _end, self._process, self._stderr)
        function = opener.__module__, opener.__name__
        self.opened: Any = self._exchange([function, list(arguments), list(imports), astuple(limits)])[0]

    def ask(self, request: Sequence[int]) -> NDArray[np.float32]:
        """What the child answers to ``request``, (len(request), d)."""
        shape, numbers = self._exchange([int(one) for one in request])
        try:
            return np.frombuffer(numbers, np.float32).reshape(len(request), -1)
        except ValueError as error:
            raise InputError(f"{self.name}: gives {shape} numbers for {len(request)} rows") from error

    def ask_texts(self, request: Sequence[int], field: str | None) -> Sequence[Mapping[str, str]]:
        """The texts of the rows of ``request`` by name; only ``field``, where one is given."""
        texts = self._exchange({"rows": [int(one) for one in request], "field": field})[0]
        if not isinstance(texts, list) or len(texts) != len(request):
            raise InputError(f"{self.name}: gives no texts for {len(request)} rows")
        return texts

    def _exchange(self, request: Any) -> tuple[Any, bytes]:
        """Send a request and wait for its answer: a JSON value and numbers."""
        asked, answers = _pipes(self._process)
        try:
            asked.write(json.dumps(request).encode() + b"\n")
            asked.flush()
            text, numbers = _FRAME.unpack(_exactly(answers, _FRAME.size))
            if text + numbers > self.limits.memory:
                raise EOFError
            answer, content = json.loads(_exactly(answers, text)), _exactly(answers, numbers)
        except (BrokenPipeError, EOFError, ValueError, RecursionError):
            self._refuse()
        if "error" in answer:
            self.close()
            raise InputError(answer["error"])
        return answer["value"], content

    def _refuse(self) -> NoReturn:
        """Raise an InputError that says how the process ended."""
        try:
            code = self._process.wait(timeout=5)  # mostly it has ended
        except subprocess.TimeoutExpired:
            self._process.kill()  # it says what it should not
            code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        self.close()
        if code in (-signal.SIGPROF, -signal.SIGALRM):
            reason = f"takes more than {self.limits.seconds:.0f} seconds of the processor, too long for its size"
        elif code > 0 and lines and re.match(r"(\w+\.)*(MemoryError|bad_alloc)", lines[-1]):
            reason = f"takes more than {self.limits.memory >> 20} MB of memory, too much for its size"
        elif code > 0 and lines:
            reason = f"its reader failed: {lines[-1]}"
        else:
            reason = f"its reader crashed ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
        raise InputError(f"{self.name}: damaged, or made to do harm: {reason}")


class ChildStore:
    """A vector store that a child process reads; see VectorStore in sampling.py."""

    def __init__(self, name: str, ids: Iterable[object], child: Child) -> None:
        self.name, self._child = name, child
        self.ids: Sequence[str] = [str(one) for one in ids]

    def fetch(self, positions: Sequence[int]) -> NDArray[np.float32]:
        return self._child.ask(positions)


class TextChildStore(ChildStore):
    """One that holds texts, too."""

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        return self._child.ask_texts(positions, field)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise EOFError
    return content


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _end(process: subprocess.Popen[bytes], messages: IO[bytes]) -> None:
    process.kill()
    for stream in _pipes(process):
        with contextlib.suppress(BrokenPipeError):  # a request that it did not read
            stream.close()
    process.wait()
    messages.close()


# -- the child ---------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Run the child process: answer the requests of a ``Child`` from standard input, one per line."""
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; this one ends with it
    (module, function), arguments, imports, (seconds, memory, writes) = json.loads(asked.readline())
    for name in imports:
        importlib.import_module(name)
    opener = getattr(importlib.import_module(module), function)
    _set_limits(memory, writes=writes)
    try:
        _set_timers(seconds)
        value, answer, *texts = opener(*arguments)
        _send(answers, {"value": value})
        _set_timers(0)  # until the next request: the parent may load a model meanwhile
        for line in asked:
            _set_timers(seconds)
            request = json.loads(line)
            if isinstance(request, dict):
                _send(answers, {"value": list(texts[0](request["rows"], request["field"]))})
            else:
                vectors = np.ascontiguousarray(answer(request), np.float32)
                _send(answers, {"value": list(vectors.shape)}, vectors.tobytes())
            _set_timers(0)
    except InputError as error:
        _send(answers, {"error": str(error)})


def _send(stream: IO[bytes], value: Any, numbers: bytes = b"") -> None:
    text = json.dumps(value).encode()
    stream.write(_FRAME.pack(len(text), len(numbers)) + text)
    stream.write(numbers)
    stream.flush()


def _set_limits(memory: int, *, writes: bool) -> None:
    pages = Path("/proc/self/statm")  # macOS has none, and does not hold a process to its address space either
    mapped = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 4 << 30
    wanted = {resource.RLIMIT_AS: mapped + memory, resource.RLIMIT_CORE: 0}
    if not writes:
        wanted[resource.RLIMIT_FSIZE] = _LARGEST_FILE
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _set_timers(seconds: float) -> None:
    """Let the kernel end this process after so many seconds, even inside C++ code; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds + 30 if seconds else 0)
