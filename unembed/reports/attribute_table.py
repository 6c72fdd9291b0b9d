"""A table of the attribute attack's metrics.

"attribute/birthPlace/reconstructed_macro": 41.2, ...   ->   birthPlace: 41.2 % from the recovered text, ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from unembed.metrics.attributes import PREFIX, SOURCES
from unembed.reports.numbers import number, shown
from unembed.reports.tables import Cell, Line, Table

NOTE = (
    "The guess is the value whose vector lies nearest; nothing is learned for it. Macro accuracy is the mean over "
    "values, each counted once. The original text bounds what any attack could give. The standard error takes texts "
    "for independent, which texts about one subject are not."
)


def attribute_table(metrics: Mapping[str, object]) -> Table | None:
    """One line per attribute in ``metrics``, followed by one line per source of the guess; None without attributes."""
    names = [
        key.removeprefix(PREFIX).removesuffix("/texts")
        for key in metrics
        if key.startswith(PREFIX) and key.endswith("/texts")
    ]
    if not names:
        return None
    tops = (re.fullmatch(rf"{PREFIX}.*/reconstructed_top(\d+)", key) for key in metrics)
    k = next((found[1] for found in tops if found and found[1] != "1"), "")
    columns = ("Attribute, guessed from", "Macro accuracy", "Accuracy ± s.e.")
    lines = [line for name in names for line in _lines(name, metrics, k)]
    return Table("", (*columns, *([f"Among the nearest {k}"] if k else [])), tuple(lines), notes=(NOTE,))


def _lines(name: str, metrics: Mapping[str, object], k: str) -> list[Line]:
    key = f"{PREFIX}{name}"
    texts, skipped, values, candidates = (
        shown("count", metrics.get(f"{key}/{fact}")) for fact in ("texts", "skipped", "values", "candidates")
    )
    majority = shown("percent", metrics.get(f"{key}/majority"))
    facts = f"{texts} texts ({skipped} without it), {values} values of {candidates}, the commonest {majority}"
    lines = [Line(name, facts, ())]
    for source, title in SOURCES.items():
        macro, top1, top_k = (
            shown("percent", metrics.get(f"{key}/{source}_{kind}")) for kind in ("macro", "top1", f"top{k}")
        )
        error = number(metrics, f"{key}/{source}_standard_error")
        accuracy = top1 if error is None else f"{top1} ± {error:.1f}"
        lines.append(Line("", title, tuple(map(Cell, (macro, accuracy, top_k) if k else (macro, accuracy)))))
    return lines
