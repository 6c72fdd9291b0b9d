"""Inversion of vectors under a defense that a finished attack was not trained on: the naive attacker.

    rows, metrics = read_texts(attack, datamodule, defense, embedder, models)

No trainer is needed; ``Session.restored_attack`` returns the attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.callbacks.scoring import score_predictions
from unembed.core.examples import Example
from unembed.datamodules.inversion import InversionDataModule
from unembed.defenses.base import Defense, Role
from unembed.defenses.threat import Hypotheses
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.reports.reading import Reader
from unembed.scoring.models import ScoringModels

Metrics = dict[str, float | int | None]


class ZeroFilled:
    """A defense whose shorter vectors are filled up with zeros for an attack that was trained on longer ones.

    A naive attacker who finds shorter vectors can do no better without training again. It cannot accept longer ones;
    then ``fits`` is False.

    Args:
        defense: The defense, applied first.
        dimension: Dimension of the vectors that the attack accepts.
    """

    def __init__(self, defense: Defense, dimension: int) -> None:
        self.defense, self.dimension = defense, dimension

    def fits(self, dimension: int) -> bool:
        """Whether the defended vectors are no longer than the attack accepts, given the embedder's dimension."""
        return self.defense.output_dimension(dimension) <= self.dimension

    def output_dimension(self, dimension: int) -> int:
        """The attack's."""
        return self.dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Fit the defense."""
        self.defense.fit(embeddings, examples)

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended vectors, zero-filled: (n, d) -> (n, dimension)."""
        defended = self.defense(embeddings, examples, role, epoch)
        return torch.nn.functional.pad(defended, (0, self.dimension - defended.shape[1]))


def read_texts(
    attack: Attack,
    datamodule: InversionDataModule,
    defense: Defense,
    embedder: CachedEmbedder,
    models: ScoringModels,
    description: str = "inverting",
    hypotheses: Hypotheses = "clean",
) -> tuple[list[dict[str, Any]], Metrics]:
    """Invert the defended vectors of a data module's test texts and score the recovered texts.

    Args:
        attack: The restored attack, on its device.
        datamodule: Its test texts are embedded if they are not yet in the cache.
        defense: Fitted; its vectors have the dimension that the attack accepts (see ZeroFilled).
        embedder: The embedder with its cache; the attack may query it too.
        models: Additional models for scoring.
        description: Title of the progress bar.
        hypotheses: Whether texts that the attack embeds get clean or defended vectors.

    Returns:
        The rows of predictions.jsonl and the values of metrics.json; the cosine is with the defended vector.

    Raises:
        InputError: A query limit cut the attack short.
    """
    datamodule.connect(embedder, defense, hypotheses=hypotheses)
    datamodule.setup("test")
    everything = range(len(datamodule.examples("test")))
    vectors = datamodule.vectors("test", list(everything))
    predictions = Reader(attack, datamodule.oracle, datamodule.eval_batch_size).read(vectors, description=description)
    return score_predictions(
        dict(zip(everything, predictions, strict=True)), datamodule, embedder, None, attack, models
    )
