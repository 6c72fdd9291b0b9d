"""How a metric is named and explained; it needs no torch, so that a page is written without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["percent", "score", "cosine", "count", "seconds", "other"]


@dataclass(frozen=True, slots=True)
class Description:
    """How a value of metrics.json is named and explained.

    Attributes:
        key: Its name in metrics.json.
        title: Its name in tables.
        explanation: One sentence.
        more: Which direction means that more was read; None where neither does.
        kind: Its unit; "percent" and "score" lie in 0-100.
        secondary: Whether the report folds it away and the terminal's table leaves it out.
        reference: The paper, table or section that defines it; empty for a definition of ours.
    """

    key: str
    title: str
    explanation: str
    more: Literal["higher", "lower"] | None = "higher"
    kind: Unit = "percent"
    secondary: bool = False
    reference: str = ""
