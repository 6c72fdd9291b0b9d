"""Candidates of a GCG step: the current input with one token swapped (Skapars et al. 2025, appendix C).

    gradient of the loss in the one-hot input -> the k tokens of each place along which the loss falls fastest
    -> sample a position and one of its k tokens uniformly, for each candidate

The samples may repeat a pair or the current token; ``distinct`` removes duplicates, which need not be evaluated twice.
The distribution is that of the package nanogcg (test_swaps.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.losses import Loss
from unembed.attacks.lm_inversion.method import Rows


def promising_tokens(gradient: Tensor, k: int) -> Tensor:
    """The k tokens of each place whose one-hot coordinate has the smallest gradient: (..., n, V) -> (..., n, k).

    All tokens where the vocabulary has fewer than k.
    """
    return gradient.topk(min(k, gradient.shape[-1]), dim=-1, largest=False).indices


def drawn_swaps(ids: Tensor, tokens: Tensor, count: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Candidates of each target, one token swapped in each: (B, n), (B, n, k) -> (B, count, n).

    Each target has its own generator (on the CPU), so its candidates do not depend on the other targets.

    Args:
        ids: The present input of each target.
        tokens: What may stand at each place.
        count: Candidates of a target.
        generators: One a target.
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
