"""Labels: the token ids of many texts, kept without a Python object for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.batching import Indices

IGNORED = -100  # a label that no loss counts
ENCODED_TOGETHER = 16_384  # texts: bounds the lists of ids that exist at one time


class Encode(Protocol):
    """An attack's own view of texts: the ids that it learns to predict."""

    def __call__(self, texts: Sequence[str], /) -> Sequence[Sequence[int]]: ...


class TokenIds:
    """Token ids of many texts, end to end in one array: millions of short lists would take ten times the memory."""

    def __init__(self, texts: Sequence[str], encode: Encode) -> None:
        chunks: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
        self.lengths: Indices = np.empty(len(texts), np.int64)
        for start in range(0, len(texts), ENCODED_TOGETHER):
            ids = encode(texts[start : start + ENCODED_TOGETHER])
            self.lengths[start : start + len(ids)] = [len(row) for row in ids]
            chunks.append(np.fromiter(chain.from_iterable(ids), np.int32))
        self._ids = np.concatenate(chunks)
        self._ends = np.cumsum(self.lengths)

    def padded(self, indices: Indices) -> Tensor:
        """Labels of some texts, (B, T) int64 with T the longest of them, padded with -100."""
        lengths = self.lengths[indices]
        places = np.arange(lengths.max(initial=0))
        within = places < lengths[:, None]
        padded = np.full(within.shape, IGNORED, np.int64)
        padded[within] = self._ids[((self._ends[indices] - lengths)[:, None] + places)[within]]
        return torch.from_numpy(padded)
