"""Charts of a run on a language model's inputs, by token ids: recovery by length, position and cost."""

from __future__ import annotations

from collections.abc import Sequence

from unembed.metrics.token_inversion import Inverted, TokenExact, TokenPartial, by_length, by_position, exact_by_cost
from unembed.reports import charts
from unembed.runs.files import Row

POINTS = 100  # of a curve, at most


def token_charts(rows: Sequence[Row]) -> list[charts.Chart]:
    """All charts; empty if predictions or references have no token ids."""
    inverted = [one for one in map(_inverted, rows) if one is not None]
    if not inverted:
        return []
    lengths = by_length(inverted)
    metrics = TokenExact(), TokenPartial()
    bars = [
        charts.Bars(str(length), f"{len(group):,}", [metric.of(group) for metric in metrics])
        for length, group in lengths.items()
    ]
    chart = charts.grouped_bars("Recovered by input length", ["inputs", "tokens"], bars, "tokens in the input")
    note = "Percent of the inputs that came back whole, and of their tokens in their places; below, how many inputs."
    found = [("By length", chart, note)]
    placed = {n: shares for n, shares in by_position(inverted).items() if n > 1}
    if placed:
        longest = list(placed)[-1:]
        chosen = sorted({*list(placed)[:: max(1, len(placed) // (charts.COLOURS - 1))][: charts.COLOURS - 1], *longest})
        series = [
            charts.Series(
                f"{n} tokens",
                [(float(place), share.rate or 0.0) for place, share in enumerate(placed[n], 1)],
                dots=True,
            )
            for n in chosen
        ]
        chart = charts.line_chart("Tokens recovered by place", series, "place in the input", from_zero=True)
        found.append(("By place", chart, "Percent of the tokens at each place that came back."))
    costs = [row.cost for row in inverted if row.cost is not None]
    if len(costs) == len(inverted) and max(costs) > 0:
        steps = [max(costs) * place / POINTS for place in range(POINTS + 1)]
        points = [(step, share or 0.0) for step, share in zip(steps, exact_by_cost(inverted, steps), strict=True)]
        curve = charts.Series("inputs", points)
        chart = charts.line_chart("Inputs recovered by cost", [curve], "forward passes a target", from_zero=True)
        found.append(("By cost", chart, "Percent of the inputs that had come back; a backward pass counts two."))
    return found


def _inverted(row: Row) -> Inverted | None:
    if row.reference_tokens is None or row.prediction_tokens is None:
        return None
    search = row.search
    return Inverted(
        true=row.reference_tokens,
        found=row.prediction_tokens,
        claimed=search is not None and search.verified,
        cost=None if search is None else search.passes,
    )
