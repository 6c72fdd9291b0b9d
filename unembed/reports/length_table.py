"""A table of the metrics by length of the texts.

"length/token_f1/16": 71.2, "length/examples/16": 500, ...   ->   9 to 16: 500 texts, word F1 71.2
"""

from __future__ import annotations

from collections.abc import Mapping

from unembed.metrics.lengths import BOUNDS, BY_LENGTH, LENGTHS, LONGER, OF_LENGTH
from unembed.reports.numbers import number, shown
from unembed.reports.tables import Cell, Line, Table
from unembed.reports.wording import measure

FEWEST = 20  # texts of each of two lengths


def length_table(metrics: Mapping[str, object]) -> Table | None:
    """One row per length in ``metrics``; None if fewer than two have ``FEWEST`` texts."""
    counts = {name: number(metrics, f"{BY_LENGTH}examples/{name}") or 0 for name in LENGTHS}
    if sum(count >= FEWEST for count in counts.values()) < 2:
        return None
    present = [name for name in LENGTHS if counts[name]]
    names = [
        "examples",
        *(one for one in OF_LENGTH if any(metrics.get(f"{BY_LENGTH}{one}/{name}") is not None for name in present)),
    ]
    lines = [
        Line(
            _range(name),
            "",
            tuple(Cell(shown(measure(one).kind, metrics.get(f"{BY_LENGTH}{one}/{name}"))) for one in names),
        )
        for name in present
    ]
    titles = [measure(one).title if one != "examples" else "Texts" for one in names]
    return Table("", ("Tokens of the text", *titles), tuple(lines))


def _range(name: str) -> str:
    """The lengths of a group: "1 to 8", "9 to 16", "257 or more"."""
    if name == LONGER:
        return f"{BOUNDS[-1] + 1} or more"
    place = BOUNDS.index(int(name))
    return f"{BOUNDS[place - 1] + 1 if place else 1} to {name}"
