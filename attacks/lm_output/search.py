"""The search for many inputs at once: targets take a slot, leave when they are solved, and waiting ones follow.

    search = Search(method, model, rows, index, SearchSettings(iterations=1000), unfinished)
    search.run([(1, [0, 3]), (2, [1, 2])])      # inputs of one token for targets 0 and 3, of two for 1 and 2

A *method* (SODA, GCG, ...) holds the state of all inputs in tensors whose first dimension is the slots', and takes one
step for all of them; it knows nothing of slots, checks, restarts or files. Every random number comes from (seed,
example, length, restart, purpose), and a loss is a number a target, so what is found for a target depends neither on
its neighbours nor on when it got its slot: all restarts of a target begin together and stop together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attacks.finished import Unfinished
from embedders.observation import Seen
from embedders.white_box import WhiteBox

State = dict[str, Tensor]

_WORST = 3e38  # in the place of a loss that is no number: any candidate is better than none


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How long, how wide and how exact a search is.

    Attributes:
        iterations: For each target and length.
        slots: Targets at once.
        restarts: Searches for a target at once, each with random numbers of its own; the first that ends counts.
        seed: Of all random numbers.
        atol: Within which observed logits agree, absolute.
        rtol: The same, relative to the target's.
        snapshot_every: Iterations between two files that a killed search goes on from.
    """

    iterations: int
    slots: int = 32
    restarts: int = 1
    seed: int = 0
    atol: float = 1e-4
    rtol: float = 1e-4
    snapshot_every: int = 500


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs that a method works on, B of them.

    Attributes:
        model: Whose inputs are searched.
        seen: What is seen of each one's target.
        length: Tokens of all the inputs, n.
        iteration: Number of the iteration that is being taken, from 1, (B,); they differ where targets got their slots
            at different times.
        examples: Index of each one's example.
        restarts: Number of each one's restart, from 0.
        seed: Of all random numbers.
    """

    model: WhiteBox
    seen: Seen
    length: int
    iteration: Tensor
    examples: tuple[int, ...]
    restarts: tuple[int, ...]
    seed: int

    def __len__(self) -> int:
        return len(self.examples)

    def generator(self, row: int, purpose: int) -> torch.Generator:
        """Random numbers of one input for one purpose (an iteration, say), on the CPU."""
        parts = (self.seed, self.examples[row], self.length, self.restarts[row], purpose)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class Method(Protocol):
    """What a search does in an iteration."""

    def passes(self, state: State) -> int | Tensor:
        """Forward passes that the last step took, for every input alike or (B,); a backward pass counts two."""
        ...

    def begin(self, rows: Rows) -> State:
        """The state of new inputs, tensors of first dimension B."""
        ...

    def step(self, state: State, rows: Rows) -> Tensor:
        """Take a step, in place or by new tensors in ``state``; gives each input's candidate, ids (B, n)."""
        ...

    def distance(self, seen: Seen, logits: Tensor) -> Tensor:
        """Loss of candidates by their logits (B, m, V), (B,): which is the best where none is exact."""
        ...


@dataclass(slots=True)
class Found:
    """The best candidate of a target so far.

    Attributes:
        ids: Its tokens; None before the first.
        loss: Its distance from the target.
        verified: Whether it gives all that is seen.
        iterations: Taken for the target, over all lengths.
        passes: Forward passes, over all lengths and restarts.
    """

    ids: list[int] | None = None
    loss: float = float("inf")
    verified: bool = False
    iterations: int = 0
    passes: int = 0


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
        unfinished: Unfinished,
    ) -> None:
        self.method, self.model, self.settings, self.unfinished = method, model, settings, unfinished
        self.seen = model.observation.parse(rows.to(model.device))
        self.index = list(index)
        self.found = [Found() for _ in self.index]

    def run(self, stages: Sequence[tuple[int, Sequence[int]]]) -> list[Found]:
        """Search the inputs of each stage's length for its targets, but for those that an earlier stage has solved."""
        saved = self.unfinished.read() or {"stage": 0, "found": [], "waiting": None}
        for place, values in enumerate(saved["found"]):
            self.found[place] = Found(**values)
        for number in range(saved["stage"], len(stages)):
            length, wanted = stages[number]
            if saved["waiting"] is None:
                waiting = [place for place in wanted if not self.found[place].verified]
                slots = _Slots(self, length, number, waiting)
            else:
                book, state = (_moved(saved[name], self.model.device) for name in ("book", "state"))
                slots = _Slots(self, length, number, saved["waiting"], book, state)
                saved["waiting"] = None
            while slots.active():
                slots.step()
        self.unfinished.remove()
        return self.found


