"""The chart of how much of the rare and of the common words came back (vec2text_morris2023, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from callbacks import figures


def frequency_charts(analyses: Mapping[str, Any] | None) -> list[tuple[str, Markup, str]]:
    """The chart of the report's section: title, SVG and note; none where the run has no analyses."""
    bins = (analyses or {}).get("word_frequency") or []
    if not bins:
        return []
    groups = [
        figures.Bars(
            _short(one["from"], one["to"]), f"{one['occurrences']:,}", [100 * one["recovered"] / one["occurrences"]]
        )
        for one in bins
    ]
    title = "Words recovered, by their count in the training text"
    chart = figures.grouped_bars(title, ["recovered"], groups, "times in the training text")
    note = "Percent of the words' occurrences in the test texts; below each bin, how many there are."
    return [("Words by frequency", chart, note)]


def _short(low: int, high: int) -> str:
    """A bin in a few characters: ``0``, ``1-2``, ``300+``, ``3k+``; from 100 on only its lower end fits."""
    if high < 100:
        return f"{low}" if low == high else f"{low}–{high}"  # noqa: RUF001
    return f"{low}+" if low < 1000 else f"{low // 1000}k+" if low < 10**6 else f"{low // 10**6}M+"
