"""A process that reads broken files one after another, under watch (Linux).

    child = Child(read, good, folder)          # forked when the first input comes; it reads the good file first
    child.attempt(b"...")                      # Outcome("refused", seconds=0.002, megabytes=0.1)

What an input does to the process is found out: an exception that is no InputError, a traceback that is printed, a
crash, processor time, memory, waiting, and files removed or made outside. After a crash or a kill the next input gets
a new process. Forked from a process that has imported all, it costs milliseconds; that process must not have started
threads, so whatever starts some is done by ``apart``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import os
import re
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from errors import InputError

from .usage import Usage, family, peak_megabytes, reset_peak, usage_of

ROOT = Path(__file__).resolve().parents[2]
WORK, OUTSIDE, SAID = "work", "outside", "said"
UNKNOWN = "unknown"  # where a process was that the kernel, or a thread of a library, was busy for
_POLL_SECONDS = 0.02
_LONGEST_MESSAGE = 4000  # characters
_LEAKED_MEGABYTES = 1000.0  # of many inputs together, after which a new process is started
_LARGEST_FILE = 4 << 30  # that a reader may write

Read = Callable[[Path, bytes], object]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one input: seconds of the processor, seconds by the clock, and MB of memory beyond what was held before."""

    seconds: float = 2.0
    waiting: float = 10.0
    megabytes: float = 1000.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an input.

    Attributes:
        kind: ``read``, ``refused``, or what is wrong: the type of an exception, a signal, a limit ...
        place: File, line and function of ours that were last in it; empty where nothing is wrong.
        message: What the exception said.
        details: The traceback.
        seconds: Of the processor, child processes included.
        megabytes: That the process grew by, at most.
        starved: Whether it was refused since the machine had not the memory: a larger machine would have gone on.
    """

    kind: str
    place: str = ""
    message: str = ""
    details: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0
    starved: bool = False

    @property
    def fault(self) -> bool:
        return self.kind not in ("read", "refused")


class Child:
    """Reads inputs in a process of its own, which is replaced when it ends.

    Args:
        read: Reads the bytes, given a directory to put them into; the current directory is that one.
        good: A sound input, by which every new process becomes warm.
        folder: For this child alone.
        limits: Of each input.
    """

    def __init__(self, read: Read, good: bytes, folder: Path, limits: Limits | None = None) -> None:
        self.read, self.good, self.folder, self.limits = read, good, folder, limits or Limits()
        self._pid: int | None = None
        self._held = self._first = 0.0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def attempt(self, content: bytes) -> Outcome:
        """Have an input read.

        Raises:
            RuntimeError: A new process did not read the good one.
        """
        if self._pid is None:
            self._start()
            outcome = self._exchange(self.good, Limits(60, 120, 4000))
            if outcome.kind != "read":
                raise RuntimeError(f"a sound input: {outcome.kind} {outcome.place} {outcome.message}{outcome.details}")
            self._first = self._held
        outcome = self._exchange(content, self.limits)
        if self._held > self._first + _LEAKED_MEGABYTES:
            self.close()
        return outcome

    def close(self) -> None:
        """End the process."""
        if self._pid is not None:
            self._kill()

    def _start(self) -> None:
        for name in (WORK, OUTSIDE):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(parents=True)
        (self.folder / OUTSIDE / "keep").write_text("kept")
        self._socket, other = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                self._socket.close()
                _serve(other, self.read, self.folder)
            finally:
                os._exit(70)  # nothing of the parent's is tidied up twice
        other.close()
        self._pid = pid
        self._held = usage_of([pid]).megabytes

    def _exchange(self, content: bytes, limits: Limits) -> Outcome:
        assert self._pid is not None
        before, began = usage_of([self._pid]), time.monotonic()
        used = Usage(0.0, 0.0)
        try:
            _send(self._socket, content)
            while not select.select([self._socket], [], [], _POLL_SECONDS)[0]:
                waited = time.monotonic() - began
                now = usage_of(family(self._pid) if waited > 10 * _POLL_SECONDS else [self._pid])
                used = Usage(now.seconds - before.seconds, max(used.megabytes, now.megabytes - self._held))
                if (wrong := _beyond(used, waited, limits)) is not None:
                    return Outcome(wrong, **self._stopped(), seconds=used.seconds, megabytes=used.megabytes)
            reply = _receive(self._socket)
        except OSError:  # the process has ended while its input was sent
            reply = None
        if reply is None:
            return Outcome(self._ended(), **self._stopped(), seconds=used.seconds, megabytes=used.megabytes)
        found = json.loads(reply)
        self._held = found.pop("held")
        outcome = Outcome(**found)
        wrong = _beyond(Usage(outcome.seconds, outcome.megabytes), 0.0, limits)
        return outcome if wrong is None or outcome.fault else Outcome(**{**asdict(outcome), "kind": wrong})

    def _ended(self) -> str:
        assert self._pid is not None
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = None
        self._socket.close()
        return signal.Signals(-status).name if status < 0 else f"exit code {status}"

    def _stopped(self) -> dict[str, str]:
        """Where the process was, by what faulthandler wrote; a process that still lives is killed."""
        said = self.folder / SAID
        if self._pid is not None:
            sizes = [said.stat().st_size] * 2
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGUSR1)
            end = time.monotonic() + 1
            while (
                sizes[-1] == sizes[0] or sizes[-1] != sizes[-2]
            ) and time.monotonic() < end:  # it is written in parts
                time.sleep(0.02)
                sizes.append(said.stat().st_size)
            self._kill()
        text = said.read_text(errors="replace")
        current = text[max(text.rfind("Current thread"), text.rfind("Thread 0x") if "Current" not in text else 0, 0) :]
        return {"place": place_of(current, innermost_first=True), "details": text[-3000:]}

    def _kill(self) -> None:
        assert self._pid is not None
        for pid in family(self._pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._pid = None
        self._socket.close()


def apart(work: Callable[[], bytes], folder: Path) -> bytes:
    """What ``work`` gives, done in a process of its own: its threads and locks end with it.

    Raises:
        RuntimeError: It fails; what it said is in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, said = folder / "made", folder / SAID
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        try:
            _redirect(said)
            result.write_bytes(work())
        except BaseException:  # noqa: BLE001  it is shown by the parent
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if not result.is_file():
        raise RuntimeError(said.read_text(errors="replace")[-3000:])
    return result.read_bytes()


