"""Loading models with transformers, without its progress bars and with one message, and cutting texts into batches.

with loading(f"embedder.model={name} cannot be loaded from {folder}"):
    model = AutoModel.from_pretrained(folder)
for rows in batches_of([3, 9, 4], model.device, elsewhere=8192): ...     # [0, 2, 1]: shortest first
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pickle import UnpicklingError

import torch

from errors import InputError

# What transformers and sentence-transformers raise for files that are not what they should be: one may ask for a
# library that is not there (a quantizer, a kernel), or hold more than tensors.
_UNUSABLE = (OSError, ValueError, ImportError, UnpicklingError)
_TOKENS_ON_CPU = 1024  # in one forward pass, padding included: more gains nothing there


@contextmanager
def loading(problem: str) -> Iterator[None]:
    """Within it, transformers shows no bars, and what it raises for unusable files is one message.

    Raises:
        InputError: ``problem``, and the first line of what is wrong.
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
    """Positions of texts of ``lengths`` tokens, shortest first, in batches of a bounded number of tokens with padding.

    Args:
        lengths: Tokens of each text.
        device: Where a batch is computed.
        elsewhere: Tokens of a batch where that is no CPU.
    """
    budget = _TOKENS_ON_CPU if device.type == "cpu" else elsewhere
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[position] > budget:
            batches.append([])
        batches[-1].append(position)
    return batches
