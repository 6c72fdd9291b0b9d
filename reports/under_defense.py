"""What a finished attack reads from vectors under a defense that it was not trained on: the naive attacker.

    rows, metrics = read_texts(attack, datamodule, defense, embedder, models)

No trainer is needed: the attack is one that ``Session.restored_attack`` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attacks.base import Attack
from datamodules.inversion import InversionDataModule
from defenses.base import Defense, Role
from embedders.cache.cached import CachedEmbedder
from examples import Example
from reports.reading import Reader
from reports.scoring import score_predictions
from scoring.models import ScoringModels

Metrics = dict[str, float | int | None]


class ZeroFilled:
    """A defense as an attack sees it that was trained on longer vectors: what is missing is zero.

    A naive attacker who finds shorter vectors in a store can do no better without training anew. Longer ones it cannot
    read at all; then ``fits`` is False.

    Args:
        defense: What is applied first.
        dimension: Of the vectors that the attack takes.
    """

    def __init__(self, defense: Defense, dimension: int) -> None:
        self.defense, self.dimension = defense, dimension

    def fits(self, dimension: int) -> bool:
        """Whether the defended vectors are no longer than the attack takes, for an embedder of that dimension."""
        return self.defense.output_dimension(dimension) <= self.dimension

    def output_dimension(self, dimension: int) -> int:
        """The attack's."""
        return self.dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Estimate what the defense needs."""
        self.defense.fit(embeddings, examples)

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended vectors, filled up: (n, d) -> (n, dimension)."""
        defended = self.defense(embeddings, examples, role, epoch)
        return torch.nn.functional.pad(defended, (0, self.dimension - defended.shape[1]))


def read_texts(
    attack: Attack,
    datamodule: InversionDataModule,
    defense: Defense,
    embedder: CachedEmbedder,
    models: ScoringModels,
    description: str = "inverting",
) -> tuple[list[dict[str, Any]], Metrics]:
    """What the attack reads from the defended vectors of a data module's test texts, and how near it comes.

    Args:
        attack: Restored, on its device.
        datamodule: Its test texts are embedded here where they are not yet.
        defense: Fitted; its vectors have the dimension that the attack takes (see ZeroFilled).
        embedder: The black box behind its cache; the attack may ask it too.
        models: What scoring asks besides.
        description: Of the progress bar.

    Returns:
        The rows of predictions.jsonl and the values of metrics.json; the cosine is with the defended vector.

    Raises:
        InputError: A limit of the embedder cut the attack short.
    """
    datamodule.connect(embedder, defense)
    datamodule.setup("test")
    everything = range(len(datamodule.examples("test")))
    vectors = datamodule.vectors("test", list(everything))
    predictions = Reader(attack, embedder, datamodule.eval_batch_size).read(vectors, description=description)
    return score_predictions(
        dict(zip(everything, predictions, strict=True)), datamodule, embedder, None, attack, models
    )
