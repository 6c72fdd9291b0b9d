"""defense=rounding: every coordinate rounded to a multiple of a step.

    defense=rounding defense.step=0.02

Uniform quantisation (Gray and Neuhoff 1998, "Quantization", section II): the error of a coordinate is at most half a
step, and for small steps behaves like uniform noise with standard deviation step / sqrt(12).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveFloat
from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, Strength


class Rounding(BaseDefense):
    """Rounds coordinates.

    Args:
        step: Distance between neighbouring values.
    """

    holds = "against nobody where a search keeps 90 % of its results: 90 % of what is read without it is still read"

    perturbs = True
    strength = Strength("step", 1e-4, 10.0)

    def __init__(self, step: PositiveFloat = 0.02) -> None:
        self.step = step

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        return (embeddings / self.step).round() * self.step
