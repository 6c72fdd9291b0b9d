"""Denoisers, one per file: from the noisy vectors of a store to estimates of the vectors without noise.

denoiser.fit(store)          # (n, d) noisy vectors; no clean vector and no text is needed
denoiser(store[:5])          # (5, d), which an attack trained on undefended vectors reads
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from unembed.core.errors import InputError

ADAPTIVE = (
    "denoiser: an attack that was trained with defense.adaptive=true reads defended vectors as they are; leave out one "
    "of the two"
)


class Denoiser(Protocol):
    """Changes noisy vectors before an attack reads them.

    Attributes:
        rows: At most so many vectors of the store are fitted to.
    """

    rows: int

    def fit(self, vectors: Tensor) -> None:
        """Fit to vectors of the store, (n, d).

        Raises:
            InputError: They are too few, or hold NaN or infinite numbers.
        """
        ...

    def __call__(self, vectors: Tensor) -> Tensor:
        """Estimates of the vectors without noise, (n, d) -> (n, d)."""
        ...

    def report(self) -> str:
        """What was found, in one sentence for the user; after ``fit``."""
        ...


def check_vectors(vectors: Tensor, fewest: int, remedy: str) -> None:
    """Check that a denoiser can be fitted to ``vectors``, (n, d).

    Raises:
        InputError: Fewer than ``fewest`` (the message ends with ``remedy``), or a row with NaN or infinite numbers.
    """
    wrong = (~vectors.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if wrong:
        raise InputError(
            f"denoiser: row {wrong[0]} of the store, and {len(wrong)} in all, holds NaN or infinite numbers"
        )
    if len(vectors) < fewest:
        raise InputError(
            f"denoiser: the store has {len(vectors):,} vectors of dimension {vectors.shape[1]}, and {fewest:,} are "
            f"needed {remedy}"
        )
