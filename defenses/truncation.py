"""defense=truncation: the first k dimensions, brought back to the length that the vector had.

    defense=truncation defense.dimensions=64 defense.adaptive=true

Kusupati et al. 2022, "Matryoshka Representation Learning": embedders that were trained so keep most of their use in a
prefix of their dimensions. Others are cut all the same; what that costs is to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveInt
from torch import Tensor

from defenses.base import Role
from errors import InputError
from examples import Example


class Truncation:
    """Changes the width; estimates nothing.

    Args:
        dimensions: How many of the first dimensions are kept.
        renormalize: Stretch what is left to the length of the whole vector; the published use, for vectors of length 1.
    """

    def __init__(self, dimensions: PositiveInt = 128, renormalize: bool = True) -> None:
        self.dimensions, self.renormalize = dimensions, renormalize

    def output_dimension(self, dimension: int) -> int:
        """The dimensions that are kept.

        Raises:
            InputError: There are fewer.
        """
        if self.dimensions > dimension:
            raise InputError(
                f"defense=truncation, dimensions={self.dimensions}: the vectors have only {dimension}; "
                f"take at most {dimension}"
            )
        return self.dimensions

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Nothing to estimate."""

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Shortened vectors, (n, d) -> (n, dimensions); one whose kept part is zero stays zero."""
        kept = embeddings[:, : self.output_dimension(embeddings.shape[1])]
        if not self.renormalize:
            return kept.clone()
        left = kept.norm(dim=1, keepdim=True)
        stretched: Tensor = kept * (embeddings.norm(dim=1, keepdim=True) / left.where(left > 0, 1.0))
        return stretched
