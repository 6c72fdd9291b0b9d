"""What a defense is: a map from the stored vectors to those that an attacker sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from torch import Tensor

from examples import Example

Role = Literal["train", "valid", "test", "query", "document"]


class Defense(Protocol):
    """Changes what the attacker sees, never what the cache stores."""

    def output_dimension(self, dimension: int) -> int:
        """Width of a defended vector, given the width of an undefended one."""
        ...

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Estimate what the defense needs from training vectors, (n, d)."""
        ...

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended vectors, (n, d) -> (n, output_dimension(d)); ``epoch`` is given in training only."""
        ...
