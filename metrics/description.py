"""Names and explanations of metrics, without importing torch, so that reports can be written quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["percent", "score", "cosine", "count", "seconds", "other"]


@dataclass(frozen=True, slots=True)
class Description:
    """Names and explanation of a value in metrics.json.

    Attributes:
        key: Its name in metrics.json.
        title: Its name in tables.
        explanation: One sentence.
        more: Which direction means a more successful attack; None if neither does.
        kind: Its unit; "percent" and "score" range from 0 to 100.
        secondary: Whether the report collapses it and the terminal's table omits it.
        reference: The paper, table or section that defines it; empty for our own definitions.
    """

    key: str
    title: str
    explanation: str
    more: Literal["higher", "lower"] | None = "higher"
    kind: Unit = "percent"
    secondary: bool = False
    reference: str = ""
