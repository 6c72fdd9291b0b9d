"""Search for the inputs of many targets, one length after another; an interrupted search resumes from its snapshot.

    search = Search(method, model, rows, index, SearchSettings(iterations=1000), unfinished)
    search.run([(1, [0, 3]), (2, [1, 2])])      # inputs of one token for targets 0 and 3, of two for 1 and 2

Random numbers are derived from (seed, example, length, restart, purpose), and every target has its own loss. So the
result for a target depends neither on the other targets nor on when it became active. All restarts of a target start
and stop together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.active_targets import ActiveTargets, Found, SearchSettings, Task
from unembed.attacks.lm_inversion.method import Method, State
from unembed.attacks.parts.batch_cache import SearchState
from unembed.embedders.observation import WhiteBox

SNAPSHOT_SECONDS = 60.0  # a snapshot is written after this time even within snapshot_every iterations


class Search:
    """A search for the inputs behind some observations.

    Args:
        method: Takes the steps.
        model: Whose inputs are searched, in fp32.
        rows: Observations (N, width).
        index: Example of each.
        settings: How long, how wide, how exact.
        unfinished: Where a killed search left off.
    """

    def __init__(
        self,
        method: Method,
        model: WhiteBox,
        rows: Tensor,
        index: Sequence[int],
        settings: SearchSettings,
        unfinished: SearchState,
    ) -> None:
        seen = model.observation.parse(rows.to(model.device))
        self.task = Task(method, model, seen, list(index), settings, [Found() for _ in index])
        self.unfinished = unfinished
        self._since, self._written = 0, time.monotonic()

    def run(self, stages: Sequence[tuple[int, Sequence[int]]]) -> list[Found]:
        """Search the inputs of each stage's length for its targets, but for those that an earlier stage has solved."""
        task = self.task
        first, active = self._interrupted(stages)
        for number in range(first, len(stages)):
            length, wanted = stages[number]
            if active is None:
                active = ActiveTargets(task, length, [place for place in wanted if not task.found[place].verified])
            while active.fill():
                active.step()
                self._keep(number, active)
            active = None
        self.unfinished.remove()
        return task.found

    def _interrupted(self, stages: Sequence[tuple[int, Sequence[int]]]) -> tuple[int, ActiveTargets | None]:
        """The stage to begin with, and the active targets of a killed search; takes over what was found."""
        task, saved = self.task, self.unfinished.read()
        if saved is None:
            return 0, None
        task.found[:] = [Found(**values) for values in saved["found"]]
        book, state = (_moved(saved[name], task.model.device) for name in ("book", "state"))
        return saved["stage"], ActiveTargets(task, stages[saved["stage"]][0], saved["waiting"], book, state)

    def _keep(self, stage: int, active: ActiveTargets) -> None:
        """Write a file where the last was written long enough ago."""
        self._since += 1
        many = self._since >= self.task.settings.snapshot_every
        if not many and time.monotonic() - self._written < SNAPSHOT_SECONDS:
            return
        self.unfinished.write(
            {
                "stage": stage,
                "found": [asdict(found) for found in self.task.found],
                "waiting": active.waiting,
                "book": active.book,
                "state": {name: tensor.detach() for name, tensor in active.state.items()},
            }
        )
        self._since, self._written = 0, time.monotonic()


def _moved(state: State, device: torch.device) -> State:
    return {name: tensor.to(device) for name, tensor in state.items()}
