"""attack=gcg: greedy coordinate gradient (Zou et al. 2023; Skapars et al. 2025, appendix C).

    an input -> the gradient of the loss in its one-hot tokens -> the k tokens of each place along which the loss falls
             fastest -> 700 inputs with one token swapped: a position and one of its k tokens, sampled uniformly
             -> run them all -> the best is the next input, even if it is worse than the last

A step takes hundreds of forward passes; SODA's takes four. Candidates of all targets run together. The samples may
repeat a pair or the current token; ``distinct`` removes duplicates. Their distribution is that of the package nanogcg
(test_swaps.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.lm_inversion.base import LanguageModelAttack, Loss
from unembed.attacks.lm_inversion.search import Rows, State


def promising_tokens(gradient: Tensor, k: int) -> Tensor:
    """The k tokens of each place with the smallest gradient, or all if there are fewer: (..., n, V) -> (..., n, k)."""
    return gradient.topk(min(k, gradient.shape[-1]), dim=-1, largest=False).indices


def drawn_swaps(ids: Tensor, tokens: Tensor, count: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Candidates of each target, one token swapped in each: (B, n), (B, n, k) -> (B, count, n).

    Each target has its own generator (on the CPU), so its candidates do not depend on the other targets.
    """
    length, k = tokens.shape[1:]
    pairs = torch.stack([torch.randint(length * k, (count,), generator=one) for one in generators]).to(ids.device)
    candidates = ids[:, None].repeat(1, count, 1)
    return candidates.scatter_(2, (pairs // k)[..., None], tokens.flatten(1).gather(1, pairs)[..., None])


@torch.no_grad()
def losses_of(candidates: Tensor, owners: Tensor, rows: Rows, loss: Loss, together: int) -> Tensor:
    """The loss of each candidate against its owner's target, ``together`` of them run at once: (M, n), (M,) -> (M,)."""
    found = []
    for part, of in zip(torch.split(candidates, together), torch.split(owners, together), strict=True):
        seen = rows.seen[of]
        found.append(loss(rows.model.observation, seen, rows.model.logits(part, seen.continuation)))
    return torch.cat(found)


def best_of(candidates: Tensor, owners: Tensor, losses: Tensor) -> Tensor:
    """The candidate of each target with the least loss: (M, n), (M,) sorted by target, (M,) -> (B, n).

    Every target has one at least; of equals it is the first.
    """
    # Sorted by loss, then by owner without disturbing that: each owner's first is its best.
    order = losses.argsort(stable=True)
    order = order[owners[order].argsort(stable=True)]
    counts = owners.bincount()
    return candidates[order[counts.cumsum(0) - counts]]


def distinct(candidates: Tensor) -> tuple[Tensor, Tensor]:
    """The different candidates of all targets, and whose they are: (B, C, n) -> (M, n), (M,), sorted by target."""
    owners = torch.arange(len(candidates), device=candidates.device)[:, None, None].expand(-1, candidates.shape[1], 1)
    rows = torch.unique(torch.cat([owners, candidates], 2).flatten(0, 1), dim=0)
    return rows[:, 1:], rows[:, 0]


_LOGITS_AT_ONCE = 2**22  # of one forward pass
_START = 0  # purpose of the random numbers of the first input; a step's are those of its number


class GCG(LanguageModelAttack):
    """Swaps one token a step. Starts from random tokens."""

    def __init__(
        self,
        loss: Loss,
        candidates: PositiveInt = 700,
        k: PositiveInt = 128,
        **search: Any,
    ) -> None:
        super().__init__(loss, **search)
        self.candidates, self.k = candidates, k

    def passes(self, state: State) -> Tensor:
        return state["spent"]  # the gradient's three, and one for each different candidate

    def begin(self, rows: Rows) -> State:
        size = (rows.length,)
        sampled = [
            torch.randint(rows.model.inputs, size, generator=rows.generator(i, _START)) for i in range(len(rows))
        ]
        ids = torch.stack(sampled).to(rows.model.device)
        return {"ids": ids, "spent": torch.zeros_like(ids[:, 0])}

    def step(self, state: State, rows: Rows) -> Tensor:
        tokens = promising_tokens(self._gradient(state["ids"], rows), self.k)
        generators = [rows.generator(i, number) for i, number in enumerate(rows.iteration.tolist())]
        candidates, owners = distinct(drawn_swaps(state["ids"], tokens, self.candidates, generators))
        together = max(1, _LOGITS_AT_ONCE // (rows.model.observation.vocabulary * rows.seen.ids.shape[1]))
        state["ids"] = best_of(candidates, owners, losses_of(candidates, owners, rows, self.objective, together))
        state["spent"] = owners.bincount(minlength=len(rows)) + 3
        return state["ids"]

    def _gradient(self, ids: Tensor, rows: Rows) -> Tensor:
        """Of each input's loss in its one-hot tokens, (B, n, inputs)."""
        relaxed = torch.nn.functional.one_hot(ids, rows.model.inputs).float().requires_grad_()
        seen = rows.seen
        logits = rows.model.relaxed(relaxed @ rows.model.input_vectors, seen.continuation, seen.ids.shape[1])
        (gradient,) = torch.autograd.grad(self.distance(rows.model, seen, logits).sum(), relaxed)
        return gradient
