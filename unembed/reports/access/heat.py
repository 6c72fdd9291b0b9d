"""Maps of the access table: rows of cells, each with its value, interval and level of heat.

undefended(cells)          # attacks down, what the attacker has across; the highest of each column first
defended(cells)            # attacks down, defenses across
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unembed.reports.access.cells import AccessCell
from unembed.reports.access.columns import KNOWN
from unembed.reports.numbers import DASH, interval, shown
from unembed.reports.tables import Cell, Line, Table

LEVELS = 10  # steps of heat from 0 to 100 % word F1
HIGHEST = "highest measured"
UNDEFENDED = "none"
_TO = "\u00a0to\u00a0"  # an interval is not broken over two lines


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell of a map.

    Attributes:
        cell: What was measured; None if nothing was.
        reason: Why no run can fill it; empty for a cell that is measured, or is not.
        by: The attack, in the row of the highest.
    """

    cell: AccessCell | None = None
    reason: str = ""
    by: str = ""

    @property
    def value(self) -> str:
        """Word F1; a dash where nothing applies; nothing where nothing was measured."""
        if self.cell is None:
            return DASH if self.reason else ""
        return shown("score", self.cell.values["token_f1"].value)

    @property
    def below(self) -> tuple[str, ...]:
        """The interval, then entities with theirs."""
        if self.cell is None:
            return (self.reason,) if self.reason else ()
        f1, entities = self.cell.values["token_f1"], self.cell.values["entity_recovery"]
        lines = [self.by] if self.by else []
        if f1.interval is not None:
            lines.append(interval("score", f1.interval))
        if entities.value is not None:
            ends = (
                "" if entities.interval is None else f" ({interval('score', entities.interval)})".replace(" to ", _TO)
            )
            lines.append(f"entities {shown('score', entities.value)}{ends}")
        return tuple(lines)

    @property
    def level(self) -> int | None:
        """0 to 9; None where nothing was measured."""
        if self.cell is None or self.cell.f1 < 0:
            return None
        return min(LEVELS - 1, int(self.cell.f1 * LEVELS / 100))


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A row of a map: its title, the smaller text below it, and its cells."""

    title: str
    below: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A map; ``columns`` are the titles of the cells' columns, ``corner`` that of the rows'."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]

    @property
    def table(self) -> Table:
        """The map for the terminal and Markdown."""
        lines = tuple(
            Line(row.title, row.below, tuple(Cell(cell.value, cell.below) for cell in row.cells)) for row in self.rows
        )
        return Table(self.title, (self.corner, *self.columns), lines)


def undefended(cells: Sequence[AccessCell]) -> HeatMap:
    """Attacks down, what the attacker has across, without a defense."""
    measured = {(one.attack, one.has): one for one in cells if one.defense == UNDEFENDED}
    attacks = dict.fromkeys([*KNOWN.impossible, *(one.attack for one in cells if one.defense == UNDEFENDED)])
    rows = []
    for attack in attacks:
        across = tuple(_heat(measured.get((attack, has)), attack, has) for has in KNOWN.columns)
        rows.append(HeatRow(attack, "", across))
    best = [highest(cells, has) for has in KNOWN.columns]
    first = HeatRow(HIGHEST, "of this column and those that it includes", tuple(_best(one) for one in best))
    titles = tuple(column.title for column in KNOWN.columns.values())
    return HeatMap("What the attacker has", "word F1", titles, (first, *rows))


def defended(cells: Sequence[AccessCell]) -> HeatMap | None:
    """Attacks with what they have down, defenses across; None without a defended cell."""
    present = KNOWN.ordered(one.defense for one in cells)
    tried = dict.fromkeys((one.attack, one.has) for one in cells if one.defense != UNDEFENDED)
    if not tried:
        return None
    names = list(dict.fromkeys([UNDEFENDED, *present]))
    measured = {(one.attack, one.has, one.defense): one for one in cells}
    places = sorted(tried, key=lambda place: rank(*place))
    rows = [
        HeatRow(attack, KNOWN.columns[has].title, tuple(HeatCell(measured.get((attack, has, name))) for name in names))
        for attack, has in places
    ]
    return HeatMap("What a defense leaves", "word F1", tuple(map(KNOWN.defense, names)), tuple(rows))


def rank(attack: str, has: str) -> tuple[int, int, str]:
    """The order of attacks that are listed with what they have: by column, then as rows; a variant after its attack.

    A variant's title begins with that of its attack, up to a comma.
    """
    known = [*KNOWN.impossible]
    base = attack.partition(",")[0]
    return [*KNOWN.columns].index(has), known.index(base) if base in known else len(known), attack


def highest(cells: Sequence[AccessCell], has: str) -> AccessCell | None:
    """The undefended cell of highest word F1 of an attacker who has this and what it includes."""
    allowed = {has, *KNOWN.columns[has].includes}
    fitting = [one for one in cells if one.defense == UNDEFENDED and one.has in allowed and one.f1 >= 0]
    return max(fitting, key=lambda one: one.f1, default=None)


def _best(one: AccessCell | None) -> HeatCell:
    return HeatCell() if one is None else HeatCell(one, by=one.attack)


def _heat(cell: AccessCell | None, attack: str, has: str) -> HeatCell:
    return HeatCell(cell) if cell is not None else HeatCell(reason=KNOWN.impossible.get(attack, {}).get(has, ""))
