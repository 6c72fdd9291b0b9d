"""What all benchmarks share: the command line, the clock, ratios of paired rounds, and files of JSON lines.

Every benchmark prints a table for the eye and ends with one JSON line. Imports nothing that takes long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script of this folder finds the packages, too


def command_line(description: str | None, *, own_time: bool = False) -> argparse.ArgumentParser:
    """A parser that shows the script's docstring as it is written.

    Args:
        description: The docstring.
        own_time: Add ``--own-time``, for ``Clock``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if own_time:
        parser.add_argument(
            "--own-time", action="store_true",
            help="count processor time, waiting left out: for a machine shared with other work, with --threads 1",
        )  # fmt: skip
    return parser


class Clock:
    """Seconds; on a GPU, what was asked of it is waited for first.

    Args:
        device: ``cpu`` or ``cuda``.
        own_time: Count the processor time of this process instead of the time that passes.
    """

    def __init__(self, device: str = "cpu", own_time: bool = False) -> None:
        self._on_gpu = device.startswith("cuda")
        self._now = time.process_time if own_time else time.perf_counter

    def __call__(self) -> float:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()
        return self._now()


def ratios(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """These over those, round by round."""
    return [one / other for one, other in zip(these, those, strict=True)]


def spread(found: Sequence[float]) -> str:
    """Median and range of the ratios of paired rounds."""
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f} in {len(found)} rounds)"


def read_rows(path: Path, split: str | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, of one ``split`` or all."""
    with path.open(encoding="utf-8") as lines:
        yield from (row for row in map(json.loads, lines) if split is None or row["split"] == split)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
