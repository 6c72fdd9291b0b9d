"""What stands in the process that reads: it is given inputs, and says what came of each.

What an input prints goes to a file, where faulthandler writes too when the process crashes, or is asked where it is.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unembed.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
WORK, OUTSIDE, SAID = "work", "outside", "said"
UNKNOWN = "unknown"  # where a process was that the kernel, or a thread of a library, was busy for
_LONGEST_MESSAGE = 4000  # characters
_LARGEST_FILE = 4 << 30  # that a reader may write
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MEGABYTES = os.sysconf("SC_PAGE_SIZE") / 1e6

Read = Callable[[Path, bytes], object]


def serve(connection: socket.socket, read: Read, folder: Path) -> None:
    """Read inputs until there are no more, then end the process."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    said = _redirect(folder / SAID)
    faulthandler.disable()  # where the parent has it, enabling it again would not take signals back from a library
    faulthandler.enable(file=said, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=said, all_threads=True)
    os.chdir(folder / WORK)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    gc.collect()
    gc.freeze()
    while (content := receive(connection)) is not None:
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
        send(connection, json.dumps({**outcome, "seconds": seconds, "megabytes": grown, "held": held}).encode())
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


def send(connection: socket.socket, content: bytes) -> None:
    """Send a message with its length."""
    connection.sendall(struct.pack("<Q", len(content)))
    connection.sendall(content)


def receive(connection: socket.socket) -> bytes | None:
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


# -- processor time and memory, from /proc ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of the processor, of children that have ended too, and resident memory."""

    seconds: float
    megabytes: float


def usage_of(pids: Sequence[int]) -> Usage:
    """Of processes together; of one that has ended, nothing."""
    seconds = megabytes = 0.0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            seconds += sum(map(int, fields[11:15])) / _TICKS  # of its own and of its children, user and system
            megabytes += int(fields[21]) * _PAGE_MEGABYTES
    return Usage(seconds, megabytes)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            parents[int(entry)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def reset_peak() -> None:
    """Let this process's peak begin at what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes() -> float:
    """The most that this process held since ``reset_peak``."""
    with Path("/proc/self/status").open("rb") as lines:
        return next(int(line.split()[1]) / 1e3 * 1.024 for line in lines if line.startswith(b"VmHWM"))


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on: state, parent ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
