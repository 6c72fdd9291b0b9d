"""The baseline that every attack should beat: the training text whose vector lies closest to the target.

    "i have two dogs and a cat ."  ->  "i have two cats and a dog ."

No learning; stronger on dense embeddings than the published bag-of-words classifiers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

import runs
from attacks.base import Attack, Prediction, Targets
from embedders.cache import CachedEmbedder

BLOCK = 16_384  # training vectors compared at once: memory stays flat whatever their number


class NearestNeighbor(Attack):
    """Returns the training text with the highest cosine to the target.

    ``prepare`` writes the training texts and their vectors to the artifacts, so that evaluation needs neither the data
    nor the embedder.
    """

    trainable = False

    def __init__(self) -> None:
        super().__init__()
        self._known: Callable[[range], Tensor] | None = None

    def setup(self, stage: str) -> None:
        """See Attack; an attacker who is told of a defense compares with defended training vectors."""
        if self.data.adaptive:
            self._known = lambda rows: self.data.vectors("train", rows)
        super().setup(stage)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Write texts and vectors."""
        assert self.oracle is not None
        view = self.oracle.source.view(texts)
        read = self._known or (lambda rows: view[rows.start : rows.stop])
        width = read(range(1)).shape[1]
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(texts), width)}

        def content(file: BinaryIO) -> None:
            np.lib.format.write_array_header_1_0(file, header)
            for begin in range(0, len(texts), BLOCK):
                block = read(range(begin, min(begin + BLOCK, len(texts))))
                file.write(block.numpy().astype("<f4").tobytes())

        runs.write(artifacts / "neighbors.npy", content)
        runs.write_json_lines(artifacts / "neighbors.jsonl", ({"text": text} for text in texts))

    def load(self, artifacts: Path) -> None:
        """Read the texts; vectors are read block by block."""
        with (artifacts / "neighbors.jsonl").open(encoding="utf-8") as lines:
            self.texts = [json.loads(line)["text"] for line in lines]
        self.vectors = np.load(artifacts / "neighbors.npy", mmap_mode="r")

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """The nearest text of each target; asks the embedder for nothing."""
        blocks = (
            torch.from_numpy(self.vectors[begin : begin + BLOCK].copy()) for begin in range(0, len(self.texts), BLOCK)
        )
        return [Prediction((self.texts[row],)) for row in nearest(targets.vectors.cpu(), blocks)]


def nearest(targets: Tensor, blocks: Iterable[Tensor]) -> list[int]:
    """Row of the highest cosine over all ``blocks`` of vectors, for each target (n, d); ties go to the first row."""
    targets = torch.nn.functional.normalize(targets, dim=-1)
    best = torch.full((len(targets),), -torch.inf)
    rows = torch.zeros(len(targets), dtype=torch.long)
    begin = 0
    for block in blocks:
        cosines = targets @ torch.nn.functional.normalize(block, dim=-1).T
        value, row = cosines.max(dim=1)
        better = value > best
        best, rows = torch.where(better, value, best), torch.where(better, begin + row, rows)
        begin += len(block)
    return rows.tolist()
