"""What a defense is: a map from the stored vectors to those that an attacker sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from errors import InputError
from examples import Example

# What a text is to the defender: of the data's splits, of a collection that is searched, or one that an attacker
# embeds to compare it with a vector ("hypothesis").
Role = Literal["train", "valid", "test", "query", "document", "hypothesis"]


class Defense(Protocol):
    """Changes what the attacker sees, never what the cache stores."""

    def output_dimension(self, dimension: int) -> int:
        """Dimension of a defended vector, given that of an undefended one."""
        ...

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Estimate what the defense needs from training vectors, (n, d)."""
        ...

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended vectors, (n, d) -> (n, output_dimension(d)); ``epoch`` is given in training only."""
        ...


@runtime_checkable
class Fitted(Defense, Protocol):
    """A defense that needs what ``fit`` estimated: its state is stored with the run and read back."""

    def state(self) -> dict[str, Tensor]:
        """What was estimated; empty where there is nothing to store."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` gave, in place of ``fit``."""
        ...


class BaseDefense:
    """The defaults of a defense: the dimension stays the same, and nothing is estimated."""

    def output_dimension(self, dimension: int) -> int:
        """Dimension of a defended vector: that of an undefended one."""
        return dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Nothing to estimate."""


def check_dimensions(defense: str, dimensions: int, dimension: int) -> None:
    """Check that vectors of ``dimension`` have the first ``dimensions`` that a defense changes.

    Raises:
        InputError: They have fewer.
    """
    if dimensions > dimension:
        raise InputError(
            f"defense={defense}, dimensions={dimensions}: the vectors have only {dimension}; take at most {dimension}"
        )
