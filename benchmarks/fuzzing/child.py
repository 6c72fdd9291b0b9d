"""A process that reads broken files one after another, under watch (Linux).

    child = Child(read, good, folder)          # forked when the first input comes; it reads the good file first
    child.attempt(b"...")                      # Outcome("refused", seconds=0.002, megabytes=0.1)

What an input does to the process is found out: an exception that is no InputError, a traceback that is printed, a
crash, processor time, memory, waiting, and files removed or made outside. After a crash or a kill the next input gets
a new process. Forked from a process that has imported all, it costs milliseconds; that process must not have started
threads, so whatever starts some is done by ``inside.apart``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .inside import OUTSIDE, SAID, WORK, Read, Usage, family, place_of, receive, send, serve, usage_of

_POLL_SECONDS = 0.02
_LEAKED_MEGABYTES = 1000.0  # of many inputs together, after which a new process is started


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
                serve(other, self.read, self.folder)
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
            send(self._socket, content)
            while not select.select([self._socket], [], [], _POLL_SECONDS)[0]:
                waited = time.monotonic() - began
                now = usage_of(family(self._pid) if waited > 10 * _POLL_SECONDS else [self._pid])
                used = Usage(now.seconds - before.seconds, max(used.megabytes, now.megabytes - self._held))
                if (wrong := _beyond(used, waited, limits)) is not None:
                    return Outcome(wrong, **self._stopped(), seconds=used.seconds, megabytes=used.megabytes)
            reply = receive(self._socket)
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


def _beyond(used: Usage, waited: float, limits: Limits) -> str | None:
    if used.seconds > limits.seconds:
        return f"more than {limits.seconds:g} s"
    if used.megabytes > limits.megabytes:
        return f"more than {limits.megabytes:,.0f} MB"
    return f"waits longer than {limits.waiting:g} s" if waited > limits.waiting else None
