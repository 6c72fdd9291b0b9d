"""defense=truncation: the first k dimensions, brought back to the length that the vector had.

    defense=truncation defense.dimensions=64 defense.adaptive=true

Kusupati et al. 2022, "Matryoshka Representation Learning": embedders that were trained so keep most of their use in a
prefix of their dimensions. Others are cut all the same; what that costs is to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveInt
from torch import Tensor

from defenses.base import BaseDefense, Role, check_dimensions
from examples import Example


class Truncation(BaseDefense):
    """Changes the dimension; estimates nothing.

    Args:
        dimensions: How many of the first dimensions are left.
        renormalize: Stretch what is left to the length of the whole vector; the published use, for vectors of length 1.
    """

    def __init__(self, dimensions: PositiveInt = 128, renormalize: bool = True) -> None:
        self.dimensions, self.renormalize = dimensions, renormalize

    def output_dimension(self, dimension: int) -> int:
        """The number of first dimensions that are left.

        Raises:
            InputError: There are fewer.
        """
        check_dimensions("truncation", self.dimensions, dimension)
        return self.dimensions

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Shortened vectors, (n, d) -> (n, dimensions); a zero remainder stays zero."""
        prefix = embeddings[:, : self.output_dimension(embeddings.shape[1])]
        if not self.renormalize:
            return prefix.clone()
        left = prefix.norm(dim=1, keepdim=True)
        stretched: Tensor = prefix * (embeddings.norm(dim=1, keepdim=True) / left.where(left > 0, 1.0))
        return stretched
