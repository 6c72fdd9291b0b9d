"""Batch samplers and loaders for one rank or many; an interrupted epoch can be resumed.

    sampler = LengthBucketBatchSampler(lengths, batch_size=64, seed=0)   # yields index arrays, each (<= 64,)
    loader = ResumableLoader(sampler, read)                              # read: indices -> batch

The loaders are plain iterables, not torch DataLoaders: reading a batch is one read of the vectors and one copy of the
labels, so worker processes would cost more than they save, and Lightning must not put its own sampler (which repeats
examples to fill up the ranks) into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Lengths = NDArray[np.int32]
Batch = dict[str, Tensor]

POOL = 64  # batches sorted by length together: large enough for little padding, small enough to keep batches random


class LengthBucketBatchSampler:
    """Training batches of texts of similar length, in a new random order every epoch.

    The examples are shuffled, cut into pools of some batches, sorted by length inside each pool, cut into batches, and
    the batches are shuffled. Every rank cuts the same batches and takes its share of them: all ranks get the same
    number, and the few batches left over are skipped in this epoch.

    Args:
        lengths: Length of every example, (n,) integers.
        batch_size: Examples in a batch of one rank; smaller where that would leave a rank without any.
        seed: With the epoch, decides the order.
        pool: Batches sorted together.
    """

    def __init__(
        self, lengths: Lengths, batch_size: int, seed: int = 0, rank: int = 0, world_size: int = 1, pool: int = POOL
    ) -> None:
        self.lengths = lengths
        self.batch_size = max(1, min(batch_size, len(lengths) // world_size))
        self.seed, self.rank, self.world_size, self.pool = seed, rank, world_size, pool
        self.epoch = self._handed_out = self._start = 0

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, whether or not the epoch is being resumed."""
        return -(-len(self.lengths) // self.batch_size) // self.world_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order; discards a resume position of another epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._handed_out = self._start = 0

    def __iter__(self) -> Iterator[Indices]:
        """Index arrays of this rank. The order is fixed at the first batch, since the epoch is set after ``iter``."""
        start, self._start = self._start, 0
        order, batches = self._cut()
        for number in range(start, len(self)):
            begin = batches[number * self.world_size + self.rank] * self.batch_size
            self._handed_out = number + 1
            yield order[begin : begin + self.batch_size]

    def _cut(self) -> tuple[Indices, Indices]:
        """Examples in the order in which they are cut into batches, and the order of those batches."""
        generator = np.random.default_rng((self.seed, self.epoch))
        count = len(self.lengths)
        order = generator.permutation(count)
        size = self.batch_size * self.pool
        for pool in (order[begin : begin + size] for begin in range(0, count, size)):  # sorted in place
            pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        return order, generator.permutation(-(-count // self.batch_size))

    def _identity(self) -> dict[str, int]:
        """The settings that must be unchanged for a resume position to refer to the same examples."""
        return {
            "examples": len(self.lengths),
            "lengths": int(self.lengths @ (np.arange(len(self.lengths)) % 1009 + 1)),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "world_size": self.world_size,
            "pool": self.pool,
        }

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the number of batches handed out in it; the same on every rank."""
        return {"epoch": self.epoch, "batches": self._handed_out, "identity": self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the next batch of the saved epoch; with other data or batches, at the start of that epoch."""
        self.epoch = state["epoch"]
        changed = [key for key, value in self._identity().items() if state["identity"].get(key) != value]
        self._handed_out = self._start = 0 if changed else state["batches"]
        if changed:
            rank_zero_warn(
                f"the training batches differ from those of the checkpoint ({', '.join(changed)}): the order of the "
                "interrupted epoch is sampled anew, and some of its examples may be seen twice"
            )


class EvaluationBatchSampler:
    """Every example exactly once over all ranks, in batches that do not depend on the number of ranks.

    All ranks get the same number of batches, since they wait for each other within a validation and at the end of a
    test: the last batch of a rank that would get one less than the others is empty.

    Args:
        count: Number of examples.
        world_size: Number of ranks; batches are dealt to them in turn.
        lengths: (count,); where given, examples are sorted by length before they are cut.
    """

    def __init__(
        self, count: int, batch_size: int, rank: int = 0, world_size: int = 1, lengths: Lengths | None = None
    ) -> None:
        order = np.arange(count) if lengths is None else np.argsort(lengths, kind="stable")
        rounds = -(-count // (batch_size * world_size))
        begins = range(rank * batch_size, rounds * world_size * batch_size, world_size * batch_size)
        self._batches = [order[begin : begin + batch_size] for begin in begins]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Indices]:
        return iter(self._batches)


class BatchLoader:
    """Iterates over the batches that ``read`` makes of the index arrays of a sampler."""

    def __init__(
        self, sampler: LengthBucketBatchSampler | EvaluationBatchSampler, read: Callable[[Indices], Batch]
    ) -> None:
        self._batches = sampler
        self._read = read

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for indices in self._batches:
            yield self._read(indices)


class ResumableLoader(BatchLoader):
    """A training loader: Lightning sets its epoch, and stores its position in the epoch in checkpoints.

    Attributes:
        sampler: Where Lightning looks for ``set_epoch``.
    """

    def __init__(self, sampler: LengthBucketBatchSampler, read: Callable[[Indices], Batch]) -> None:
        super().__init__(sampler, read)
        self.sampler = sampler

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state)
