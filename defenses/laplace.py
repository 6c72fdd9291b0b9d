"""defense=laplace: local differential privacy by multivariate Laplace noise (Feyisetan et al. 2020, section 2).

    defense=laplace defense.epsilon=1000       # privacy budget per unit of distance between two texts' vectors

Noise z has density proportional to exp(-epsilon * |z|): a uniform direction, and a length from Gamma(d, 1 / epsilon).
No outcome is more than exp(epsilon * |x - x'|) times likelier for x than for x'. The length of the noise is about
d / epsilon: with a budget far below d, the noise dominates. The noise is reproducible from the seed, for experiments; a
service must use a secret seed and must not answer the same text twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, Strength, generator_of


class Laplace(BaseDefense):
    """Adds Laplace noise.

    Args:
        epsilon: Privacy budget per unit of Euclidean distance.
        seed: Seed of the noise.
    """

    holds = "against nobody where a search keeps 90 % of its results: 90 % of what is read without it is still read"

    perturbs = True
    strength = Strength("epsilon", 1e6, 1.0)

    def __init__(self, epsilon: PositiveFloat = 1000.0, seed: NonNegativeInt = 0) -> None:
        self.epsilon, self.seed = epsilon, seed

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        noise = np.empty(embeddings.shape)
        for row, example in zip(noise, examples, strict=True):
            generator = generator_of("laplace", self.seed, example, role, epoch)
            direction = generator.standard_normal(len(row))
            row[:] = generator.gamma(len(row), 1 / self.epsilon) / np.linalg.norm(direction) * direction
        return embeddings + torch.from_numpy(noise).to(embeddings)
