"""The tables and the plot of benchmarks/lm_inversion.py, from the cells that its file holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from drawing import beside

from unembed.metrics.base import Ratio
from unembed.metrics.statistics import Share
from unembed.metrics.token_inversion import (
    Claimed,
    FalseDiscovery,
    Inverted,
    TokenExact,
    TokenPartial,
    by_position,
    exact_by_cost,
)
from unembed.reports import charts, svg

Record = dict[str, Any]
POINTS = 60  # of a curve
EXACT, PARTIAL, WRONG, CLAIMED = TokenExact(), TokenPartial(), FalseDiscovery(), Claimed()


def rows_of(records: Iterable[Record], *, shown: bool = True, **name: Any) -> list[Inverted]:
    """The rows of all cells whose names say so; all of them, or those whose input stood in no training text."""
    return [
        Inverted(tuple(row["true"]), tuple(row["found"]), row["verified"], row["passes"])
        for record in records
        if all(record["name"].get(key) == value for key, value in name.items())
        for row in record["rows"]
        if shown or row.get("shown") is False
    ]


def within(rows: Iterable[Inverted], passes: float) -> Share:
    """Inputs that came back for at most so many passes."""
    hits = [row.exact and row.cost is not None and row.cost <= passes for row in rows]
    return Share(sum(hits), len(hits))


def counted(metric: Ratio[Inverted], rows: Sequence[Inverted]) -> Share:
    """What the metric finds, and of how many."""
    part, whole = metric.statistics(rows).sum(axis=0)
    return Share(round(part), round(whole))


def short(record: Record) -> str:
    """One line on a cell."""
    name = ", ".join(f"{key} {value}" for key, value in record["name"].items())
    rows = rows_of([record])
    if not rows:
        return f"{name}: {record.get('pairs', 0):,} pairs, loss {record.get('loss', 0):.2f}"
    return f"{name}: {rate(counted(EXACT, rows))} exact, {counted(WRONG, rows).whole} claims, {spent(rows):,.0f} passes"


def spent(rows: Sequence[Inverted]) -> float:
    """Mean passes of a target."""
    return sum(row.cost or 0 for row in rows) / len(rows)


def rate(share: Share, interval: bool = False) -> str:
    """Percent, with Wilson's interval where it is asked for."""
    if share.rate is None or share.interval is None:
        return "-"
    low, high = share.interval
    return f"{share.rate:.1f}" + (f" ({low:.0f}-{high:.0f})" if interval else "")


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    ruled = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def values(records: Iterable[Record], key: str) -> list[Any]:
    """What stands under ``key`` in the cells' names, in the order of their first."""
    return list(dict.fromkeys(record["name"][key] for record in records if key in record["name"]))


def everything(records: Sequence[Record]) -> str:
    """All tables."""
    parts: dict[str, list[Record]] = {}
    for record in records:
        parts.setdefault(record["part"], []).append(record)
    makers = {
        "oracle": oracle, "wrong_length": wrong_length, "slander": slander, "outputs": outputs, "ablation": ablation,
        "inverter": inverter, "lengths": lengths, "long": long,
    }  # fmt: skip
    minutes = ", ".join(f"{part} {sum(r['seconds'] for r in found) / 60:.1f}" for part, found in parts.items())
    return "\n\n".join([*(makers[part](parts[part]) for part in makers if part in parts), f"minutes: {minutes}"])


def oracle(records: Sequence[Record]) -> str:
    """soda against brute force: what it finds, and whether another input agrees with the output."""
    lines = []
    pairs = [pair for record in records for pair in zip(record["rows"], record["agreeing"], strict=True)]
    for length in (1, 2):
        chosen = [(row, agreeing) for row, agreeing in pairs if len(row["true"]) == length]
        rows = rows_of([{"name": {}, "rows": [row for row, _ in chosen]}])
        ambiguous = sum(any(ids != row["true"] for ids in agreeing) for row, agreeing in chosen)
        denied = sum(row["verified"] and row["found"] not in agreeing for row, agreeing in chosen)
        claims = counted(WRONG, rows)
        found = [rate(counted(EXACT, rows), True), str(claims.whole), rate(claims)]
        lines.append([str(length), *found, str(ambiguous), str(denied)])
    heads = ["tokens", "exact", "claims", "false discovery", "outputs of another input too", "claims denied"]
    title = "oracle: soda, which knows that there are at most two tokens, against all inputs of one and two"
    return f"{title}\n{table(heads, lines)}"


def wrong_length(records: Sequence[Record]) -> str:
    """Share of inputs that are claimed, by true and searched length."""
    true, searched = values(records, "true"), values(records, "searched")
    lines = []
    for length in searched:
        cells = [rows_of(records, true=one, searched=length) for one in true]
        lines.append([f"searched with {length}", *(rate(counted(CLAIMED, rows)) for rows in cells)])
    return "wrong_length: inputs claimed, %\n" + table(["", *(f"of {one} tokens" for one in true)], lines)


def slander(records: Sequence[Record]) -> str:
    """Share of outputs that an input was found for."""
    kinds, seen = values(records, "claim"), values(records, "logits")
    lines = []
    for kind in kinds:
        cells = [rows_of(records, claim=kind, logits=one) for one in seen]
        lines.append([kind, *(rate(counted(CLAIMED, rows), True) for rows in cells)])
    heads = ["output of ten tokens", *(f"logits seen: {one}" for one in seen)]
    return "slander: outputs that an input of up to three tokens was found for, %\n" + table(heads, lines)


