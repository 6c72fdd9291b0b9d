"""defense=product_quantization: a vector cut into pieces, each replaced by the nearest of its codebook.

    defense=product_quantization defense.pieces=48 defense.centroids=256     # 48 bytes a vector

Jegou, Douze and Schmid 2011, "Product Quantization for Nearest Neighbor Search", section II. A codebook is found by
k-means on the training vectors' pieces (Lloyd's iterations from distinct ones drawn at random).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from defenses.base import Role
from errors import InputError
from examples import Example

VECTORS_A_CENTROID = 256  # more training vectors hardly move a centroid
ROWS = 16_384  # compared with a codebook at once


class ProductQuantization:
    """Keeps the width; fitted to training vectors.

    Args:
        pieces: Of a vector; divides its width.
        centroids: Of each codebook: a piece is kept in log2 of it bits.
        iterations: Of k-means.
        seed: Of the vectors that k-means begins with.
    """

    def __init__(
        self,
        pieces: PositiveInt = 48,
        centroids: Annotated[int, Field(ge=2, le=65_536)] = 256,
        iterations: PositiveInt = 15,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.pieces, self.centroids, self.iterations, self.seed = pieces, centroids, iterations, seed
        self.codebooks = torch.empty(0)

    def output_dimension(self, dimension: int) -> int:
        """The width is kept.

        Raises:
            InputError: It cannot be cut into so many pieces of one size.
        """
        if dimension % self.pieces:
            fitting = [pieces for pieces in range(1, dimension + 1) if dimension % pieces == 0]
            nearest = min(fitting, key=lambda pieces: abs(pieces - self.pieces))
            raise InputError(
                f"defense=product_quantization, pieces={self.pieces}: vectors of width {dimension} cannot be cut into "
                f"so many equal pieces; take {nearest}"
            )
        return dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """One codebook a piece, from training vectors (n, d).

        Raises:
            InputError: There are more centroids than vectors.
        """
        if len(embeddings) < self.centroids:
            raise InputError(
                f"defense=product_quantization, centroids={self.centroids}: there are only {len(embeddings)} training "
                f"vectors to find them among; take at most {len(embeddings)}"
            )
        self.output_dimension(embeddings.shape[1])
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(embeddings), generator=generator)[: VECTORS_A_CENTROID * self.centroids]
        pieces = embeddings[chosen].reshape(len(chosen), self.pieces, -1).unbind(1)
        self.codebooks = torch.stack([self._codebook(piece, generator) for piece in pieces])

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """The nearest centroid of each piece, (n, d) -> (n, d)."""
        quantised = torch.empty_like(embeddings)
        width = self.codebooks.shape[2]
        if width * len(self.codebooks) != embeddings.shape[1]:  # else a part would stay as memory happened to be
            raise InputError(
                f"defense=product_quantization: estimated for vectors of dimension {width * len(self.codebooks)}, and "
                f"these have {embeddings.shape[1]}"
            )
        for number, codebook in enumerate(self.codebooks.to(embeddings)):
            own = slice(number * width, (number + 1) * width)
            for begin in range(0, len(embeddings), ROWS):
                piece = embeddings[begin : begin + ROWS, own]
                quantised[begin : begin + ROWS, own] = codebook[_nearest(piece, codebook)]
        return quantised

    def state(self) -> dict[str, Tensor]:
        """The codebooks, (pieces, centroids, d / pieces)."""
        return {"codebooks": self.codebooks}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` gave.

        Raises:
            InputError: It is not as many codebooks of as many centroids as are configured.
        """
        found = state["codebooks"]
        if found.ndim != 3 or found.shape[:2] != (self.pieces, self.centroids) or not found.is_floating_point():
            raise InputError(
                f"defense=product_quantization: codebooks of shape {tuple(found.shape)}, not {self.pieces} of "
                f"{self.centroids} centroids"
            )
        self.codebooks = found

    def _codebook(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        """k-means of (n, w): (centroids, w)."""
        distinct: Tensor = torch.unique(vectors, dim=0)
        drawn = torch.randperm(len(distinct), generator=generator)[: self.centroids]
        centroids = distinct[drawn]
        if len(centroids) < self.centroids:  # more than there are different pieces: the rest is never the nearest
            return torch.cat([centroids, centroids[:1].expand(self.centroids - len(centroids), -1)])
        for _ in range(self.iterations):
            owner = torch.cat([_nearest(block, centroids) for block in torch.split(vectors, ROWS)])
            sums = torch.zeros_like(centroids).index_add_(0, owner, vectors)
            counts = owner.bincount(minlength=self.centroids)[:, None]
            moved: Tensor = torch.where(counts > 0, sums / counts.clamp(min=1), centroids)
            if torch.equal(moved, centroids):
                break
            centroids = moved
        return centroids


def _nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    """The number of the centroid (k, w) nearest to each of the vectors (n, w); of equals the first."""
    # |v - c|^2 without |v|^2, which is the same for all centroids.
    distances: Tensor = centroids.square().sum(dim=1) - 2 * vectors @ centroids.T
    nearest: Tensor = distances.argmin(dim=1)
    return nearest
