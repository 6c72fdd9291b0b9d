"""The table of a run's metrics beside those of the nearest-neighbour baseline, for the page and the terminal."""

from __future__ import annotations

from unembed.metrics.attributes import PREFIX
from unembed.metrics.lengths import BY_LENGTH
from unembed.reports.language_table import is_of_language
from unembed.reports.numbers import number, shown
from unembed.reports.results import Results
from unembed.reports.tables import Cell, Line, Table
from unembed.reports.wording import difference, ordered


def metrics_table(results: Results, *, secondary: bool, explained: bool = True) -> Table:
    """The metrics of metrics.json beside those of the nearest neighbour; better values are coloured.

    Args:
        results: The results of the run.
        secondary: Whether to show the metrics with ``Description.secondary``, or all others.
        explained: Whether to add explanations, and metrics without any value.
    """
    baseline = results.baseline
    lines = []
    apart = {key for key in results.metrics if key.startswith((PREFIX, BY_LENGTH)) or is_of_language(key)}
    for one in ordered({key: value for key, value in results.metrics.items() if key not in apart}):
        value, other = results.metrics[one.key], (baseline or {}).get(one.key)
        if one.secondary is not secondary or not (explained or value is not None or other is not None):
            continue
        cells = [Cell(shown(one.kind, value), title="" if value is not None else "does not apply")]
        if baseline is not None:
            mine, theirs = number(results.metrics, one.key), number(baseline, one.key)
            gain = None
            if one.more is not None and mine is not None and theirs is not None and mine != theirs:
                gain = (mine > theirs) == (one.more == "higher")
            cells += [Cell(shown(one.kind, other)), Cell(difference(one, mine, theirs), gain=gain)]
        lines.append(Line(one.title, one.explanation if explained else "", tuple(cells), f"metric-{one.key}"))
    columns = ("Nearest neighbour", "Difference") if baseline is not None else ()
    return Table("", ("Metric", "This run", *columns), tuple(lines))
