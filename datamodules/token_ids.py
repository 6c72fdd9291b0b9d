"""Labels: the token ids of many texts in one memory-mapped file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unembed.core.temporary_map import MappedArray, TemporaryMap
from unembed.datamodules.batching import Indices

IGNORED = -100  # a label that no loss counts
ENCODED_TOGETHER = 16_384  # texts: bounds the lists of ids that exist at one time
READ_BEFORE_RELEASE = 256  # texts, whose ids then leave the memory: each makes 64 KB of the file resident


class Encode(Protocol):
    """Maps texts to the token ids that an attack learns to predict."""

    def __call__(self, texts: Sequence[str], /) -> Sequence[Sequence[int]]: ...


class TokenIds:
    """Token ids of many texts, end to end in one memory-mapped file.

    Attributes:
        lengths: Ids of each text, (n,).
    """

    def __init__(self, texts: Sequence[str], encode: Encode) -> None:
        memory = TemporaryMap()
        self.lengths: NDArray[np.int32] = np.empty(len(texts), np.int32)
        for start in range(0, len(texts), ENCODED_TOGETHER):
            ids = encode(texts[start : start + ENCODED_TOGETHER])
            self.lengths[start : start + len(ids)] = [len(row) for row in ids]
            memory.write(np.fromiter(chain.from_iterable(ids), np.int32).tobytes())
        memory.write(bytes(4))  # of no text: an empty file cannot be mapped
        self._memory, self._ids = memory, np.frombuffer(memory.content(), np.int32)
        self._ends = MappedArray(np.cumsum(self.lengths, dtype=np.int64))

    def padded(self, indices: Indices) -> Tensor:
        """Labels of some texts, (B, T) int64 with T the longest of them, padded with -100."""
        lengths = self.lengths[indices]
        places = np.arange(lengths.max(initial=0))
        within = places < lengths[:, None]
        padded = np.full(within.shape, IGNORED, np.int64)
        padded[within] = self._ids[((self._ends[indices] - lengths)[:, None] + places)[within]]
        self._memory.read(len(indices), most=READ_BEFORE_RELEASE)
        return torch.from_numpy(padded)
