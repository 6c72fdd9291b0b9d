"""Search for the inputs of many targets, one length after another; an interrupted search resumes from its snapshot.

    search = Search(attack, model, rows, index, unfinished)
    search.run([(1, [0, 3]), (2, [1, 2])])      # inputs of one token for targets 0 and 3, of two for 1 and 2

The attack (SODA, GCG) updates a batch of inputs; its state is a dict of tensors whose first dimension is the batch.
Solved targets leave the batch and are replaced by waiting ones. Random numbers are derived from (seed, example, length,
restart, purpose), and every target has its own loss. So the result for a target depends neither on the other targets
nor on when it became active. All restarts of a target start and stop together.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.parts.batch_cache import SearchState
from unembed.embedders.outputs import Seen
from unembed.embedders.transformer import WhiteBox

if TYPE_CHECKING:
    from unembed.attacks.lm_inversion.base import LanguageModelAttack

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """The B inputs that an attack updates.

    Attributes:
        length: Tokens of all the inputs, n.
        iteration: Of each input, from 1, (B,); they differ where targets became active at different times.
        best: The best candidate of each one's target so far, ids (B, n); -1 before the first.
    """

    model: WhiteBox
    seen: Seen
    length: int
    iteration: Tensor
    examples: tuple[int, ...]
    restarts: tuple[int, ...]
    seed: int
    best: Tensor

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, places: Tensor) -> Rows:
        """Some of the inputs, by their places (k,)."""
        chosen = places.tolist()
        return replace(
            self,
            seen=self.seen[places],
            iteration=self.iteration[places],
            examples=tuple(self.examples[place] for place in chosen),
            restarts=tuple(self.restarts[place] for place in chosen),
            best=self.best[places],
        )

    def generator(self, row: int, purpose: int) -> torch.Generator:
        """Random numbers of one input for one purpose (an iteration, say), on the CPU."""
        parts = (self.seed, self.examples[row], self.length, self.restarts[row], purpose)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


SNAPSHOT_SECONDS = 60.0  # between two files that a killed search resumes from
_WORST = 3e38  # replaces a NaN loss, so that any candidate is better than none


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Budget, batch size and tolerances of a search; configs/attack/soda.yaml explains them."""

    iterations: PositiveInt = 1000
    active_targets: PositiveInt = 32
    restarts: PositiveInt = 1
    seed: NonNegativeInt = 0
    atol: NonNegativeFloat = 1e-4
    rtol: NonNegativeFloat = 1e-4
    keep: Literal["best", "last"] = "best"


@dataclass(slots=True)
class Found:
    """What was found for a target so far, over all lengths; ``verified``: the ids reproduce the observation."""

    ids: list[int] | None = None
    loss: float = float("inf")
    verified: bool = False
    iterations: int = 0
    passes: int = 0


