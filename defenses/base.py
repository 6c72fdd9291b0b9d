"""The defense interface: a map from stored vectors to the vectors that an attacker sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example

# Role of a text: a split of the data, a part of a searched collection, or "hypothesis": a text that an attacker embeds
# to compare it with a vector.
Role = Literal["train", "valid", "test", "query", "document", "hypothesis"]


class Strength(NamedTuple):
    """The argument of a defense that says how much it hides, and its ends, which may stand either way round.

    An end of 0 is the dimension of the vectors. ``defense.recall`` sets the argument (datamodules/usefulness.py).
    """

    argument: str
    weakest: float
    strongest: float


class Defense(Protocol):
    """Changes what the attacker sees, never what the cache stores."""

    def output_dimension(self, dimension: int) -> int:
        """Dimension of a defended vector, given the dimension of an undefended one."""
        ...

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Fit the defense to training vectors, (n, d)."""
        ...

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended vectors, (n, d) -> (n, output_dimension(d)); ``epoch`` is None except in training."""
        ...


@runtime_checkable
class Fitted(Defense, Protocol):
    """A defense with fitted state, which is stored with the run."""

    def state(self) -> dict[str, Tensor]:
        """The fitted state; empty if there is nothing to store."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a state returned by ``state``, instead of ``fit``."""
        ...


class BaseDefense:
    """Defaults: the dimension stays the same, and nothing is fitted.

    Attributes:
        perturbs: Whether a defended vector is the undefended one with an error, so that their cosine has a meaning.
        of_positions: Whether it is called once for each text, with the states (tokens, d) of its positions, instead of
            with vectors of many texts.
        strength: The argument that makes it stronger; None: there is none.
        holds: Against whom, as measured by the lock test (docs/locks.md); empty: not measured there.
    """

    perturbs = False
    of_positions = False
    strength: ClassVar[Strength | None] = None
    holds: ClassVar[str] = ""

    def output_dimension(self, dimension: int) -> int:
        """Dimension of a defended vector: unchanged."""
        return dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Does nothing."""

    def searched(self, embeddings: Tensor, examples: Sequence[Example], role: Role) -> Tensor:
        """What the owner's search compares, (n, k): the defended vectors, unless the owner's key undoes more."""
        return self(embeddings, examples, role)

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended vectors; see Defense."""
        raise NotImplementedError


def searched(defense: Defense, embeddings: Tensor, examples: Sequence[Example], role: Role) -> Tensor:
    """What the owner's search compares (see BaseDefense); the defended vectors if the defense does not say."""
    search = getattr(defense, "searched", defense)
    found: Tensor = search(embeddings, examples, role)
    return found


def perturbs(defense: Defense) -> bool:
    """Whether defended vectors can be compared with undefended ones (see BaseDefense); False if it does not say."""
    return bool(getattr(defense, "perturbs", False))


def check_dimensions(defense: str, dimensions: int, dimension: int) -> None:
    """Check that ``dimension`` is at least ``dimensions``, the number of dimensions that a defense changes.

    Raises:
        InputError: It is smaller.
    """
    if dimensions > dimension:
        raise InputError(
            f"defense={defense}, dimensions={dimensions}: the vectors have only {dimension}; take at most {dimension}"
        )


def generator_of(purpose: str, seed: int, example: Example, role: Role, epoch: int | None) -> np.random.Generator:
    """The random generator of an example in a role and training epoch; ``purpose`` names the defense.

    The same in any batch and any process: the key is derived from (purpose, seed, role, epoch, index, text). The text
    keeps row 7 of one data set from sharing its noise with row 7 of another; the role separates query and document.
    The key has 128 bits: with 32, about a hundred pairs among a million documents would share their noise.
    """
    head = f"{purpose} {seed} {role} {'' if epoch is None else epoch} {example.index} ".encode()
    digest = blake2b(head + example.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)))
