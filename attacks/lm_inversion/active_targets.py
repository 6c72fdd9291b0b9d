"""The batch of active targets of a search: solved targets leave the batch and are replaced by waiting ones.

    active = ActiveTargets(task, length=3, waiting=[0, 1, 2])
    while active.fill():
        active.step()
    task.found[0].ids

All their inputs have one length; search.py searches several lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.lm_inversion.method import Method, Rows, State
from unembed.embedders.observation import Seen, WhiteBox

_WORST = 3e38  # replaces a NaN loss, so that any candidate is better than none


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Budget, batch size and tolerances of a search.

    Attributes:
        iterations: For each target, and each length that is tried.
        active_targets: Targets searched at once; at most as many as a test batch has (datamodule.eval_batch_size).
        restarts: Parallel searches per target with different random numbers; the first solution counts.
        seed: Seed of all random numbers.
        atol: Absolute tolerance of observed logits.
        rtol: Relative tolerance of observed logits.
        keep: The result of an unsolved target: the closest candidate of the whole search (``best``), or that of the
            last iteration (``last``, of several restarts the closest), as the papers' algorithms return.
        snapshot_every: Iterations between snapshots, from which an interrupted search is resumed.
    """

    iterations: PositiveInt = 1000
    active_targets: PositiveInt = 32
    restarts: PositiveInt = 1
    seed: NonNegativeInt = 0
    atol: NonNegativeFloat = 1e-4
    rtol: NonNegativeFloat = 1e-4
    keep: Literal["best", "last"] = "best"
    snapshot_every: PositiveInt = 500


@dataclass(slots=True)
class Found:
    """What was found for a target so far.

    Attributes:
        ids: Tokens of the candidate; None before the first.
        loss: Its loss.
        verified: Whether it reproduces the observation.
        iterations: Iterations spent on the target, over all lengths.
        passes: Forward passes spent on the target, over all lengths and restarts.
    """

    ids: list[int] | None = None
    loss: float = float("inf")
    verified: bool = False
    iterations: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """A search for the inputs behind some observations.

    Attributes:
        method: The search method.
        model: The attacked model, in fp32.
        seen: Observations of N targets.
        index: Example index of each target.
        settings: Budget and tolerances.
        found: What was found for each target so far.
    """

    method: Method
    model: WhiteBox
    seen: Seen
    index: Sequence[int]
    settings: SearchSettings
    found: list[Found]


