"""How far a candidate's output is from the target's; each is a number a target, so that no target's depends on others.

    LogitLoss()(observation, seen, logits)       # (B,), differentiable; 0 where all that is seen agrees

soda_skapars2025, section 3.1.
"""

from __future__ import annotations

from typing import Protocol

import torch
from pydantic import PositiveFloat
from torch import Tensor

from embedders.observation import Observation, Seen


class Loss(Protocol):
    """A loss of outputs.

    Attributes:
        reads_logits: Whether the target's logits must be seen.
    """

    @property
    def reads_logits(self) -> bool: ...

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        """Loss of each target, (B,), at least 0.

        Args:
            observation: What is seen of a target.
            seen: The targets.
            logits: (B, m, V) of the candidates, each followed by its target's text.
        """
        ...


class LogitLoss:
    """Huber loss between the logits that are seen and the candidate's at the same ids, summed (equation 12).

    A sum for each target: under a mean over the batch, Adam's epsilon would make a target's path depend on how many
    others there are.

    Args:
        delta: Where the loss turns from a square to a line.
    """

    reads_logits = True

    def __init__(self, delta: PositiveFloat = 1.0) -> None:
        self.delta = delta

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        assert seen.logits is not None
        own = observation.of_seen(seen, logits)
        rows = torch.nn.functional.huber_loss(own, seen.logits, reduction="none", delta=self.delta)
        return rows.flatten(1).sum(dim=1)


class TextLoss:
    """How far each output token is from being the likeliest (equation 11), summed over the output.

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


class CosineLoss:
    """One minus the cosine of two vectors, of a sentence embedder's outputs.

    Args:
        scale: Gradients of a cosine in the weights of 30,000 tokens are small beside Adam's epsilon.
    """

    reads_logits = True

    def __init__(self, scale: PositiveFloat = 1000.0) -> None:
        self.scale = scale

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        assert seen.logits is not None
        cosines = torch.nn.functional.cosine_similarity(logits, seen.logits, dim=-1)
        return self.scale * (1 - cosines).sum(dim=1)
