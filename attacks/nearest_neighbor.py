"""The nearest-neighbour baseline: the training text whose vector is closest to the target.

    "i have two dogs and a cat ."  ->  "i have two cats and a dog ."

No learning; stronger on dense embeddings than the published bag-of-words classifiers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.core import limits
from unembed.core.atomic_files import write_json_lines
from unembed.core.examples import written_ids
from unembed.embedders.cache.cached import CachedEmbedder

BLOCK = 16_384  # training vectors compared at once: bounds memory


class NearestNeighbor(Attack):
    """Returns the training text with the highest cosine to the target.

    ``prepare`` writes the training texts and their vectors to the artifacts, so that evaluation needs neither the data
    nor the embedder.
    """

    trainable = False

    def check_inputs(self) -> None:
        self.data.check_training()

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Write texts, the ids that they show where they are a language model's inputs, and vectors.

        An adaptive attacker compares with defended training vectors.
        """
        shape = (len(texts), self.data.dimension)
        vectors = np.lib.format.open_memmap(artifacts / "neighbors.npy", mode="w+", dtype="<f4", shape=shape)
        for begin in range(0, len(texts), BLOCK):
            rows = range(begin, min(begin + BLOCK, len(texts)))
            vectors[rows.start : rows.stop] = self.data.vectors("train", rows).numpy()
        vectors.flush()
        ids = self.data.examples("train").column("tokens")
        lines = (
            {"text": text} | ({} if row is None else {"tokens": row}) for text, row in zip(texts, ids, strict=True)
        )
        write_json_lines(artifacts / "neighbors.jsonl", lines)

    def build(self, dimension: int) -> None:
        """Read the texts; vectors are read block by block."""
        rows = [json.loads(line) for _, line in limits.lines(self.artifacts / "neighbors.jsonl")]
        self.texts = [row["text"] for row in rows]
        self.ids = [tuple(row["tokens"]) if "tokens" in row else None for row in rows]
        self.vectors = np.lib.format.open_memmap(self.artifacts / "neighbors.npy", mode="r")

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        starts = range(0, len(self.texts), BLOCK)
        blocks = (torch.from_numpy(self.vectors[begin : begin + BLOCK].copy()) for begin in starts)
        rows = nearest(targets.vectors.cpu(), blocks)
        return [Prediction((self.texts[row],), tokens=self.ids[row]) for row in rows]

    def query(self, prediction: Prediction) -> str:
        return prediction.candidates[0] if prediction.tokens is None else written_ids(prediction.tokens)


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
