"""defense=none: the attacker sees the vectors as they are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from defenses.base import Role
from examples import Example


class Identity:
    """No defense."""

    def output_dimension(self, dimension: int) -> int:
        """The width is kept."""
        return dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Nothing to estimate."""

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """The vectors themselves, (n, d) -> (n, d)."""
        return embeddings
