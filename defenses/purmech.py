"""defense=purmech: local differential privacy of the direction, by the Purkayastha mechanism.

    defense=purmech defense.epsilon=1000       # privacy budget per radian between two texts' vectors

A vector x becomes a random direction y with density proportional to exp(-epsilon * angle(x, y)) (Weggenmann and
Kerschbaum 2021, "Differential Privacy for Directional Data"; PurMech of Du et al. 2023, "Sanitizing Sentence Embeddings
(and Labels) for Local Differential Privacy"). By the triangle inequality no y is more than exp(epsilon * angle(x, x'))
times likelier for x than for x': metric privacy, and plain local differential privacy of pi * epsilon.

The angle from x concentrates near arctan((d - 2) / epsilon): with a budget far below d, y is nearly independent of x.
The noise is reproducible from the seed, for experiments; a service must use a secret seed and must not answer the same
text twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, Strength, generator_of

GRID = 2**16


class PurMech(BaseDefense):
    """Samples a direction near each vector; the result has length 1, since the length would leak information too.

    Args:
        epsilon: Privacy budget per radian.
        seed: Seed of the noise.
    """

    holds = "against nobody where a search keeps 90 % of its results: 89 % of what is read without it is still read"

    perturbs = True
    strength = Strength("epsilon", 1e6, 1.0)

    def __init__(self, epsilon: PositiveFloat = 1000.0, seed: NonNegativeInt = 0) -> None:
        self.epsilon, self.seed = epsilon, seed
        self._angles: dict[int, AngleDensity] = {}

    def output_dimension(self, dimension: int) -> int:
        if dimension < 2:
            raise InputError("defense=purmech: vectors of one dimension have no direction to hide")
        return dimension

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        dimension = self.output_dimension(embeddings.shape[1])
        angles = self._angles.setdefault(dimension, AngleDensity(self.epsilon, dimension))
        directions = torch.nn.functional.normalize(embeddings.double().cpu(), dim=1).numpy()
        private = np.empty_like(directions)
        for row, (direction, example) in enumerate(zip(directions, examples, strict=True)):
            generator = generator_of("purmech", self.seed, example, role, epoch)
            aside = generator.standard_normal(dimension)
            aside -= (aside @ direction) * direction
            angle = angles.sample(generator)
            private[row] = math.cos(angle) * direction + math.sin(angle) / np.linalg.norm(aside) * aside
        return torch.from_numpy(private).to(embeddings)


class AngleDensity:
    """The angle t between a vector and its defended version: density exp(-epsilon * t) * sin(t)^(d - 2), 0 <= t <= pi.

    The density is log-concave. It is sampled by rejection with the envelope of Devroye (1986, "Non-Uniform Random
    Variate Generation", section VII.2): exact up to rounding, with four proposals on average.
    """

    def __init__(self, epsilon: float, dimension: int) -> None:
        self.epsilon, self.power = epsilon, dimension - 2
        self.mode = math.atan2(self.power, epsilon)

    def sample(self, generator: np.random.Generator) -> float:
        """One angle, in radians."""
        while True:
            side, height = generator.uniform(-2, 2), generator.random()
            far = abs(side)
            if far > 1:
                far = 1 - math.log(far - 1)
                height *= math.exp(1 - far)
            angle = self.mode + math.copysign(far, side) / self._peak
            if 0 <= angle <= math.pi and height <= math.exp(float(self._log(np.float64(angle)))):
                return angle

    @cached_property
    def _peak(self) -> float:
        """The density at its mode, slightly underestimated, which only widens the envelope."""
        spread = 40 * (math.sin(self.mode) / math.sqrt(max(self.power, 1)) + 1 / self.epsilon)
        low, high = max(0.0, self.mode - spread), min(math.pi, self.mode + spread)
        values = np.exp(self._log(np.linspace(low, high, GRID)))
        area = (values.sum() - (values[0] + values[-1]) / 2) * (high - low) / (GRID - 1)
        return float((1 - 1e-6) / area)

    def _log(self, angles: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
        """Log of the density relative to its maximum."""
        relative: NDArray[np.float64] = -self.epsilon * (np.asarray(angles) - self.mode)
        if not self.power:
            return relative
        with np.errstate(divide="ignore"):  # log 0 at the ends, where the density is 0
            relative += self.power * np.log(np.sin(angles) / math.sin(self.mode))
        return relative
