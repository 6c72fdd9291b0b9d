"""A broken file read in a process of its own, under watch (Linux).

    outcome = attempt(read, b"...", folder)    # Outcome("refused", seconds=0.002, megabytes=0.1)

What the input does is found out: an exception that is no InputError, a traceback that is printed, a crash, processor
time, memory, waiting, and files removed or made outside. The process is forked from one that has imported all and has
started no threads, so it costs milliseconds.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unembed.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "unknown"  # where a process was that the kernel, or a thread of a library, was busy for
Read = Callable[[Path, bytes], object]
_LONGEST_MESSAGE = 4000  # characters
_LARGEST_FILE = 4 << 30  # that a reader may write
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one input: seconds of the processor, seconds by the clock, and MB of memory."""

    seconds: float = 2.0
    waiting: float = 10.0
    megabytes: float = 1000.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an input.

    Attributes:
        kind: ``read``, ``refused``, or what is wrong: the type of an exception, a signal, a limit ...
        place: File, line and function of ours that were last in it; empty where nothing is wrong.
        seconds: Of the processor, processes that it started included.
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


def attempt(read: Read, content: bytes, folder: Path, limits: Limits | None = None) -> Outcome:
    """Read an input in ``folder/work``; whatever is made or removed beside it is harm."""
    limits = limits or Limits()
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("work", "outside"):
        (folder / name).mkdir(parents=True)
    (folder / "outside" / "keep").write_text("kept")
    before = _resident_megabytes()
    pid = os.fork()
    if pid == 0:
        try:
            _read(read, content, folder)
        finally:
            os._exit(70)  # nothing of the parent's is cleaned up twice
    status, used, limit = _wait(pid, limits, before)
    output = (folder / "output").read_text(errors="replace")
    seconds, megabytes = used.ru_utime + used.ru_stime, max(0.0, used.ru_maxrss / 1e3 - before)
    if limit is None and seconds > limits.seconds:
        limit = f"more than {limits.seconds:g} s"
    if limit is None and megabytes > limits.megabytes:
        limit = f"more than {limits.megabytes:g} MB"
    result = folder / "result"
    found = {"seconds": seconds, "megabytes": megabytes}
    if harm := _harm(folder):
        return Outcome("harm", harm, **found)
    if result.is_file():
        outcome = Outcome(**json.loads(result.read_text()), **found)
        if limit is not None and not outcome.fault:
            return Outcome(limit, outcome.place, outcome.message, **found)
        if not outcome.fault and ("Traceback (most recent call last)" in output or "Exception ignored" in output):
            return Outcome("prints a traceback", place_of(output), output.strip().splitlines()[-1], output, **found)
        return outcome
    code = os.waitstatus_to_exitcode(status)
    kind = limit or (signal.Signals(-code).name if code < 0 else f"exit code {code}")
    current = output[max(output.rfind("Current thread"), 0) :]  # faulthandler writes down all threads
    return Outcome(kind, place_of(current, innermost_first=True), details=output[-3000:], **found)


def apart(work: Callable[[], bytes], folder: Path) -> bytes:
    """What ``work`` gives, done in a process of its own: its threads and locks end with it.

    Raises:
        RuntimeError: It fails; its output is in the message.
    """
    outcome = attempt(lambda _, __: (folder / "sound").write_bytes(work()), b"", folder, Limits(60, 120, 4000))
    if outcome.kind != "read":
        raise RuntimeError(f"{outcome.kind} {outcome.place} {outcome.message}\n{outcome.details}")
    return (folder / "sound").read_bytes()


def place_of(text: str, *, innermost_first: bool = False) -> str:
    """The innermost of our own lines in a traceback, or else the innermost of all."""
    frames = re.findall(r'File "([^"]+)", line (\d+),? in (\S+)', text)
    frames = frames if innermost_first else frames[::-1]
    own = [frame for frame in frames if _is_own(Path(frame[0]))]
    if not (own or frames):
        return UNKNOWN
    name, line, function = (own or frames)[0]
    path = Path(name)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-3:])
    return f"{shown}:{line} {function}"


def _is_own(path: Path) -> bool:
    """Whether a file is a part of the product; a virtual environment inside the clone is not."""
    if not path.is_relative_to(ROOT):
        return False
    return not {"benchmarks", "tests", "site-packages"} & set(path.relative_to(ROOT).parts)


def _read(read: Read, content: bytes, folder: Path) -> None:
    """In the forked process: read, write down what came of it, and end."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    output = os.open(folder / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(source, descriptor)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.unraisablehook = sys.__unraisablehook__
    faulthandler.disable()  # where the parent has it, enabling it again would not take signals back from a library
    faulthandler.enable(file=output, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=output, all_threads=True)
    os.chdir(folder / "work")
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.raiseExceptions = True  # an error of a log handler is printed
    result = json.dumps(_tried(read, folder / "work", content))
    (folder / "result").write_text(result)
    os._exit(0)


def _tried(read: Read, folder: Path, content: bytes) -> dict[str, object]:
    try:
        read(folder, content)
    except InputError as error:
        text = str(error)
        if len(text) > _LONGEST_MESSAGE:
            place = place_of(traceback.format_exc())
            return {"kind": "a message that is too long", "place": place, "message": text[:200]}
        chain, starved = error.__cause__ or error.__context__, False
        while chain is not None:
            starved = starved or isinstance(chain, MemoryError) or "allocate memory" in str(chain)
            chain = chain.__cause__ or chain.__context__
        return {"kind": "refused", "message": text, "starved": starved}
    except BaseException as error:  # noqa: BLE001  whatever it is, it is what we look for
        details = traceback.format_exc()
        message = str(error).split("\n")[0][:200]
        found = {"place": place_of(details), "message": message, "details": details[-6000:]}
        return {"kind": type(error).__name__, **found}
    return {"kind": "read"}


def _wait(pid: int, limits: Limits, before: float) -> tuple[int, resource.struct_rusage, str | None]:
    """Status and usage of a process, and the limit that it was killed for."""
    began = time.monotonic()
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            return status, used, None
        seconds, megabytes = _group_usage(pid, before)
        limit = None
        if seconds > limits.seconds:
            limit = f"more than {limits.seconds:g} s"
        elif megabytes > limits.megabytes:
            limit = f"more than {limits.megabytes:g} MB"
        elif time.monotonic() - began > limits.waiting:
            limit = f"waits longer than {limits.waiting:g} s"
        if limit is not None:
            os.kill(pid, signal.SIGUSR1)  # faulthandler writes down where it is
            time.sleep(0.3)
            os.killpg(pid, signal.SIGKILL)
            _, status, used = os.wait4(pid, 0)
            return status, used, limit
        time.sleep(_POLL_SECONDS)


def _group_usage(group: int, before: float) -> tuple[float, float]:
    """Seconds of the processor that a group's processes have used, and MB beyond the ``before`` of each fork."""
    seconds = megabytes = 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[2]) == group:
                seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
                megabytes += max(0.0, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6 - before)
    return seconds, megabytes


def _resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _harm(folder: Path) -> str:
    """What was removed or made where nothing should be."""
    if not (folder / "outside" / "keep").is_file():
        return "a file outside was removed"
    made = [folder / "work" / "made", folder / "made", *(folder / "outside").iterdir()]
    others = [path for path in made if path.exists() and path.name != "keep"]
    return f"{others[0].relative_to(folder)} was made" if others else ""