def place_of(text: str, *, innermost_first: bool = False) -> str:
    """The innermost of our own lines in a traceback, or else the innermost of all."""
    frames = re.findall(r'File "([^"]+)", line (\d+),? in (\S+)', text)
    frames = frames if innermost_first else frames[::-1]
    own = [
        frame for frame in frames if (path := Path(frame[0])).is_relative_to(ROOT) and "benchmarks" not in path.parts
    ]
    if not (own or frames):
        return UNKNOWN
    name, line, function = (own or frames)[0]
    path = Path(name)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-3:])
    return f"{shown}:{line} {function}"


def _beyond(used: Usage, waited: float, limits: Limits) -> str | None:
    if used.seconds > limits.seconds:
        return f"more than {limits.seconds:g} s"
    if used.megabytes > limits.megabytes:
        return f"more than {limits.megabytes:,.0f} MB"
    return f"waits longer than {limits.waiting:g} s" if waited > limits.waiting else None


# -- in the process itself -------------------------------------------------------------------------------------------


def _serve(connection: socket.socket, read: Read, folder: Path) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    said = _redirect(folder / SAID)
    faulthandler.enable(file=said, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=said, all_threads=True)
    os.chdir(folder / WORK)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    gc.collect()
    gc.freeze()
    while (content := _receive(connection)) is not None:
        reset_peak()
        before, began = usage_of([os.getpid()]), _busy()
        outcome = _tried(read, folder / WORK, content)
        seconds = _busy() - began
        if outcome["kind"] in ("read", "refused"):
            outcome |= _printed(said)
        outcome |= _harm(folder)  # which is worse than any exception that came of it
        os.ftruncate(said, 0)
        del content
        grown = max(0.0, peak_megabytes() - before.megabytes)
        held = usage_of([os.getpid()]).megabytes
        _send(connection, json.dumps({**outcome, "seconds": seconds, "megabytes": grown, "held": held}).encode())
    os._exit(0)


def _tried(read: Read, folder: Path, content: bytes) -> dict[str, object]:
    try:
        read(folder, content)
    except InputError as error:
        said = str(error)
        if len(said) > _LONGEST_MESSAGE:
            place = place_of(traceback.format_exc())
            return {
                "kind": f"a message of more than {_LONGEST_MESSAGE:,} characters",
                "place": place,
                "message": said[:200],
            }
        chain, starved = error.__cause__ or error.__context__, False
        while chain is not None:
            starved = starved or isinstance(chain, MemoryError) or "allocate memory" in str(chain)
            chain = chain.__cause__ or chain.__context__
        return {"kind": "refused", "message": said, "starved": starved}
    except BaseException as error:  # noqa: BLE001  whatever it is, it is what we look for
        details = traceback.format_exc()
        message = f"{error}".split("\n")[0][:200]
        return {
            "kind": type(error).__name__,
            "place": place_of(details),
            "message": message,
            "details": details[-6000:],
        }
    return {"kind": "read"}


def _printed(said: int) -> dict[str, object]:
    """What an input had printed, where that holds a traceback."""
    size = os.fstat(said).st_size
    if not size:
        return {}
    text = os.pread(said, 1 << 20, max(0, size - (1 << 20))).decode(errors="replace")
    if "Traceback (most recent call last)" not in text and "Exception ignored" not in text:
        return {}
    return {"kind": "prints a traceback", "place": place_of(text), "message": text.strip().splitlines()[-1][:200],
            "details": text[-6000:]}  # fmt: skip


def _harm(folder: Path) -> dict[str, object]:
    """What an input has removed or made where nothing of it should be; that is put right."""
    keep, made = folder / OUTSIDE / "keep", [folder / WORK / "made", folder / "made"]
    removed = not keep.is_file()
    others = [
        path for path in (*made, *(() if removed else (folder / OUTSIDE).iterdir())) if path.exists() and path != keep
    ]
    for path in others:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if removed:
        keep.parent.mkdir(exist_ok=True)
        keep.write_text("kept")
        return {"kind": "harm", "place": "a file outside was removed"}
    return {"kind": "harm", "place": f"{others[0].relative_to(folder)} was made"} if others else {}


def _redirect(path: Path) -> int:
    """Let all that is printed go to a file; gives its descriptor."""
    said = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.unraisablehook = sys.__unraisablehook__
    return said


def _busy() -> float:
    ours, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return ours.ru_utime + ours.ru_stime + others.ru_utime + others.ru_stime


def _send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(struct.pack("<Q", len(content)))
    connection.sendall(content)


def _receive(connection: socket.socket) -> bytes | None:
    """The next message; None where the other side has ended."""
    head = _exactly(connection, 8)
    return None if head is None else _exactly(connection, struct.unpack("<Q", head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    content = bytearray()
    while len(content) < size:
        part = connection.recv(min(size - len(content), 1 << 20))
        if not part:
            return None
        content += part
    return bytes(content)
