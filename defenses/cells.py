"""defense=cells: a secret rotation for each cell of a partitioned store, with or without a public prefix.

    UNEMBED_CELLS_KEY=$(openssl rand -hex 32) python evaluate.py run=<dir> defense=cells                # SHARD
    ... defense=cells defense.prefix=0 defense.count=16                                               # no prefix

SHARD (Kurilenko 2026, arXiv 2606.27976): the centred vector is turned to its principal axes; the first ``prefix``
coordinates stay public and drive the coarse search; what is left is rotated by the secret key of its cell, of which
there are ``count``. Inside a cell, angles stay what they were. The owner turns everything back, in the paper under
homomorphic encryption, and so searches the vectors themselves: recall 1.

The cells are those of k-means: of the prefix, which anyone can repeat, or without one of the whole vector. Then the
vectors themselves still tell their cells: a cell's mean, rotated, lies apart from the others'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, check_dimensions
from unembed.defenses.pca import principal_axes
from unembed.defenses.product_quantization import k_means, nearest
from unembed.defenses.rotation import orthogonal, read_key, stretched

ITERATIONS = 15


class Cells(BaseDefense):
    """Rotates what is left of a vector beside its prefix, by the key of its cell; cells and axes are fitted.

    Args:
        count: Number of cells, the paper's C.
        prefix: Public principal coordinates; 0: none.
        seed: Of the cells.
        key_env: The environment variable that holds the key; read where there is no ``key_file``.
        key_file: A file that holds the key.
    """

    holds = (
        "against an attacker with vectors alone; 1,000 known pairs read 29 to 37 % of what is read without it, "
        "own texts that were locked 39 to 90 %"
    )

    def __init__(
        self,
        count: PositiveInt = 16,
        prefix: NonNegativeInt = 32,
        seed: NonNegativeInt = 0,
        key_env: str = "UNEMBED_CELLS_KEY",
        key_file: str | None = None,
    ) -> None:
        self.count, self.prefix, self.seed = count, prefix, seed
        self._key = stretched(read_key(key_env, key_file), b"unembed cells", 32)
        self.mean = self.axes = self.centroids = torch.empty(0)

    def output_dimension(self, dimension: int) -> int:
        check_dimensions("cells", self.prefix + 1, dimension)
        return dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Principal axes of (n, d), and the cells."""
        self.mean = embeddings.mean(dim=0)
        centred = embeddings - self.mean
        self.axes = principal_axes(centred)
        generator = torch.Generator().manual_seed(self.seed)
        self.centroids = k_means(self._routed(centred @ self.axes), self.count, ITERATIONS, generator)

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        turned = (embeddings - self.mean.to(embeddings)) @ self.axes.to(embeddings)
        cells = nearest(self._routed(turned), self.centroids.to(turned))
        locked = turned.clone()
        for cell in set(cells.tolist()):
            rows = cells == cell
            locked[rows, self.prefix :] = turned[rows, self.prefix :] @ self._rotations[cell].to(turned)
        return locked

    def searched(self, embeddings: Tensor, examples: Sequence[Example], role: Role) -> Tensor:
        """The vectors themselves: the keys cancel."""
        return embeddings

    def state(self) -> dict[str, Tensor]:
        """Mean (d,), axes (d, d), centroids (count, prefix or d); and a slow hash of the key, (32,) uint8."""
        check = torch.tensor(list(stretched(self._key, b"unembed cells: check", 32)), dtype=torch.uint8)
        return {"mean": self.mean, "axes": self.axes, "centroids": self.centroids, "key_check": check}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if not torch.equal(state["key_check"], self.state()["key_check"]):
            raise InputError("defense=cells: the key is not the one that this run was made with")
        self.mean, self.axes, self.centroids = state["mean"], state["axes"], state["centroids"]

    def _routed(self, turned: Tensor) -> Tensor:
        """What chooses the cell, (n, prefix), or (n, d) without a prefix."""
        return turned[:, : self.prefix or turned.shape[1]].contiguous()

    @cached_property
    def _rotations(self) -> list[Tensor]:
        width = len(self.axes) - self.prefix
        return [orthogonal(self._key + b"%d" % cell, width) for cell in range(self.count)]
