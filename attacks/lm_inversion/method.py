"""The interface of search methods (SODA, GCG, ...).

A *method* updates a batch of inputs; its state is a dict of tensors whose first dimension is the batch. Checks,
restarts and snapshots are handled in active_targets.py and search.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from unembed.embedders.observation import Seen, WhiteBox

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs that a method works on, B of them.

    Attributes:
        model: Whose inputs are searched.
        seen: What is seen of each one's target.
        length: Tokens of all the inputs, n.
        iteration: Number of the iteration that is being taken, from 1, (B,); they differ where targets became active
            at different times.
        examples: Index of each one's example.
        restarts: Number of each one's restart, from 0.
        best: The best candidate of each one's target so far, ids (B, n); -1 before the first.
        seed: Of all random numbers.
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


class Method(Protocol):
    """The update of a search iteration."""

    def passes(self, state: State) -> int | Tensor:
        """Forward passes that the last step took, for every input alike or (B,); a backward pass counts two."""
        ...

    def begin(self, rows: Rows) -> State:
        """The state of new inputs, tensors of first dimension B."""
        ...

    def step(self, state: State, rows: Rows) -> Tensor:
        """Take a step, in place or by replacing tensors of ``state``; returns the candidates, ids (B, n)."""
        ...

    def distance(self, model: WhiteBox, seen: Seen, logits: Tensor) -> Tensor:
        """Loss (B,) of candidates with logits (B, m, V), which ranks candidates that are not exact."""
        ...
