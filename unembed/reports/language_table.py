"""A table of the metrics by language.

"bleu/de": 38.1, "examples/de": 500, "translated/bleu/de": 12.4, ...   ->   de: 500 texts, BLEU 38.1, translated 12.4
"""

from __future__ import annotations

from collections.abc import Mapping

from unembed.metrics.scoring import CHIEF, TRANSLATED
from unembed.reports.numbers import shown
from unembed.reports.tables import Cell, Line, Table
from unembed.reports.wording import measure, own_keys


def is_of_language(key: str) -> bool:
    """Whether a key of metrics.json belongs to one language."""
    name, _, language = key.removeprefix(TRANSLATED).partition("/")
    return bool(language) and name in _order()


def _order() -> tuple[str, ...]:
    """The names of the metrics in order: built-in ones, then the user's own."""
    return ("examples", *CHIEF, *own_keys())


def language_table(metrics: Mapping[str, object]) -> Table | None:
    """One row per language in ``metrics``; None if there are fewer than two."""
    languages = [key.removeprefix("examples/") for key in metrics if key.startswith("examples/")]
    if not languages:
        return None
    order = _order()
    every = [*order, *(f"{TRANSLATED}{name}" for name in order if name not in ("examples", "cosine"))]
    names = [name for name in every if any(f"{name}/{language}" in metrics for language in languages)]
    lines = [
        Line(language, "", tuple(Cell(shown(measure(name).kind, metrics.get(f"{name}/{language}"))) for name in names))
        for language in languages
    ]
    titles = [measure(name).title if name != "examples" else "Texts" for name in names]
    return Table("", ("Language of the texts", *titles), tuple(lines))
