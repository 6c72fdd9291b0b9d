"""Tables whose cells are bars from 0 to 100 %: charts that a screen reader reads as tables, and that print as text.

BarTable("Exposure by class", ("Class", "Comes back"), [BarRow("names", "of 1,204", [bar(share)])])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unembed.audit.findings import AuditedShare
from unembed.reports.numbers import shown


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its formatted value (None: not known), its interval in words, and its parts in percent of the width."""

    value: str | None
    reach: str = ""
    width: float = 0.0
    low: float = 0.0
    span: float = 0.0
    tone: str = "first"


@dataclass(frozen=True, slots=True)
class BarRow:
    """A row: its title, the smaller text below it, and its bars; ``strong`` marks the row that counts."""

    title: str
    note: str
    bars: Sequence[Bar]
    strong: bool = False


@dataclass(frozen=True, slots=True)
class BarTable:
    """Rows of bars; ``columns`` includes the column of titles, ``title`` is read by screen readers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[BarRow]


def bar(share: AuditedShare | None, tone: str = "first") -> Bar:
    """The bar of a share with its interval."""
    if share is None:
        return Bar(None)
    width, low, span = (round(100 * part, 1) for part in (share.value, share.low, share.high - share.low))
    return Bar(share.shown, share.reach, width, low, span, tone)


def plain_bar(value: float, tone: str = "third") -> Bar:
    """The bar of a share without an interval."""
    return Bar(shown("share", value), width=round(100 * value, 1), tone=tone)
