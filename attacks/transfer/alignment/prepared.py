"""Vectors of a space as two spaces can be compared: centred, of length 1, by principal components.

space = Prepared.of(vectors, power=0.5)
space(vectors)                            # (n, d) -> (n, r), the largest component first, rows of length 1
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 1e-5  # share of the largest variance: directions with less hold rounding


@dataclass(frozen=True, slots=True)
class Prepared:
    """A centre and a change of basis.

    Attributes:
        center: (d,).
        weight: To principal components, scaled by their variance to the power of -power/2, (d, r).
        inverse: Back, (r, d).
    """

    center: Tensor
    weight: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, vectors: Tensor, power: float) -> Prepared:
        """Fitted to vectors, (n, d).

        Raises:
            ValueError: They are all equal.
        """
        center = vectors.double().mean(0)
        centred = rows_of_length_one(vectors.double() - center)
        values, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
        values, directions = values.flip(0), directions.flip(1)
        if not float(values[0]) > 0:
            raise ValueError("the vectors are all equal")
        kept = values > SMALLEST * values[0]
        values, directions = values[kept], directions[:, kept]
        scales = values ** (-power / 2)
        return cls(center.float(), (directions * scales).float(), (directions / scales).T.float())

    def __call__(self, vectors: Tensor) -> Tensor:
        """(n, d) -> (n, r)."""
        return rows_of_length_one(rows_of_length_one(vectors.float() - self.center) @ self.weight)


def rows_of_length_one(vectors: Tensor) -> Tensor:
    """Each row divided by its length; a row of zeros stays."""
    return torch.nn.functional.normalize(vectors, dim=-1)
