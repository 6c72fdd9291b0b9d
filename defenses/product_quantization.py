"""defense=product_quantization: each subvector of a vector is replaced by the nearest centroid.

    defense=product_quantization defense.subvectors=48 defense.centroids=256     # 48 bytes per vector

Jegou, Douze and Schmid 2011, "Product Quantization for Nearest Neighbor Search", section II. A codebook is fitted by
k-means to the training vectors' subvectors (Lloyd's iterations, starting from a random sample of distinct ones).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, Strength

VECTORS_A_CENTROID = 256  # more training vectors hardly change a centroid
ROWS = 16_384  # vectors compared with a codebook at once


class ProductQuantization(BaseDefense):
    """Quantises subvectors with codebooks that are fitted to training vectors.

    Args:
        subvectors: Number of subvectors of a vector; divides its dimension.
        centroids: Size of each codebook; a subvector takes log2(centroids) bits.
        iterations: Iterations of k-means.
        seed: Seed of the initial centroids.
    """

    perturbs = True
    holds = "against nobody where a search keeps 90 % of its results: 91 % of what is read without it is still read"
    strength = Strength("centroids", 256, 2)

    def __init__(
        self,
        subvectors: PositiveInt = 48,
        centroids: Annotated[int, Field(ge=2, le=65_536)] = 256,
        iterations: PositiveInt = 15,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.subvectors, self.centroids, self.iterations, self.seed = subvectors, centroids, iterations, seed
        self.codebooks = torch.empty(0)

    def output_dimension(self, dimension: int) -> int:
        if dimension % self.subvectors:
            fitting = [count for count in range(1, dimension + 1) if dimension % count == 0]
            nearest = min(fitting, key=lambda count: abs(count - self.subvectors))
            raise InputError(
                f"defense=product_quantization, subvectors={self.subvectors}: vectors of dimension {dimension} cannot "
                f"be cut into so many equal parts; take {nearest}"
            )
        return dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Fit one codebook per subvector position to training vectors (n, d)."""
        if len(embeddings) < self.centroids:
            raise InputError(
                f"defense=product_quantization, centroids={self.centroids}: there are only {len(embeddings)} training "
                f"vectors to find them among; take at most {len(embeddings)}"
            )
        self.output_dimension(embeddings.shape[1])
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(embeddings), generator=generator)[: VECTORS_A_CENTROID * self.centroids]
        subvectors = embeddings[chosen].reshape(len(chosen), self.subvectors, -1).unbind(1)
        self.codebooks = torch.stack(
            [k_means(vectors, self.centroids, self.iterations, generator) for vectors in subvectors]
        )

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        subvectors, _, size = self.codebooks.shape
        if subvectors * size != embeddings.shape[1]:
            raise InputError(
                f"defense=product_quantization: estimated for vectors of dimension {subvectors * size}, and "
                f"these have {embeddings.shape[1]}"
            )
        quantised = torch.empty_like(embeddings)
        for number, codebook in enumerate(self.codebooks.to(embeddings)):
            own = slice(number * size, (number + 1) * size)
            for begin in range(0, len(embeddings), ROWS):
                block = embeddings[begin : begin + ROWS, own]
                quantised[begin : begin + ROWS, own] = codebook[nearest(block, codebook)]
        return quantised

    def state(self) -> dict[str, Tensor]:
        """The codebooks, (subvectors, centroids, d / subvectors)."""
        return {"codebooks": self.codebooks}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        found = state["codebooks"]
        if found.ndim != 3 or found.shape[:2] != (self.subvectors, self.centroids) or not found.is_floating_point():
            raise InputError(
                f"defense=product_quantization: codebooks of shape {tuple(found.shape)}, not {self.subvectors} of "
                f"{self.centroids} centroids"
            )
        self.codebooks = found


def k_means(vectors: Tensor, count: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Lloyd's centroids of (n, w), (count, w), from a random sample of distinct vectors."""
    distinct: Tensor = torch.unique(vectors, dim=0)
    sampled = torch.randperm(len(distinct), generator=generator)[:count]
    centroids = distinct[sampled]
    if len(centroids) < count:  # fewer distinct vectors; the padding is never the nearest
        return torch.cat([centroids, centroids[:1].expand(count - len(centroids), -1)])
    for _ in range(iterations):
        owner = torch.cat([nearest(block, centroids) for block in torch.split(vectors, ROWS)])
        sums = torch.zeros_like(centroids).index_add_(0, owner, vectors)
        counts = owner.bincount(minlength=count)[:, None]
        moved: Tensor = torch.where(counts > 0, sums / counts.clamp(min=1), centroids)
        if torch.equal(moved, centroids):
            break
        centroids = moved
    return centroids


def nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    """The index of the centroid (k, w) nearest to each of the vectors (n, w); the first one of ties."""
    # |v - c|^2 without |v|^2, which is the same for all centroids.
    distances: Tensor = centroids.square().sum(dim=1) - 2 * vectors @ centroids.T
    found: Tensor = distances.argmin(dim=1)
    return found
