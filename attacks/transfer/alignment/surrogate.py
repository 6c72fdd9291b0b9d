"""A surrogate of the victim's embedder: a closed-form map from the attacker's own space, and a head that corrects it.

    surrogate.build(own=576, victim=384)
    made = surrogate(own, mapped)               # (n, k), (n, d) -> (n, d): like the victim's vectors of these texts
    surrogate.adversarial(made, real)           # whether they can be told from the victim's
    pivot(made, victim)                         # of known texts: how far they are from the victim's own

All vectors of the victim's space are standardised: their mean is 0, and the mean variance of a coordinate 1. The losses
are those of the authors' code (Huang et al. 2024).
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import mse_loss, normalize, softplus


class Surrogate(nn.Module):
    """The head, and the discriminator that it is trained against.

    Both have one hidden layer, as the authors' have. The head's result is added to that of the closed-form map, and is
    0 at first.

    Args:
        pivot_weight: Of the distance from the victim's vectors of the known texts.
        adversarial_weight: Of the discriminator's judgement.
        discriminator: Hidden units of the discriminator.
    """

    def __init__(
        self,
        pivot_weight: NonNegativeFloat = 1.0,
        adversarial_weight: NonNegativeFloat = 1.0,
        discriminator: PositiveInt = 128,
    ) -> None:
        super().__init__()
        self.pivot_weight, self.adversarial_weight, self.hidden = pivot_weight, adversarial_weight, discriminator

    def build(self, own: int, victim: int) -> None:
        """Make the layers for spaces of these dimensions."""
        middle, last = nn.Linear(own, (own + victim) // 2), nn.Linear((own + victim) // 2, victim)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(middle, nn.ReLU(), last)
        self.discriminator = nn.Sequential(nn.Linear(victim, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1))

    def forward(self, own: Tensor, mapped: Tensor) -> Tensor:
        """Surrogate vectors: own ones, (n, k), and what the closed-form map makes of them, (n, d) -> (n, d)."""
        corrected: Tensor = mapped + self.head(own)
        return corrected

    def loss(self, made: Tensor, real: Tensor, known: Tensor, victim: Tensor) -> Tensor:
        """Both losses below: surrogate vectors of any texts and real ones, and those of known texts in both spaces."""
        return self.pivot_weight * pivot(known, victim) + self.adversarial_weight * self.adversarial(made, real)

    def adversarial(self, made: Tensor, real: Tensor) -> Tensor:
        """The discriminator's loss plus the head's, (n, d), (m, d) -> scalar.

        The discriminator is to tell vectors of the victim from the head's, and the head's are to be taken for the
        victim's; the gradient of each loss reaches its own weights only.
        """
        of_real, of_made = self.discriminator(real), self.discriminator(made.detach())
        fixed = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        of_head = softplus(-torch.func.functional_call(self.discriminator, fixed, (made,))).mean()
        loss: Tensor = softplus(-of_real).mean() + softplus(of_made).mean() + of_head
        return loss


def pivot(made: Tensor, victim: Tensor) -> Tensor:
    """Mean squared distance of a coordinate, and of the cosines of all pairs of texts, (n, d), (n, d) -> scalar."""
    return mse_loss(made, victim) + mse_loss(_cosines(made), _cosines(victim))


def _cosines(vectors: Tensor) -> Tensor:
    vectors = normalize(vectors, dim=-1)
    return vectors @ vectors.T
