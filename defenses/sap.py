"""defense=sap: scale and perturb, encryption that roughly keeps which distance is the greater.

    defense=sap defense.approximation=1.0                                # one vector's noise is at most .25 long
    'defense=[sap,permutation]' defense.sap.approximation=1.0            # as IronCore's Cloaked AI has it

Fuchsbauer, Ghosal, Hauke and O'Neill 2021 ("Approximate Distance-Comparison-Preserving Symmetric Encryption", eprint
2021/1666): c = s m + u, with a secret scale s and u uniform in the ball of radius s * approximation / 4. Whoever has
the key decrypts without error, since u follows from the key and a nonce; the search compares ciphertexts, and a query
is encrypted as a document is. IronCore's public code also puts the numbers of all vectors in one secret order.

In d dimensions nearly all of a ball lies near its surface, so u is about Gaussian noise of level s * approximation /
(4 sqrt(d)), which a store shows (denoiser=gaussian). The scale hides nothing from an attacker who knows the length of
the embedder's vectors, so the default is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, Strength, generator_of


class SAP(BaseDefense):
    """Scales vectors and adds a point of a ball.

    Args:
        approximation: Four times the radius of the ball, relative to the scale; the papers' beta.
        scale: The factor s; a part of the secret key.
        seed: Of the perturbation, in place of key and nonce.
    """

    holds = "against nobody where a search keeps 90 % of its results: 89 % of what is read without it is still read"

    perturbs = True
    strength = Strength("approximation", 0.01, 100.0)

    def __init__(
        self, approximation: PositiveFloat = 1.0, scale: PositiveFloat = 1.0, seed: NonNegativeInt = 0
    ) -> None:
        self.approximation, self.scale, self.seed = approximation, scale, seed

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        count, dimension = embeddings.shape
        points = np.empty((count, dimension))
        for row, example in zip(points, examples, strict=True):
            generator = generator_of("sap", self.seed, example, role, epoch)
            direction = generator.standard_normal(dimension)
            radius = self.approximation / 4 * generator.random() ** (1 / dimension)
            row[:] = direction * (radius / np.linalg.norm(direction))
        return self.scale * (embeddings + torch.from_numpy(points).to(embeddings))
