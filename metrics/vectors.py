"""Cosine similarity of vectors: of rows, and its mean over texts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unembed.metrics.base import Description, Mean
from unembed.metrics.scored import Scored


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


class Cosine(Mean[Scored]):
    """Mean cosine of the predictions' vectors, -1 to 1, which the caller has computed; texts without one do not count.

    Args:
        of: ``received``: of the prediction's vector and the one that the attacker received; ``clean``: and the one
            before the defense; ``second``: of prediction and reference, by an embedder that was not attacked.
    """

    def __init__(self, of: Literal["received", "clean", "second"] = "received") -> None:
        super().__init__()
        key, title, explanation = {
            "received": ("cosine", "Cosine", "Similarity of the prediction's vector and the attacked one; 1 is equal."),
            "clean": (
                "cosine_clean",
                "Cosine, undefended",
                "Similarity of the prediction's vector and the one that the defense changed.",
            ),
            "second": (
                "cosine_second",
                "Cosine, second embedder",
                "Similarity of prediction and reference to an embedder that was not attacked.",
            ),
        }[of]
        self.description = Description(key, title, explanation, kind="cosine")
        self.needs = "texts" if of == "received" else "models"

    def of_example(self, row: Scored) -> float | None:
        value: float | None = getattr(row, self.description.key)
        return value