class ActiveTargets:
    """The active targets of one stage of a search.

    ``book`` holds, a row for each of them: ``target`` (its place), ``iteration``, ``passes``, ``before`` and ``losses``
    (the candidates of its restarts, (R, n), and their losses, (R,)), ``ids`` and ``loss`` of the best so far.

    Args:
        task: The whole search.
        length: Tokens of the inputs.
        waiting: Places of the targets that are not active yet, in order.
        book: See above; None: none is active.
        state: The method's, a row for each restart of each active target.
    """

    def __init__(
        self, task: Task, length: int, waiting: list[int], book: State | None = None, state: State | None = None
    ) -> None:
        self.task, self.length, self.waiting = task, length, waiting
        self.book, self.state = book or {}, state or {}
        self._rows: Rows | None = None

    def fill(self) -> bool:
        """Fill free rows with waiting targets; False if no targets are left."""
        taken = len(self.book["target"]) if self.book else 0
        new = self.waiting[: self.task.settings.active_targets - taken]
        if new:
            self.waiting = self.waiting[len(new) :]
            book = self._new(new)
            rows = self._rows_of(book)
            self.state = _joined(self.state, self.task.method.begin(rows))
            self.book = _joined(self.book, book)
            self._rows = None
        return bool(self.book) and len(self.book["target"]) > 0

    def step(self) -> None:
        """One iteration of all active targets; solved targets, and those without iterations left, leave the batch."""
        method, settings, book = self.task.method, self.task.settings, self.book
        book["iteration"] += 1
        if self._rows is None:
            self._rows = self._rows_of(book)
        self._rows.iteration.copy_(book["iteration"].repeat_interleave(settings.restarts))
        self._rows.best.copy_(book["ids"].repeat_interleave(settings.restarts, dim=0))
        candidates = method.step(self.state, self._rows)
        spent = method.passes(self.state)
        each = spent.view(-1, settings.restarts).sum(1) if isinstance(spent, Tensor) else spent * settings.restarts
        book["passes"] += each
        solved = self._check(candidates.view(-1, settings.restarts, self.length), self._rows.seen)
        leaving = solved | (book["iteration"] >= settings.iterations)
        if leaving.any():
            self._leave(leaving, solved)

    def _check(self, candidates: Tensor, seen: Seen) -> Tensor:
        """Run the candidates (A, R, n) that are new, and keep the best; (A,) whether one of them is exact."""
        book, settings = self.book, self.task.settings
        count, restarts = candidates.shape[:2]
        changed = (candidates != book["before"]).any(dim=2)
        book["before"] = candidates.clone()
        book["passes"] += changed.sum(dim=1)
        chosen = changed.flatten().nonzero().squeeze(1)
        if not len(chosen):
            return torch.zeros(count, dtype=torch.bool, device=candidates.device)
        some = seen[chosen]
        logits = self.task.model.logits(candidates.flatten(0, 1)[chosen], some.continuation)
        agrees = self.task.model.observation.agrees(some, logits, settings.atol, settings.rtol)
        distance = self.task.method.distance(self.task.model, some, logits).float()
        losses = book["losses"].flatten()
        losses[chosen] = distance.nan_to_num(nan=_WORST, posinf=_WORST)
        # An exact candidate is before all others, whatever the last digits of its loss.
        ranks = losses.clone()
        ranks[chosen[agrees]] = -1.0
        book["losses"] = losses.view(count, restarts)
        least, restart = ranks.view(count, restarts).min(dim=1)
        better = least < book["loss"]
        book["ids"] = torch.where(better[:, None], _of_restart(candidates, restart), book["ids"])
        book["loss"] = torch.where(better, _of_restart(book["losses"], restart), book["loss"])
        return least == -1.0

    def _leave(self, leaving: Tensor, solved: Tensor) -> None:
        book = self.book
        ids, loss = book["ids"], book["loss"]
        if self.task.settings.keep == "last":
            last, restart = book["losses"].min(dim=1)
            ids = torch.where(solved[:, None], ids, _of_restart(book["before"], restart))
            loss = torch.where(solved, loss, last)
        for row in leaving.nonzero().squeeze(1).tolist():
            found = self.task.found[int(book["target"][row])]
            found.iterations += int(book["iteration"][row])
            found.passes += int(book["passes"][row])
            if solved[row] or float(loss[row]) < found.loss or found.ids is None:
                found.ids, found.loss = ids[row].tolist(), float(loss[row])
                found.verified = bool(solved[row])
        kept = (~leaving).nonzero().squeeze(1)
        self.book = {name: tensor[kept] for name, tensor in book.items()}
        rows = _every_restart(kept, self.task.settings.restarts)
        self.state = {name: tensor[rows] for name, tensor in self.state.items()}
        self._rows = None

    def _new(self, targets: list[int]) -> State:
        device, restarts = self.task.model.device, self.task.settings.restarts
        count = len(targets)
        return {
            "target": torch.tensor(targets, device=device),
            "iteration": torch.zeros(count, dtype=torch.long, device=device),
            "passes": torch.zeros(count, dtype=torch.long, device=device),
            "before": torch.full((count, restarts, self.length), -1, device=device),
            "losses": torch.full((count, restarts), torch.inf, device=device),
            "ids": torch.full((count, self.length), -1, device=device),
            "loss": torch.full((count,), torch.inf, device=device),
        }

    def _rows_of(self, book: State) -> Rows:
        restarts = self.task.settings.restarts
        places = book["target"].repeat_interleave(restarts)
        return Rows(
            model=self.task.model,
            seen=self.task.seen[places],
            length=self.length,
            iteration=book["iteration"].repeat_interleave(restarts),
            examples=tuple(self.task.index[place] for place in places.tolist()),
            restarts=tuple(range(restarts)) * len(book["target"]),
            seed=self.task.settings.seed,
            best=book["ids"].repeat_interleave(restarts, dim=0),
        )


def _joined(old: State, new: State) -> State:
    """The rows of both, those of ``old`` first."""
    return {name: torch.cat([old[name], tensor]) if name in old else tensor for name, tensor in new.items()}


def _of_restart(values: Tensor, restart: Tensor) -> Tensor:
    """Of each target the value of one restart: (A, R, ...), (A,) -> (A, ...)."""
    return values[torch.arange(len(restart), device=restart.device), restart]


def _every_restart(rows: Tensor, restarts: int) -> Tensor:
    """Rows of the state of some active targets."""
    within = torch.arange(restarts, device=rows.device)
    return (rows[:, None] * restarts + within).flatten()
