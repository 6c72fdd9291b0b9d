"""defense=guard: a trained projection that keeps neighbours and hides the vector, after EGuard.

    defense=guard defense.share=0.5        # half the vector, half what the network makes of it

EGuard (Liu et al. 2024, arXiv 2411.05034) trains a projection so that tasks work as before while the mutual information
with the text falls. Here a network with one hidden layer is trained on the store's vectors alone: the cosines within a
batch should be those of the vectors themselves, and a critic that tells which output belongs to which vector should
fail. The critic's success bounds the mutual information from below (InfoNCE; van den Oord et al. 2018). The authors'
network reads the states of all tokens, and keeps antonyms apart with labelled pairs; both need more than a store has.

Nothing is drawn at random once the network is trained, so it is one fixed map, which an attacker can learn to undo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, Strength

BATCH, RATE = 256, 1e-3
SHARPNESS = 20.0  # of the critic: the factor of a cosine


class Guard(BaseDefense):
    """A fitted network; the output has length 1.

    Args:
        share: Of the network's output; the rest is the vector itself.
        hiding: Weight of the mutual information in the loss.
        steps: Of the training, of 256 vectors each.
        seed: Of weights and batches.
    """

    holds = (
        "against nobody where a search keeps 90 % of its results: 83 % of what is read without it is still read, "
        "and all with 1,000 known pairs"
    )

    strength = Strength("share", 0.01, 1.0)

    def __init__(
        self,
        share: Annotated[float, Field(gt=0, le=1)] = 1.0,
        hiding: NonNegativeFloat = 0.1,
        steps: PositiveInt = 400,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.share, self.hiding, self.steps, self.seed = share, hiding, steps, seed
        self.weights: dict[str, Tensor] = {}

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Train the network on (n, d), against a critic that is trained with it."""
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.inference_mode(False):
            torch.manual_seed(self.seed)
            vectors = normalize(embeddings.float().clone(), dim=1)
            dimension = vectors.shape[1]
            network = nn.Sequential(nn.Linear(dimension, dimension), nn.GELU(), nn.Linear(dimension, dimension))
            critic = nn.Linear(dimension, dimension)
            learners = [torch.optim.Adam(one.parameters(), RATE) for one in (network, critic)]
            for _ in range(self.steps):
                batch = vectors[torch.randint(len(vectors), (BATCH,))]
                made = normalize(network(batch), dim=1)
                pairing = SHARPNESS * normalize(critic(made), dim=1) @ batch.T
                known = -cross_entropy(pairing, torch.arange(BATCH))  # nats that the critic knows, less log BATCH
                kept = (made @ made.T - batch @ batch.T).square().mean() * dimension
                for learner, loss in zip(learners, (kept + self.hiding * known, -known), strict=True):
                    learner.zero_grad()
                    torch.autograd.backward(loss, retain_graph=True, inputs=learner.param_groups[0]["params"])
                for learner in learners:
                    learner.step()
        names = ("first", "first_bias", "second", "second_bias")
        self.weights = {name: one.detach() for name, one in zip(names, network.parameters(), strict=True)}

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        weights = {name: one.to(embeddings) for name, one in self.weights.items()}
        hidden = nn.functional.gelu(embeddings @ weights["first"].T + weights["first_bias"])
        made = normalize(hidden @ weights["second"].T + weights["second_bias"], dim=1)
        return normalize(self.share * made + (1 - self.share) * normalize(embeddings, dim=1), dim=1)

    def state(self) -> dict[str, Tensor]:
        """Weights (d, d) and biases (d,) of both layers."""
        return self.weights

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if len({len(tensor) for tensor in state.values()}) != 1:
            raise InputError("defense=guard: what was fitted is not a network of one width")
        self.weights = dict(state)
