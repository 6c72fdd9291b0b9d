"""Cosine similarity."""

from __future__ import annotations

import torch
from torch import Tensor


def cosine_rows(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each row of ``a`` with the same row of ``b``: (n, d), (n, d) -> (n,) float64, each in -1..1.

    Computed in float64 for any input, so that a result rounded to float32 does not depend on the order of additions.

    Raises:
        ValueError: The shapes differ or are not (n, d), or a row is zero or not finite: it has no direction.
    """
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(
            f"cosine of rows needs two (n, d) tensors of one shape, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    units = []
    for name, vectors in (("first", a), ("second", b)):
        exact = vectors.detach().to(torch.float64)
        norms = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
        for wrong, what in ((~norms.isfinite(), "not finite"), (norms == 0, "a zero vector")):
            if wrong.any():
                raise ValueError(f"row {int(wrong.flatten().nonzero()[0])} of the {name} vectors is {what}")
        units.append(exact / norms)
    cosines: Tensor = (units[0] * units[1]).sum(dim=1).clamp(-1, 1)
    return cosines
