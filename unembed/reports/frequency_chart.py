"""Chart of recovered words by their frequency in the training text (vec2text_morris2023, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from unembed.reports import charts
from unembed.runs import layout
from unembed.runs.files import validated

_Count = Annotated[int, Field(ge=0, lt=2**53)]


class Bin(BaseModel):
    """Words that occur between ``low`` and ``high`` times in the training text."""

    low: _Count = Field(alias="from")
    high: _Count = Field(alias="to")
    occurrences: Annotated[int, Field(gt=0, lt=2**53)]
    recovered: _Count


class Frequencies(BaseModel):
    """The part of analyses.json that the chart shows."""

    word_frequency: list[Bin] = []


_FREQUENCIES = TypeAdapter(Frequencies)


def frequency_charts(analyses: Mapping[str, Any] | None) -> list[charts.Chart]:
    """The chart of the section; empty if the run has no analyses.

    Raises:
        InputError: The analyses have another form.
    """
    bins = validated(_FREQUENCIES, analyses or {}, layout.ANALYSES).word_frequency
    if not bins:
        return []
    groups = [
        charts.Bars(_short(one.low, one.high), f"{one.occurrences:,}", [100 * one.recovered / one.occurrences])
        for one in bins
    ]
    title = "Words recovered, by their count in the training text"
    chart = charts.grouped_bars(title, ["recovered"], groups, "times in the training text")
    note = "Percent of the words' occurrences in the test texts; below each bin, how many there are."
    return [("Words by frequency", chart, note)]


def _short(low: int, high: int) -> str:
    """A short label of a bin: ``0``, ``1-2``, ``300+``, ``3k+``; from 100 on only its lower end."""
    if high < 100:
        return f"{low}" if low == high else f"{low}–{high}"  # noqa: RUF001
    return f"{low}+" if low < 1000 else f"{low // 1000}k+" if low < 10**6 else f"{low // 10**6}M+"
