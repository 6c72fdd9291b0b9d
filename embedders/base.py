"""The embedder interface: texts in, vectors out.

vectors = embedder.embed(["my name is ada", "see you on friday"])   # (2, dimension) float32
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.ranks import local_rank

# Callback: receives the positions of m texts of the call and their vectors (m, d)
Keep = Callable[[Sequence[int], Tensor], None]
DType = Literal["float32", "bfloat16", "float16"]


@runtime_checkable
class Embedder(Protocol):
    """Maps texts to vectors; never trained, never part of an attack's state.

    Attributes:
        dimension: Dimension d of a vector.
        max_tokens: The embedder truncates texts to this many of its own tokens.
        fingerprint: Hex hash of everything that can change a vector: model, revision or hash of the weights, pooling,
            prefix, normalisation, dtype, max_tokens. Embedders with the same fingerprint give the same vectors.
    """

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors of ``texts``, shape (n, d), float32, on the CPU, in the order of ``texts``."""
        ...


@runtime_checkable
class Remote(Protocol):
    """Additional methods of an embedder that is reached over a network and may cost money.

    Its dimension may be unknown before the first answer. The cache stores it, so it is requested once per cache.

    Attributes:
        texts_at_once: Number of texts per call of ``embed`` that keeps the embedder busy.
    """

    @property
    def texts_at_once(self) -> int: ...

    def announce(self, texts: Iterable[str]) -> None:
        """Report the size of a job, given all its texts, before the first one is sent."""
        ...

    def deliver(self, texts: Sequence[str], keep: Keep) -> None:
        """Request the vectors of ``texts`` and pass them to ``keep`` as they arrive, unchecked.

        ``keep`` runs in a thread of this embedder, so that Ctrl-C does not lose vectors that have arrived. If ``keep``
        raises an InputError, the call ends after the pending requests.

        Raises:
            QueryLimitError: A limit is reached.
            UnfinishedError: The embedder or ``keep`` fails. Both errors hold no vectors, because ``keep`` received
                them.
        """
        ...


@runtime_checkable
class Observed(Protocol):
    """An embedder whose rows hold a language model's output; a row of zeros is valid, since token id 0 is."""

    @property
    def observation(self) -> object: ...


class UnfinishedError(InputError):
    """A call of ``embed`` failed half-way. The cache stores the vectors that arrived and re-raises the error.

    Attributes:
        done: Positions of the texts whose vectors arrived, m of them.
        vectors: (m, d) float32, finite.
    """

    def __init__(self, message: str, done: Sequence[int], vectors: Tensor) -> None:
        super().__init__(message)
        self.done, self.vectors = done, vectors


class QueryLimitError(UnfinishedError):
    """The user's limit on the number of texts sent to an embedder is reached.

    If the cache raises it, ``done`` and ``vectors`` cover all texts of the call that have a vector, including texts
    cached earlier.
    """


def fingerprint_of(**parts: str | int | bool | None) -> str:
    """Hex hash of named values, for ``Embedder.fingerprint``."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=32).hexdigest()


def resolve_device(device: str) -> torch.device:
    """The device called ``device``; "auto" is this process's GPU if there is one, else the CPU."""
    if device != "auto":
        return torch.device(device)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())
