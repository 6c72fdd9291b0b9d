"""defense=noise: Gaussian noise on every coordinate (Morris et al. 2023, section 6).

    defense=noise defense.level=0.01                         # x + 0.01 * e,          e ~ N(0, 1) in each dimension
    defense=noise defense.level=0.01 defense.relative=true   # x + 0.01 * |x| * e

The papers' noise is absolute, so the effect of a level depends on the length of the embedder's vectors. Relative noise
is equal for vectors of length 1 and has the same effect for any other length. The noise of a vector has the length
level * sqrt(d), multiplied by the vector's length if relative.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, Strength, generator_of


class Noise(BaseDefense):
    """Adds Gaussian noise; the noise of a training example is resampled in every epoch.

    Args:
        level: Standard deviation of the noise in each dimension, the papers' lambda.
        relative: Multiply the noise by the vector's length.
        seed: Seed of the noise.
    """

    holds = "against nobody where a search keeps 90 % of its results: 89 % of what is read without it is still read"

    perturbs = True
    strength = Strength("level", 1e-4, 10.0)

    def __init__(self, level: NonNegativeFloat = 0.01, relative: bool = False, seed: NonNegativeInt = 0) -> None:
        self.level, self.relative, self.seed = level, relative, seed

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        noise = np.empty(embeddings.shape, dtype=np.float32)
        for row, example in zip(noise, examples, strict=True):
            generator_of("noise", self.seed, example, role, epoch).standard_normal(dtype=np.float32, out=row)
        size = self.level * embeddings.norm(dim=1, keepdim=True) if self.relative else self.level
        return embeddings + size * torch.from_numpy(noise).to(embeddings)