class _Slots:
    """The slots of one stage: all inputs in them have one length.

    ``book`` holds, a row for each target in a slot: ``target`` (its place), ``iteration``, ``passes``, ``before`` (the
    candidates of its restarts, (R, n)), ``ids`` and ``loss`` of the best so far.
    """

    def __init__(
        self, search: Search, length: int, stage: int, waiting: list[int], book: State | None = None,
        state: State | None = None,
    ) -> None:  # fmt: skip
        self.search, self.length, self.stage, self.waiting = search, length, stage, waiting
        self.book, self.state = book or {}, state or {}
        self._rows: Rows | None = None
        self._since_snapshot = 0

    def active(self) -> bool:
        """Fill the free slots; whether there is anything left to do."""
        taken = len(self.book["target"]) if self.book else 0
        new = self.waiting[: self.search.settings.slots - taken]
        if new:
            self.waiting = self.waiting[len(new) :]
            book = self._new(new)
            rows = self._rows_of(book)
            self.state = _joined(self.state, self.search.method.begin(rows))
            self.book = _joined(self.book, book)
            self._rows = None
        return bool(self.book) and len(self.book["target"]) > 0

    def step(self) -> None:
        """One iteration of all targets in a slot; those that are solved or have had theirs leave."""
        search, settings, book = self.search, self.search.settings, self.book
        book["iteration"] += 1
        if self._rows is None:
            self._rows = self._rows_of(book)
        self._rows.iteration.copy_(book["iteration"].repeat_interleave(settings.restarts))
        candidates = search.method.step(self.state, self._rows)
        spent = search.method.passes(self.state)
        each = spent.view(-1, settings.restarts).sum(1) if isinstance(spent, Tensor) else spent * settings.restarts
        book["passes"] += each
        solved = self._judge(candidates.view(-1, settings.restarts, self.length), self._rows.seen)
        leaving = solved | (book["iteration"] >= settings.iterations)
        if leaving.any():
            self._leave(leaving, solved)
        self._since_snapshot += 1
        if self._since_snapshot >= settings.snapshot_every:
            self._snapshot()

    def _judge(self, candidates: Tensor, seen: Seen) -> Tensor:
        """Run the candidates (S, R, n) that are new, and keep the best; (S,) whether one of them is exact."""
        book, settings = self.book, self.search.settings
        slots, restarts = candidates.shape[:2]
        changed = (candidates != book["before"]).any(dim=2)
        book["before"] = candidates.clone()
        book["passes"] += changed.sum(dim=1)
        solved = torch.zeros(slots, dtype=torch.bool, device=candidates.device)
        chosen = changed.flatten().nonzero().squeeze(1)
        if not len(chosen):
            return solved
        some = seen[chosen]
        logits = self.search.model.logits(candidates.flatten(0, 1)[chosen], some.continuation)
        agrees = self.search.model.observation.agrees(some, logits, settings.atol, settings.rtol)
        distance = self.search.method.distance(some, logits).float().nan_to_num(nan=_WORST, posinf=_WORST)
        loss = torch.full((slots * restarts,), torch.inf, device=candidates.device)
        # An exact candidate is before all others, whatever the last digits of its loss.
        loss[chosen] = torch.where(agrees, -1.0, distance)
        least, restart = loss.view(slots, restarts).min(dim=1)
        better = least < book["loss"]
        best = candidates[torch.arange(slots, device=candidates.device), restart]
        book["ids"] = torch.where(better[:, None], best, book["ids"])
        book["loss"] = torch.where(better, least, book["loss"])
        solved |= least == -1.0
        exact = torch.zeros_like(loss)
        exact[chosen] = distance
        at = exact.view(slots, restarts).gather(1, restart[:, None]).squeeze(1)
        book["loss"] = torch.where(solved, at, book["loss"])
        return solved

    def _leave(self, leaving: Tensor, solved: Tensor) -> None:
        book = self.book
        for slot in leaving.nonzero().squeeze(1).tolist():
            found = self.search.found[int(book["target"][slot])]
            found.iterations += int(book["iteration"][slot])
            found.passes += int(book["passes"][slot])
            if solved[slot] or float(book["loss"][slot]) < found.loss or found.ids is None:
                found.ids, found.loss = book["ids"][slot].tolist(), float(book["loss"][slot])
                found.verified = bool(solved[slot])
        kept = (~leaving).nonzero().squeeze(1)
        self.book = {name: tensor[kept] for name, tensor in book.items()}
        rows = _every_restart(kept, self.search.settings.restarts)
        self.state = {name: tensor[rows] for name, tensor in self.state.items()}
        self._rows = None

    def _new(self, targets: list[int]) -> State:
        device, restarts = self.search.model.device, self.search.settings.restarts
        count = len(targets)
        return {
            "target": torch.tensor(targets, device=device),
            "iteration": torch.zeros(count, dtype=torch.long, device=device),
            "passes": torch.zeros(count, dtype=torch.long, device=device),
            "before": torch.full((count, restarts, self.length), -1, device=device),
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
        )

    def _snapshot(self) -> None:
        self._since_snapshot = 0
        content: dict[str, Any] = {
            "stage": self.stage,
            "found": [asdict(found) for found in self.search.found],
            "waiting": self.waiting,
            "book": self.book,
            "state": {name: tensor.detach() for name, tensor in self.state.items()},
        }
        self.search.unfinished.write(content)


def _joined(old: State, new: State) -> State:
    """The rows of both, those of ``old`` first."""
    return {name: torch.cat([old[name], tensor]) if name in old else tensor for name, tensor in new.items()}


def _moved(state: State, device: torch.device) -> State:
    return {name: tensor.to(device) for name, tensor in state.items()}


def _every_restart(slots: Tensor, restarts: int) -> Tensor:
    """Rows of the state of some slots."""
    within = torch.arange(restarts, device=slots.device)
    return (slots[:, None] * restarts + within).flatten()
