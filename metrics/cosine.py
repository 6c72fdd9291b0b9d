"""Mean cosines of the vectors of predictions, which the caller has computed (``Scored.cosine`` and the like)."""

from __future__ import annotations

from typing import Literal

from unembed.metrics.base import Description, Mean
from unembed.metrics.scored import Scored


class Cosine(Mean[Scored]):
    """Mean cosine, -1 to 1; texts without one do not count.

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
