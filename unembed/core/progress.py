"""Progress of a long job: a bar on a terminal, otherwise an occasional line."""

from __future__ import annotations

import sys
import time
from typing import Self

_SILENT_SECONDS = 3.0  # shorter jobs print nothing
_LINE_SECONDS = 60.0


class Progress:
    """Counts ``total`` texts on stderr.

    The time left is extrapolated from the rate so far, so the work should not be sorted by size.
    """

    def __init__(self, total: int, what: str = "embedding", shown: bool = True) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        self._total, self._what, self._done = total, what, 0
        self._lines = shown and not sys.stderr.isatty()
        self._started, self._next_line = time.monotonic(), _SILENT_SECONDS
        bar = shown and not self._lines
        self._bar = tqdm(total=total, desc=what, unit=" texts", delay=_SILENT_SECONDS, smoothing=0.05, disable=not bar)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def advance(self, texts: int) -> None:
        """Count ``texts`` more as done."""
        self._done += texts
        self._bar.update(texts)
        elapsed = time.monotonic() - self._started
        left = elapsed / self._done * (self._total - self._done) if self._done else 0.0
        first = self._next_line == _SILENT_SECONDS
        if not self._lines or elapsed <= self._next_line or (first and left <= _SILENT_SECONDS):
            return
        self._next_line = elapsed + _LINE_SECONDS
        print(
            f"{self._what}: {self._done:,} of {self._total:,} texts ({self._done / self._total:.0%}), "
            f"{self._done / elapsed:,.0f} a second, about {duration(left)} left",
            file=sys.stderr,
            flush=True,
        )


def duration(seconds: float) -> str:
    """Seconds as ``2 h 05 min``, ``3 min 20 s`` or ``41 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
