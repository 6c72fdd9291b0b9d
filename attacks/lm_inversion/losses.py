"""Losses between the outputs of candidates and targets, one value per target.

    LogitLoss()(observation, seen, logits)       # (B,), differentiable; 0 if the observed parts agree

soda_skapars2025, section 3.1.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from pydantic import PositiveFloat
from torch import Tensor

from unembed.embedders.language_model import Observation, Seen


class Loss(Protocol):
    """A loss of outputs; ``reads_logits``: the target's logits must be seen."""

    @property
    def reads_logits(self) -> bool: ...

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        """Loss of each target, (B,), at least 0, from logits (B, m, V) of candidates followed by its target's text."""
        ...

    def values(self, seen: Seen) -> float:
        """How many values a target's loss is the sum of; times ``scale`` where the loss has one."""
        ...


class LogitLoss:
    """Huber loss between the observed logits and the candidate's at the same ids (equation 12).

    Each target has its own: with a mean over the batch too, as in the authors' code, Adam's epsilon would make updates
    depend on the batch size.

    Args:
        delta: Where the loss turns from a square to a line.
        reduction: ``mean`` over a target's observed logits, as in the authors' code, or their ``sum``.
    """

    reads_logits = True

    def __init__(self, delta: PositiveFloat = 1.0, reduction: Literal["mean", "sum"] = "mean") -> None:
        self.delta, self.reduction = delta, reduction

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        assert seen.logits is not None
        own = observation.of_seen(seen, logits)
        rows = torch.nn.functional.huber_loss(own, seen.logits, reduction="none", delta=self.delta).flatten(1)
        return rows.mean(dim=1) if self.reduction == "mean" else rows.sum(dim=1)

    def values(self, seen: Seen) -> float:
        assert seen.logits is not None
        return 1 if self.reduction == "mean" else seen.logits[0].numel()


class TextLoss:
    """Sum over output tokens of the margin by which each is not the most probable token (equation 11).

    Args:
        log: Compare logarithms of probabilities, as the authors' code does; false: probabilities, as the paper.
    """

    reads_logits = False

    def __init__(self, log: bool = False) -> None:
        self.log = log

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        values = logits if self.log else logits.softmax(dim=-1)
        wanted = values.gather(-1, seen.ids.unsqueeze(-1)).squeeze(-1)
        return (values.amax(dim=-1) - wanted).sum(dim=1)

    def values(self, seen: Seen) -> float:
        return seen.ids.shape[1]


class CosineLoss:
    """One minus the cosine of two vectors, of a sentence embedder's outputs.

    Args:
        scale: Factor of the loss; gradients of a cosine with respect to 30,000 token weights are otherwise small
            relative to Adam's epsilon.
    """

    reads_logits = True

    def __init__(self, scale: PositiveFloat = 1000.0) -> None:
        self.scale = scale

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        assert seen.logits is not None
        cosines = torch.nn.functional.cosine_similarity(logits, seen.logits, dim=-1)
        return self.scale * (1 - cosines).sum(dim=1)

    def values(self, seen: Seen) -> float:
        return self.scale * seen.ids.shape[1]
