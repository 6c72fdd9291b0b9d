"""What an embedder is: a black box from texts to vectors.

vectors = embedder.embed(["my name is ada", "see you on friday"])   # (2, dimension) float32
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from errors import InputError
from ranks import local_rank

# Is given the positions of texts in the call (m of them) and their vectors (m, d)
Keep = Callable[[Sequence[int], Tensor], None]
DType = Literal["float32", "bfloat16", "float16"]


@runtime_checkable
class Embedder(Protocol):
    """A black box from texts to vectors; never trained, never part of an attack's state.

    Attributes:
        dimension: Dimension d of a vector.
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
        """Vectors of ``texts``, shape (n, d), float32, on the CPU, in the order of ``texts``."""
        ...


@runtime_checkable
class Remote(Protocol):
    """An embedder that is asked over a network, and may cost money; what it has beside what every embedder has.

    Its dimension may be unknown before the first answer: it is asked for once a cache, not once a run.

    Attributes:
        texts_at_once: Texts of one call of ``embed`` that make good use of it.
    """

    @property
    def texts_at_once(self) -> int: ...

    def announce(self, texts: Iterable[str]) -> None:
        """Hears of all texts of a job before the first of them is sent."""
        ...

    def deliver(self, texts: Sequence[str], keep: Keep, dimension: int | None = None) -> None:
        """Ask for the vectors of ``texts`` and hand them to ``keep`` as they arrive, unchecked.

        ``keep`` runs in a thread of this embedder, so that nothing which arrived is lost to Ctrl-C: what it raises as
        an InputError ends the call, after what is under way has arrived too. ``dimension`` is that of the vectors,
        where it is known.

        Raises:
            QueryLimitError: A limit is reached.
            UnfinishedError: The embedder fails, or ``keep`` does. Both hold no vectors: ``keep`` has had them.
        """
        ...


@runtime_checkable
class Observed(Protocol):
    """An embedder that gives no directions but what is seen of a language model's output: zeros may be token 0."""

    @property
    def observation(self) -> object: ...


class UnfinishedError(InputError):
    """A call of ``embed`` failed half-way. The cache stores what had arrived, and raises the error again.

    Attributes:
        done: Positions of the texts whose vectors arrived, m of them.
        vectors: (m, d) float32, finite.
    """

    def __init__(self, message: str, done: Sequence[int], vectors: Tensor) -> None:
        super().__init__(message)
        self.done, self.vectors = done, vectors


class QueryLimitError(UnfinishedError):
    """As many texts were sent to an embedder as the user allows.

    Raised by the cache, ``done`` and ``vectors`` are of its own call: all its texts that have a vector, older ones too.
    """


def fingerprint_of(**parts: str | int | bool | None) -> str:
    """Hex hash of named values, for ``Embedder.fingerprint``."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=32).hexdigest()


def resolve_device(device: str) -> torch.device:
    """The device of that name; "auto" is this process's GPU where there is one, else the CPU."""
    if device != "auto":
        return torch.device(device)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())
