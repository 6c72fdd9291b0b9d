"""Progress of a long job: a bar on a terminal, otherwise an occasional line."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

_SILENT_SECONDS = 3.0  # shorter jobs print nothing
_LINE_SECONDS = 60.0


class Progress:
    """Counts ``total`` texts on stderr.

    The time left is extrapolated from the rate so far, so the work should not be sorted by size.
    """

    def __init__(self, total: int, what: str = "embedding", shown: bool = True) -> None:
        self._total = total
        self._what = what
        self._shown = shown
        self._done = 0
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if shown and sys.stderr.isatty():
            from tqdm import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(
                total=total, desc=what, unit=" texts", delay=_SILENT_SECONDS, file=sys.stderr, smoothing=0.05
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, texts: int) -> None:
        """Count ``texts`` more as done."""
        self._done += texts
        if self._bar is not None:
            self._bar.update(texts)
        elif self._shown:
            self._print_line(time.monotonic())

    def _print_line(self, now: float) -> None:
        elapsed = now - self._started
        left = elapsed / self._done * (self._total - self._done) if self._done else 0.0
        first = self._last_line == self._started
        due = elapsed > _SILENT_SECONDS and left > _SILENT_SECONDS if first else now - self._last_line > _LINE_SECONDS
        if not due:
            return
        self._last_line = now
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
