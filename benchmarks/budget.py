"""How long a benchmark trains a model of its own: so many steps on every machine, and at most so many minutes."""

from __future__ import annotations

import argparse
import time


class Budget:
    """Steps decide what comes out; a cap on the time is optional, and a training that it cuts short says so.

    Args:
        steps: After so many the training ends, and the learning rate has fallen to 0.
        minutes: After so many it ends in any case; None: there is no cap.
    """

    def __init__(self, steps: int, minutes: float | None = None) -> None:
        self.steps, self.minutes = steps, minutes
        self._began = time.monotonic()

    def share(self, step: int) -> float:
        """Part of the steps that are done, 0 to 1."""
        return min(1.0, step / max(1, self.steps))

    def over(self, step: int) -> bool:
        """Whether the training ends after ``step`` steps."""
        if step >= self.steps:
            return True
        if self.minutes is None or time.monotonic() - self._began < 60 * self.minutes:
            return False
        print(f"stopped by --minutes {self.minutes:g} at {step:,} of {self.steps:,} steps: the model is undertrained")
        return True


def add_budget(parser: argparse.ArgumentParser, steps: int) -> None:
    """The options ``--steps`` and ``--minutes``."""
    parser.add_argument("--steps", type=int, default=steps, help=f"of training (default {steps:,})")
    parser.add_argument("--minutes", type=float, default=None, help="end the training after so many in any case")
