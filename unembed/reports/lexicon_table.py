"""A table of the entities that the lexicon of an attack has and lacks, by whether training texts have them.

{"spans": [[0, 3, "name"]], "unseen": [true], "in_lexicon": [false], ...}   ->   not in training: 1, of which 0 % ...
"""

from __future__ import annotations

from collections.abc import Sequence

from unembed.metrics.base import Ratio
from unembed.metrics.lexicon import LexiconEntityRecovery
from unembed.metrics.scored import Scored
from unembed.reports.numbers import DASH, shown
from unembed.reports.tables import Cell, Line, Table

COLUMNS = ("Entities of the test texts", "Count", "In the lexicon", "Recovered of these", "Recovered of the others")
NOTE = "An entity is in the lexicon if the whole of it, or each of its words, is an entry."
_KINDS = ((None, "all"), (False, "in the training text"), (True, "not in the training text"))


def lexicon_table(rows: Sequence[Scored]) -> Table | None:
    """One line for all entities, one for those in the training text and one for the others; None without a lexicon."""
    if not any(row.in_lexicon for row in rows):
        return None
    known = any(row.unseen for row in rows)
    kinds = _KINDS if known else _KINDS[:1]
    return Table("", COLUMNS, tuple(_line(rows, unseen, title) for unseen, title in kinds), notes=(NOTE,))


def _line(rows: Sequence[Scored], unseen: bool | None, title: str) -> Line:
    inside, outside = (LexiconEntityRecovery(inside=inside, unseen=unseen) for inside in (True, False))
    (back, has), (others, lacks) = (_sums(metric, rows) for metric in (inside, outside))
    cells = (_share(has, has + lacks), _share(back, has), _share(others, lacks))
    return Line(title, "", (Cell(f"{has + lacks:,}"), *cells))


def _sums(metric: Ratio[Scored], rows: Sequence[Scored]) -> tuple[int, int]:
    found, total = metric.statistics(rows).sum(axis=0)
    return int(found), int(total)


def _share(found: int, total: int) -> Cell:
    """A percentage, above its counts."""
    return Cell(shown("percent", 100 * found / total), (f"{found:,} of {total:,}",)) if total else Cell(DASH)
