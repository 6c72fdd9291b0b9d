"""Test whether two sets of vectors may come from the same embedder, by their lengths and principal directions.

    compared = compare(known, store)       # (n, d) vectors of known texts, (m, d) vectors of a store
    compared.likeness                      # near 1: same space; near 0: unrelated spaces

An embedder's vectors are anisotropic: a few principal directions hold most of their energy. The directions of ``known``
also hold most of the energy of other texts by the same embedder, less so for very different texts. For vectors of
another model, or after a rotation, k directions hold a share of about k / d, as expected by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of known vectors with others.

    Attributes:
        norm: Median length of the known vectors.
        other_norm: Median length of the others.
        likeness: Share of the others' energy in the known vectors' principal directions, beyond chance, divided by the
            same share of held-out known vectors; near 1 for the same embedder.
    """

    norm: float
    other_norm: float
    likeness: float

    @property
    def ratio(self) -> float:
        """``other_norm / norm``."""
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
    # Every second vector, so that a file sorted by topic is halved evenly.
    made, held_out = units[::2], units[1::2]
    count = max(1, min(len(made), units.shape[1]) // 4)
    directions = torch.linalg.svd(made, full_matrices=False).Vh[:count]
    chance = count / units.shape[1]
    own, theirs = ((part @ directions.T).square().sum(dim=1).mean().item() - chance for part in (held_out, others))
    likeness = theirs / own if own > 1e-9 else 1.0  # the held-out known vectors do not share the directions either
    return Comparison(norms[0].median().item(), norms[1].median().item(), likeness)
