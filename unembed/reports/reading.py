"""Inversion of vectors without a trainer, for unembed.load, unembed audit and the trade-off.

reader = Reader(attack, session.oracle, batch_size=128)
predictions = reader.read(vectors)                      # one per vector, in order, with a progress bar
reader.cosines(predictions, vectors)                    # of each re-embedded text with its vector
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.transfer.aligners import Map
from unembed.callbacks.scoring import cosines_at
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import Defense, Role
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs import layout
from unembed.runs.files import Row, read_rows


class Reader:
    """Inverts vectors in batches, storing finished ones if the attack has a batch cache.

    Args:
        attack: The restored attack, on its device.
        oracle: The embedder that the attack queries and that embeds the recovered texts.
        batch_size: Vectors decoded at once; fewer where the attack takes fewer.
        partial: Whether to return texts of a search that a query limit cut short.

    Attributes:
        seconds: Time of the batches read so far, those of an interrupted run included.
    """

    def __init__(self, attack: Attack, oracle: CachedEmbedder, batch_size: int, *, partial: bool = False) -> None:
        self.attack, self.oracle, self.partial = attack, oracle, partial
        self.batch_size = min(batch_size, attack.at_once)
        self.seconds = 0.0

    def read(
        self,
        vectors: Tensor,
        positions: Sequence[int] | None = None,
        description: str = "inverting",
        *,
        shown: bool = True,
        batches: slice = slice(None),
    ) -> list[Prediction]:
        """A prediction for each vector, (n, d), or for those of some ``batches``, in order.

        ``positions`` seed any sampling (None: 0 to n - 1); ``description`` is the title of the progress bar, which may
        be ``shown``, and the name of this work in the batch cache.

        Raises:
            InputError: A query limit cut the attack short, and ``partial`` is false.
        """
        index = torch.arange(len(vectors)) if positions is None else torch.tensor(positions)
        predictions: list[Prediction] = []
        begins = range(0, len(vectors), self.batch_size)[batches]
        for begin in track(begins, description, console=Console(stderr=True), disable=not shown or len(begins) == 1):
            rows = slice(begin, begin + self.batch_size)
            targets = Targets(vectors[rows].to(self.attack.device), index[rows])
            with torch.no_grad():
                # The batch cache identifies batches by their first index, and positions may be in any order.
                batch, done = self.attack.invert_once(targets, self.oracle, f"{description}-{begin}")
            if done.limit is not None and not self.partial:  # an incomplete search would make the vectors look safer
                raise InputError(
                    f"{done.limit} Only whole batches are evaluated; the same command with a higher limit resumes "
                    "after those that are done"
                )
            predictions += batch
            self.seconds += done.seconds
        return predictions

    def cosines(self, predictions: Sequence[Prediction], vectors: Tensor) -> list[float | None]:
        """The cosine of each best text, embedded again, with its vector, (n, d); None if there is none.

        A query limit may leave texts without a vector, and a defense may change the dimension.
        """
        queries = [self.attack.query(prediction) for prediction in predictions]
        done: Sequence[int] = range(len(queries))
        try:
            again = self.oracle.embed(queries, "scoring")
        except QueryLimitError as error:
            done, again = error.done, error.vectors
        return cosines_at(done, again, vectors)


def known_rows(run: Path) -> list[Row]:
    """The rows of a run's predictions.jsonl; empty if it was not tested."""
    path = run / layout.PREDICTIONS
    return read_rows(path) if path.is_file() else []


class Seen:
    """A defense, and what the attacker does about it: the vectors that the attack reads.

    A naive attacker fills shorter vectors up with zeros for an attack that was trained on longer ones, and cannot read
    longer ones; then ``fits`` is False. One who knows texts with their defended vectors has learned the way ``back``,
    (n, d) -> (n, dimension). ``dimension`` is that of the vectors that the attack accepts.
    """

    def __init__(self, defense: Defense, dimension: int, back: Map | None = None) -> None:
        self.defense, self.dimension, self.back = defense, dimension, back

    def fits(self, dimension: int) -> bool:
        """Whether the attack can read the defended vectors, given the embedder's dimension."""
        return self.back is not None or self.defense.output_dimension(dimension) <= self.dimension

    def output_dimension(self, dimension: int) -> int:
        return self.dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        self.defense.fit(embeddings, examples)

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended vectors as the attack reads them: (n, d) -> (n, dimension)."""
        defended = self.defense(embeddings, examples, role, epoch)
        if self.back is not None:
            return self.back(defended).to(embeddings)
        return torch.nn.functional.pad(defended, (0, self.dimension - defended.shape[1]))
