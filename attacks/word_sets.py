"""Base of attacks that recover the words of a text without their order.

vector (d,) --> entries of a vocabulary --> "dog love my i", kind "set"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.parts.optimizers import OptimizerSettings, scheduled
from unembed.attacks.parts.predictions import Prediction
from unembed.attacks.parts.vocabulary import Vocabulary


class WordSetAttack(Attack):
    """Base of the attacks whose predictions are sets.

    Args:
        vocabulary: The predicted entries: words, or tokens of a BPE.
        optimizer: Optimiser settings.
    """

    def __init__(self, vocabulary: Vocabulary, optimizer: OptimizerSettings) -> None:
        super().__init__()
        self.vocabulary, self.optimizer_settings = vocabulary, optimizer

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Choose the vocabulary."""
        self.vocabulary.prepare(texts, artifacts)

    def load(self, artifacts: Path) -> None:
        """Read the vocabulary back."""
        self.vocabulary.load(artifacts)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Entries of each text; words that the vocabulary lacks have the number after its last."""
        return self.vocabulary.ids(texts)

    def validation_weight(self, batch: dict[str, Tensor]) -> int:
        """Number of texts: losses of sets are means over texts."""
        return len(batch["index"])

    def prediction(self, ids: Sequence[int]) -> Prediction:
        """A set of entries, the likeliest first."""
        return Prediction((self.vocabulary.text(ids),), kind="set", tokens=tuple(ids))

    def configure_optimizers(self) -> Any:
        """The optimiser with the learning-rate schedule of the training budget."""
        return scheduled(self.optimizer_settings, self)


def scaled(vectors: Tensor) -> Tensor:
    """Vectors (n, d) brought to norm sqrt(d), so that a coordinate is of size 1 whatever the embedder's scale."""
    return torch.nn.functional.normalize(vectors, dim=-1) * math.sqrt(vectors.shape[-1])
