"""Reading vectors back outside of a trainer: for invert.py, audit.py and the trade-off.

reader = Reader(attack, session.oracle, batch_size=128)
predictions = reader.read(vectors)                      # one a vector, in order, under a progress bar
reader.cosines(predictions, vectors)                    # of each text, embedded again, with its vector
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor

from attacks.base import Attack
from embedders.base import QueryLimitError
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from models.predictions import Prediction, Targets
from reports.results import Row, read_rows
from reports.scoring import cosines_at
from run_directory import layout


class Reader:
    """An attack that reads vectors in batches; those that are done are kept where the attack has a batch cache.

    Args:
        attack: Restored, on its device.
        oracle: Answers the attack, and embeds what was read.
        batch_size: Vectors decoded at once.
        partial: Whether texts that a limit of the embedder cut short are given, too.
    """

    def __init__(self, attack: Attack, oracle: CachedEmbedder, batch_size: int, *, partial: bool = False) -> None:
        self.attack, self.oracle, self.batch_size, self.partial = attack, oracle, batch_size, partial

    def read(
        self, vectors: Tensor, positions: Sequence[int] | None = None, description: str = "inverting"
    ) -> list[Prediction]:
        """A prediction for each vector, (n, d), in order.

        Args:
            vectors: What the attacker holds.
            positions: Seed any sampling; None: 0 to n - 1.
            description: Of the progress bar, and of this work in the batch cache.

        Raises:
            InputError: A limit of the embedder cut the attack short, and not ``partial``.
        """
        index = torch.arange(len(vectors)) if positions is None else torch.tensor(positions)
        predictions: list[Prediction] = []
        for begin in track(range(0, len(vectors), self.batch_size), description):
            rows = slice(begin, begin + self.batch_size)
            targets = Targets(vectors[rows].to(self.attack.device), index[rows])
            with torch.no_grad():
                # The cache tells batches apart by their first index, and positions may come in any order.
                found, done = self.attack.invert_once(targets, self.oracle, f"{description}-{begin}")
            if done.limit is not None and not self.partial:  # half a search would make the vectors look safer
                raise InputError(
                    f"{done.limit} Only whole batches are evaluated; the same command with a higher limit resumes "
                    "after those that are done"
                )
            predictions += found
        return predictions

    def cosines(self, predictions: Sequence[Prediction], vectors: Tensor) -> list[float | None]:
        """The cosine of each best text, embedded again, with its vector, (n, d); None where there is none.

        A limit of the embedder may leave texts without a vector, and a defense may change the dimension.
        """
        queries = [self.attack.query(prediction) for prediction in predictions]
        done: Sequence[int] = range(len(queries))
        try:
            again = self.oracle.embed(queries, "scoring")
        except QueryLimitError as error:
            done, again = error.done, error.vectors
        return cosines_at(done, again, vectors)


def known_rows(run: Path) -> list[Row]:
    """The rows of a run's predictions.jsonl; none where it was not tested."""
    path = run / layout.PREDICTIONS
    return read_rows(path) if path.is_file() else []