class ActiveTargets:
    """The active targets of one stage of a search.

    ``book`` holds, a row for each of them: ``target`` (its place), ``iteration``, ``passes``, ``before`` and ``losses``
    (the candidates of its restarts, (R, n), and their losses, (R,)), ``ids`` and ``loss`` of the best so far.
    ``waiting`` are the places of targets that are not active yet, ``state`` is the attack's, a row for each restart of
    each active target.
    """

    def __init__(
        self, search: Search, length: int, waiting: list[int], book: State | None = None, state: State | None = None
    ) -> None:
        self.search, self.length, self.waiting = search, length, waiting
        self.book, self.state = book or {}, state or {}
        self._rows: Rows | None = None  # made anew where targets come or go: observations are large

    def fill(self) -> bool:
        """Fill free rows with waiting targets; False if no targets are left."""
        taken = len(self.book["target"]) if self.book else 0
        new = self.waiting[: self.search.settings.active_targets - taken]
        if new:
            self.waiting = self.waiting[len(new) :]
            book = self._new(new)
            self.state = _joined(self.state, self.search.method.begin(self._rows_of(book)))
            self.book = _joined(self.book, book)
            self._rows = None
        return bool(self.book) and len(self.book["target"]) > 0

    def step(self) -> None:
        """One iteration of all active targets; solved targets, and those without iterations left, leave the batch."""
        method, settings, book = self.search.method, self.search.settings, self.book
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
        book, settings = self.book, self.search.settings
        count, restarts = candidates.shape[:2]
        changed = (candidates != book["before"]).any(dim=2)
        book["before"] = candidates.clone()
        book["passes"] += changed.sum(dim=1)
        chosen = changed.flatten().nonzero().squeeze(1)
        if not len(chosen):
            return torch.zeros(count, dtype=torch.bool, device=candidates.device)
        some = seen[chosen]
        logits = self.search.model.logits(candidates.flatten(0, 1)[chosen], some.continuation)
        agrees = self.search.model.observation.agrees(some, logits, settings.atol, settings.rtol)
        distance = self.search.method.distance(self.search.model, some, logits).float()
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
        if self.search.settings.keep == "last":
            last, restart = book["losses"].min(dim=1)
            ids = torch.where(solved[:, None], ids, _of_restart(book["before"], restart))
            loss = torch.where(solved, loss, last)
        for row in leaving.nonzero().squeeze(1).tolist():
            found = self.search.found[int(book["target"][row])]
            found.iterations += int(book["iteration"][row])
            found.passes += int(book["passes"][row])
            if solved[row] or float(loss[row]) < found.loss or found.ids is None:
                found.ids, found.loss = ids[row].tolist(), float(loss[row])
                found.verified = bool(solved[row])
        kept = (~leaving).nonzero().squeeze(1)
        self.book = {name: tensor[kept] for name, tensor in book.items()}
        restarts = self.search.settings.restarts
        rows = (kept[:, None] * restarts + torch.arange(restarts, device=kept.device)).flatten()
        self.state = {name: tensor[rows] for name, tensor in self.state.items()}
        self._rows = None

    def _new(self, targets: list[int]) -> State:
        device, restarts = self.search.model.device, self.search.settings.restarts
        count = len(targets)
        none = torch.zeros(count, dtype=torch.long, device=device)
        return {
            "target": torch.tensor(targets, device=device),
            "iteration": none,
            "passes": none.clone(),
            "before": torch.full((count, restarts, self.length), -1, device=device),
            "losses": torch.full((count, restarts), torch.inf, device=device),
            "ids": torch.full((count, self.length), -1, device=device),
            "loss": torch.full((count,), torch.inf, device=device),
        }

    def _rows_of(self, book: State) -> Rows:
        restarts = self.search.settings.restarts
        places = book["target"].repeat_interleave(restarts)
        return Rows(
            model=self.search.model,
            seen=self.search.seen[places],
            length=self.length,
            iteration=book["iteration"].repeat_interleave(restarts),
            examples=tuple(self.search.index[place] for place in places.tolist()),
            restarts=tuple(range(restarts)) * len(book["target"]),
            seed=self.search.settings.seed,
            best=book["ids"].repeat_interleave(restarts, dim=0),
        )


def _joined(old: State, new: State) -> State:
    return {name: torch.cat([old[name], tensor]) if name in old else tensor for name, tensor in new.items()}


def _of_restart(values: Tensor, restart: Tensor) -> Tensor:
    return values[torch.arange(len(restart), device=restart.device), restart]


class Search:
    """A search for the inputs behind observations ``rows`` (N, width) of examples ``index``; ``model`` is in fp32."""

    def __init__(
        self,
        method: LanguageModelAttack,
        model: WhiteBox,
        rows: Tensor,
        index: Sequence[int],
        unfinished: SearchState,
    ) -> None:
        self.method, self.model, self.index, self.settings = method, model, list(index), method.settings
        self.seen = model.observation.parse(rows.to(model.device))
        self.found = [Found() for _ in index]
        self.unfinished = unfinished
        self._written = time.monotonic()

    def run(self, stages: Sequence[tuple[int, Sequence[int]]]) -> list[Found]:
        """Search the inputs of each stage's length for its targets, but for those that an earlier stage has solved."""
        first, active = self._interrupted(stages)
        for number in range(first, len(stages)):
            length, wanted = stages[number]
            if active is None:
                active = ActiveTargets(self, length, [place for place in wanted if not self.found[place].verified])
            while active.fill():
                active.step()
                self._keep(number, active)
            active = None
        self.unfinished.remove()
        return self.found

    def _interrupted(self, stages: Sequence[tuple[int, Sequence[int]]]) -> tuple[int, ActiveTargets | None]:
        saved = self.unfinished.read()
        if saved is None:
            return 0, None
        self.found = [Found(**values) for values in saved["found"]]
        book, state = (
            {name: tensor.to(self.model.device) for name, tensor in saved[part].items()} for part in ("book", "state")
        )
        return saved["stage"], ActiveTargets(self, stages[saved["stage"]][0], saved["waiting"], book, state)

    def _keep(self, stage: int, active: ActiveTargets) -> None:
        if time.monotonic() - self._written < SNAPSHOT_SECONDS:
            return
        self.unfinished.write(
            {
                "stage": stage,
                "found": [asdict(found) for found in self.found],
                "waiting": active.waiting,
                "book": active.book,
                "state": {name: tensor.detach() for name, tensor in active.state.items()},
            }
        )
        self._written = time.monotonic()
