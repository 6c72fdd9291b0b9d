"""From a target embedding to the prefix vectors that a decoder or an encoder reads.

    prefix(vectors)          # (n, d) -> (n, vectors, width)

GEIA (Li et al. 2023, section 3.5) uses one linear projection to one vector. Vec2Text (Morris et al. 2023, section 3.1)
uses an MLP to sixteen.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn


class Prefix(nn.Module):
    """Project a target embedding to ``vectors`` prefix vectors of the decoder's width.

    ``normalize`` scales each embedding to norm sqrt(d), so that a coordinate is of size 1; its length is lost.
    ``noise`` is a regulariser for small training sets, not a defense: a standard deviation, in training only.
    """

    def __init__(
        self,
        vectors: PositiveInt = 1,
        kind: Literal["linear", "mlp"] = "linear",
        normalize: bool = True,
        noise: NonNegativeFloat = 0.0,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.vectors, self.kind, self.normalize, self.noise, self.dropout = vectors, kind, normalize, noise, dropout
        self.width = 0

    def build(self, dimension: int, width: int) -> None:
        """Make the layers for embeddings of ``dimension`` and a decoder of ``width``."""
        self.width = width
        output = self.vectors * width
        layers: dict[str, nn.Module] = {
            "linear": nn.Linear(dimension, output),
            "mlp": nn.Sequential(
                nn.Linear(dimension, dimension), nn.GELU(), nn.Dropout(self.dropout), nn.Linear(dimension, output)
            ),
        }
        self.layers = layers[self.kind]

    def forward(self, embeddings: Tensor) -> Tensor:
        if self.normalize:
            embeddings = nn.functional.normalize(embeddings, dim=-1) * math.sqrt(embeddings.shape[-1])
        if self.training and self.noise > 0:
            embeddings = embeddings + self.noise * torch.randn_like(embeddings)
        projected: Tensor = self.layers(embeddings)
        return projected.view(len(embeddings), self.vectors, self.width)
