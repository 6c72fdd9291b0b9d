"""What an embedder is: a black box from texts to vectors.

    vectors = embedder.embed(["my name is ada", "see you on friday"])   # (2, dimension) float32
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Embedder(Protocol):
    """A black box from texts to vectors; never trained, never part of an attack's state.

    Attributes:
        dimension: Width d of a vector.
        max_tokens: Texts are cut by the embedder after this many of its own tokens.
        fingerprint: Hex hash of all that can change a vector: model, revision or hash of the weights, pooling, prefix,
            normalisation, dtype, max_tokens. Two embedders with one fingerprint give the same vectors.
    """

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors of ``texts``, shape (n, dimension), float32, on the CPU, in the order of ``texts``."""
        ...
