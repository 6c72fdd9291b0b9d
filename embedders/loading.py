"""Load models with transformers, without progress bars and with one error message; batch texts by length.

with loading(f"embedder.model={name} cannot be loaded from {folder}"):
    model = AutoModel.from_pretrained(folder)
for rows in batches_of([3, 9, 4], model.device, elsewhere=8192): ...     # [0, 2, 1]: shortest first
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pickle import UnpicklingError

import torch

from unembed.core.errors import InputError

# Errors that transformers and sentence-transformers raise for unusable files, which may need a missing library (a
# quantizer, a kernel) or contain pickled objects.
_UNUSABLE = (OSError, ValueError, ImportError, UnpicklingError)
_TOKENS_ON_CPU = 1024  # in one forward pass, padding included: larger batches are no faster there


@contextmanager
def loading(problem: str) -> Iterator[None]:
    """Hide the progress bars of transformers, and turn its errors about unusable files into one message.

    Raises:
        InputError: ``problem``, and the first line of the error.
    """
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    try:
        yield
    except _UNUSABLE as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{problem}: {first}") from error
    finally:
        enable_progress_bar()


def batches_of(lengths: Sequence[int], device: torch.device, elsewhere: int) -> list[list[int]]:
    """Positions of texts, shortest first, in batches of a bounded number of tokens, padding included.

    Args:
        lengths: Tokens of each text.
        device: Device of the model.
        elsewhere: Tokens per batch on devices other than the CPU.
    """
    budget = _TOKENS_ON_CPU if device.type == "cpu" else elsewhere
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[position] > budget:
            batches.append([])
        batches[-1].append(position)
    return batches
