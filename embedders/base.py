"""The embedder interface: texts in, vectors out; and what embedders share.

vectors = embedder.embed(["my name is ada", "see you on friday"])   # (2, dimension) float32
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.ranks import local_rank

DType = Literal["float32", "bfloat16", "float16"]
# Receives the positions of m texts of a call and their vectors (m, d).
OnVectors = Callable[[Sequence[int], Tensor], None]

# Bounds of a vector's largest absolute value: lengths are computed from squares, which would overflow or underflow in
# float32.
SMALLEST, LARGEST = 1e-15, 1e15
# Errors that transformers and sentence-transformers raise for unusable files, which may need a missing library (a
# quantizer, a kernel) or contain pickled objects.
_UNUSABLE = (OSError, ValueError, ImportError, UnpicklingError)
_BYTES_PER_TOKEN = 4  # of UTF-8: about right for English, and closer than a count of characters for other scripts
_TOKENS_ON_CPU = 1024  # in one forward pass, padding included: larger batches are no faster there


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
        texts_at_once: Number of texts per call of ``stream`` that keeps the embedder busy.
    """

    @property
    def texts_at_once(self) -> int: ...

    def log_cost(self, texts: Sequence[str]) -> None:
        """Log the size of a job, given all its texts, before the first one is sent."""
        ...

    def stream(self, texts: Sequence[str], on_vectors: OnVectors) -> None:
        """Request the vectors of ``texts`` and pass them to ``on_vectors`` as they arrive, unchecked.

        ``on_vectors`` runs in a thread of this embedder, so that Ctrl-C does not lose vectors that have arrived. If it
        raises an InputError, the call ends after the pending requests.

        Raises:
            QueryLimitError: A limit is reached.
            UnfinishedError: The embedder or ``on_vectors`` fails. Both errors hold no vectors.
        """
        ...


@runtime_checkable
class LogitsEmbedder(Protocol):
    """An embedder whose rows hold a language model's output; a row of zeros is valid, since token id 0 is.

    Attributes:
        observes: What of the model a row holds.
    """

    observes: str


class UnfinishedError(InputError):
    """A call of ``embed`` failed half-way. The cache stores the vectors that arrived and re-raises the error.

    Attributes:
        done: Positions of the texts whose vectors arrived, m of them.
        vectors: (m, d) float32, finite.
    """

    def __init__(self, message: str, done: Sequence[int] = (), vectors: Tensor | None = None) -> None:
        super().__init__(message)
        self.done, self.vectors = done, torch.empty(0) if vectors is None else vectors


class QueryLimitError(UnfinishedError):
    """The user's limit on the number of texts sent to an embedder is reached.

    If the cache raises it, ``done`` and ``vectors`` cover all texts of the call that have a vector, including texts
    cached earlier.
    """


def valid_vectors(vectors: Tensor, zeros: bool = False) -> Tensor:
    """Which of ``vectors`` (n, d) are finite, with a length that float32 can represent; and not 0, unless ``zeros``."""
    largest = vectors.abs().amax(dim=1)  # NaN where one number is
    valid = (largest >= SMALLEST) & (largest <= LARGEST)
    return valid | (largest == 0) if zeros else valid


def describe_invalid(vector: Tensor) -> str:
    """Why a vector (d,) is not valid, for a message after "gave"."""
    if not vector.isfinite().all():
        return "NaN, null or infinity"
    if not vector.any():
        return "a vector of zeros"
    return f"a vector whose largest number is {vector.abs().max():.1e} (possible are {SMALLEST:g} to {LARGEST:g})"


def fingerprint_of(**parts: str | int | bool | None) -> str:
    """Hex hash of named values, for ``Embedder.fingerprint``."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=32).hexdigest()


def estimated_tokens(texts: Iterable[str]) -> int:
    """About how many tokens the texts have, without a tokenizer."""
    return sum(-(-len(text.encode(errors="replace")) // _BYTES_PER_TOKEN) for text in texts)


def resolve_device(device: str) -> torch.device:
    """The device called ``device``; "auto" is this process's GPU if there is one, else the CPU."""
    if device != "auto":
        return torch.device(device)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


@contextmanager
def loading(problem: str) -> Iterator[None]:
    """Hide the progress bars of transformers, and turn its errors about unusable files into one message."""
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    try:
        yield
    except _UNUSABLE as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{problem}: {first}") from error
    finally:
        enable_progress_bar()


def batches_of(lengths: Sequence[int], device: torch.device, on_gpu: int) -> list[list[int]]:
    """Positions of texts, shortest first, in batches of a bounded number of tokens, padding included.

    Args:
        lengths: Tokens of each text.
        device: Device of the model.
        on_gpu: Tokens per batch on devices other than the CPU.
    """
    budget = _TOKENS_ON_CPU if device.type == "cpu" else on_gpu
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[position] > budget:
            batches.append([])
        batches[-1].append(position)
    return batches
