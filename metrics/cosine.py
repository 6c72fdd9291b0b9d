"""Mean cosines of the vectors of predictions, which the caller has computed (``Scored.cosine`` and the like)."""

from __future__ import annotations

from unembed.metrics.base import Description, Mean
from unembed.metrics.scored import Scored


class Cosine(Mean[Scored]):
    """Mean cosine with the vector that the attacker received."""

    description = Description(
        "cosine", "Cosine", "Similarity of the prediction's vector and the attacked one; 1 is equal.", kind="cosine"
    )

    def of_example(self, row: Scored) -> float | None:
        """-1 to 1; None if it was not computed."""
        return row.cosine


class CosineUndefended(Mean[Scored]):
    """Mean cosine with the vector before the defense."""

    description = Description(
        "cosine_clean",
        "Cosine, undefended",
        "Similarity of the prediction's vector and the one that the defense changed.",
        kind="cosine",
    )
    needs = "models"

    def of_example(self, row: Scored) -> float | None:
        """-1 to 1; None where no defense changed a vector."""
        return row.cosine_clean


class CosineSecond(Mean[Scored]):
    """Of prediction and reference, by an embedder that was not attacked."""

    description = Description(
        "cosine_second",
        "Cosine, second embedder",
        "Similarity of prediction and reference to an embedder that was not attacked.",
        kind="cosine",
    )
    needs = "models"

    def of_example(self, row: Scored) -> float | None:
        """-1 to 1; None without a second embedder."""
        return row.cosine_second
