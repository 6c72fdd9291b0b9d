"""Processor time and memory of processes, from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MEGABYTES = os.sysconf("SC_PAGE_SIZE") / 1e6


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
