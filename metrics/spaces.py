"""Whether two sets of vectors may come from one embedder: their lengths, and the directions that they prefer.

    compared = compare(known, store)       # (n, d) of texts that we embedded, (m, d) of a store's
    compared.likeness                      # near 1: one space; near 0: the directions of one say nothing of the other

An embedder's vectors do not fill their space evenly. The directions that hold most of ``known`` hold most of other text
by the same embedder too, though less of it the more the text differs. Of another model's vectors, or of one whose axes
were rotated, they hold what chance gives any few directions: their number divided by d.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two sets of vectors have in common.

    Attributes:
        norm: Median length of the known vectors.
        other_norm: The same of the others.
        likeness: Share of the others' energy in the known ones' main directions, beyond chance, divided by the same
            share of known vectors that the directions were not made from; 1 where both are of one kind.
    """

    norm: float
    other_norm: float
    likeness: float

    @property
    def ratio(self) -> float:
        """How many times longer the others are."""
        return self.other_norm / self.norm


def compare(known: Tensor, other: Tensor) -> Comparison:
    """Compare (n, d) vectors with (m, d) others.

    Raises:
        ValueError: Different dimensions, fewer than four known vectors, or no others.
    """
    if known.shape[1] != other.shape[1] or len(known) < 4 or len(other) == 0:
        raise ValueError(f"cannot compare vectors of shapes {tuple(known.shape)} and {tuple(other.shape)}")
    norms = [torch.linalg.vector_norm(vectors.double(), dim=1) for vectors in (known, other)]
    units, others = (v.double() / n[:, None] for v, n in zip((known, other), norms, strict=True))
    # Every second one, so that a file sorted by topic is halved evenly.
    made, held_out = units[::2], units[1::2]
    count = max(1, min(len(made), units.shape[1]) // 4)
    directions = torch.linalg.svd(made, full_matrices=False).Vh[:count]
    chance = count / units.shape[1]
    own, theirs = ((part @ directions.T).square().sum(dim=1).mean().item() - chance for part in (held_out, others))
    likeness = theirs / own if own > 1e-9 else 1.0  # the directions do not even hold for the known vectors
    return Comparison(norms[0].median().item(), norms[1].median().item(), likeness)
