"""defense=int8: coordinates quantised to 8 bits with one scale per dimension, as vector stores do.

    defense=int8
    defense=int8 defense.bits=4 defense.quantile=0.99

Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
section 2.1: real = scale * (integer - zero point). The range of a dimension is the range of the training vectors,
without outliers if ``quantile`` is below 1; coordinates outside the range are clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role


class ScalarQuantization(BaseDefense):
    """Quantises each dimension with a scale that is fitted to training vectors.

    Args:
        bits: Bits per coordinate.
        quantile: Share of the training values of a dimension that its range covers.
    """

    holds = "against nobody: 8 bits keep what a search finds, and all of what is read without them"
    perturbs = True

    def __init__(
        self,
        bits: Annotated[int, Field(ge=1, le=16)] = 8,
        quantile: Annotated[float, Field(gt=0.5, le=1)] = 1.0,
    ) -> None:
        self.bits, self.quantile = bits, quantile
        self.low, self.high = torch.empty(0), torch.empty(0)

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Compute the range of each dimension of training vectors (n, d)."""
        columns = embeddings.T.contiguous()
        outside = round((1 - self.quantile) / 2 * (len(embeddings) - 1))
        self.low = columns.kthvalue(outside + 1, dim=1).values
        self.high = columns.kthvalue(len(embeddings) - outside, dim=1).values

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        low, high = self.low.to(embeddings), self.high.to(embeddings)
        step = (high - low) / (2**self.bits - 1)
        step = step.where(step > 0, 1.0)  # a constant dimension
        codes = ((embeddings.clamp(low, high) - low) / step).round()
        read: Tensor = low + codes * step
        return read

    def state(self) -> dict[str, Tensor]:
        """The ends of each dimension's range, (d,) each."""
        return {"low": self.low, "high": self.high}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        low, high = state["low"], state["high"]
        if low.ndim != 1 or low.shape != high.shape or not (low.is_floating_point() and high.is_floating_point()):
            raise InputError("defense: what was estimated is not the two ends of each dimension's range")
        self.low, self.high = low, high