def outputs(records: Sequence[Record]) -> str:
    """Exact, and false discovery, by what is seen."""
    tokens, seen = values(records, "tokens"), values(records, "logits")
    found = []
    for title, metric in (("exact", EXACT), ("false discovery", WRONG)):
        lines = []
        for one in seen:
            cells = [rows_of(records, tokens=m, logits=one) for m in tokens]
            lines.append([f"{one} logits", *(rate(counted(metric, rows)) for rows in cells)])
        heads = [title, *(f"{m} output token{'' if m == 1 else 's'}" for m in tokens)]
        found.append(f"outputs: {title}, inputs of 1 to 3 tokens, %\n{table(heads, lines)}")
    return "\n\n".join(found)


def ablation(records: Sequence[Record]) -> str:
    """Exact by variant and length, at one cost."""
    limit = max(values(records, "passes"))
    lines = []
    for variant in values(records, "variant"):
        rows = rows_of(records, variant=variant, passes=limit)
        cells = [rows_of(records, variant=variant, passes=limit, length=n) for n in values(records, "length")]
        lines.append([variant, rate(within(rows, limit), True), *(rate(within(cell, limit)) for cell in cells)])
    heads = ["soda", "exact", *(f"{n}" for n in values(records, "length"))]
    return f"ablation: exact within {limit:,} passes, by input length, %\n" + table(heads, lines)


def inverter(records: Sequence[Record]) -> str:
    """What the logits inverters were trained on."""
    lines = [[r["name"]["data"], f"{r['pairs']:,}", f"{r['steps']:,}", f"{r['loss']:.2f}"] for r in records]
    return "inverter: training, each pair one forward pass\n" + table(["inputs", "pairs", "steps", "last loss"], lines)


def lengths(records: Sequence[Record]) -> str:
    """Exact by attack and length, at one cost; partial, false discovery and the places' own."""
    limit = max(values(records, "passes"), default=0)  # an inverter alone has none
    found = []
    for data in values(records, "data"):
        lines = []
        for attack, shown in itertools.product(values(records, "attack"), (True, False)):
            rows = rows_of(records, data=data, attack=attack, shown=shown)
            if not rows:
                continue
            cells = [rows_of(records, data=data, attack=attack, shown=shown, length=n) for n in range(1, 11)]
            lines.append([
                attack if shown else f"{attack}, inputs that training had not",
                rate(within(rows, limit), True), rate(counted(PARTIAL, rows)), rate(counted(WRONG, rows)),
                f"{spent(rows):,.0f}", *(rate(within(cell, limit)) for cell in cells),
            ])  # fmt: skip
        heads = ["attack", "exact", "partial", "false discovery", "passes", *map(str, range(1, 11))]
        found.append(f"lengths: {data} inputs, exact within {limit:,} passes, %\n{table(heads, lines)}")
    return "\n\n".join(found)


def long(records: Sequence[Record]) -> str:
    """Exact by length after more and more passes, and which places come back."""
    limit = max(values(records, "passes"))
    lengths, lines = values(records, "length"), []
    for data in values(records, "data"):
        for share in (0.01, 0.05, 0.2, 1.0):
            cells = [within(rows_of(records, data=data, length=n), share * limit) for n in lengths]
            lines.append([data, f"{share * limit:,.0f}", *map(rate, cells)])
    found = ["long: soda, exact by input length, %\n" + table(["inputs", "passes", *map(str, lengths)], lines)]
    placed = by_position(rows_of(records, data="random"))
    lines = [[str(n), *(rate(share) for share in shares), *[""] * (10 - n)] for n, shares in placed.items()]
    found.append(f"long: soda, random inputs, by place, %\n{table(['tokens', *map(str, range(1, 11))], lines)}")
    return "\n\n".join(found)


def plot(records: Sequence[Record]) -> str | None:
    """Exact against passes: all attacks on random inputs and on text, and soda by length; None without cells."""
    found, alone = ([record for record in records if record["part"] == part] for part in ("lengths", "long"))
    limit, long_limit = (max(values(part, "passes"), default=0) for part in (found, alone))
    attacks = [attack for attack in values(found, "attack") if attack != "logits_inverter"]
    panels = [
        (f"{data}: exact, % of inputs", {a: _curve(rows_of(found, data=data, attack=a), limit) for a in attacks})
        for data in values(found, "data")
    ]
    by_length = {f"{n}": _curve(rows_of(alone, data="random", length=n), long_limit) for n in (3, 4, 5, 6, 8)}
    panels.append(("soda, random, by input length", by_length))
    drawn = {
        title: charts.line_chart(title, series, "forward passes a target", from_zero=True)
        for title, curves in panels
        if (series := [charts.Series(name, points) for name, points in curves.items() if points])
    }
    if not drawn:
        return None
    return beside("Inputs recovered by forward passes", list(drawn.values()), svg.WIDTH, svg.HEIGHT, list(drawn))


def _curve(rows: Sequence[Inverted], limit: int) -> list[tuple[float, float]]:
    """Percent exact after so many passes, up to the limit."""
    if not rows:
        return []
    costs = [limit * place / POINTS for place in range(POINTS + 1)]
    return [(cost, share or 0.0) for cost, share in zip(costs, exact_by_cost(rows, costs), strict=True)]
