"""The standing results: what each attack reads, lines of results/*.csv, as a table and a chart of docs/README.md.

    python benchmarks/standing.py            # after a line of results/ has changed

A result enters by a line in results/ (its README has the rule) and a line in STANDING.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import NamedTuple

from drawing import beside
from measuring import ROOT, command_line

from unembed.core.atomic_files import write_file
from unembed.reports.charts import NamedValue, row_chart
from unembed.reports.svg import WIDTH


class Line(NamedTuple):
    """A line of the table: what the attacker has, the attack, and where its values stand: file, table and row."""

    access: str
    attack: str
    place: tuple[str, str, str]


def _store(access: str, attack: str, row: str) -> Line:
    return Line(access, attack, ("access", "undefended", row))


def _unseen(access: str, attack: str, row: str) -> Line:
    return Line(access, attack, ("lexicon", "unseen sources", row))


STANDING = {
    "A store: 100 texts of the built-in corpus, all-MiniLM-L6-v2": [
        _store("nothing else", "shipped attacker", "shipped attacker, vectors alone"),
        _store("1,000 stored texts", "nearest known text", "nearest known text, 1,000 pairs"),
        _store("1,000 stored texts", "ALGEN", "ALGEN, 1,000 pairs"),
        _store("1,000 stored texts", "TEIA", "TEIA, 1,000 pairs"),
        _store("own texts embedded", "Vec2Text", "Vec2Text, own texts"),
        _store("own texts embedded", "GEIA", "GEIA, own texts"),
        _store("20 queries a text", "GEIA and search", "GEIA, 20 queries"),
        _store("the embedder's weights", "GEIA and search", "GEIA, weights"),
    ],
    "Texts of five sources that no training had, all-MiniLM-L6-v2": [
        _unseen("2 queries", "shipped attacker", "two beams, reranked"),
        _unseen("272 queries", "shipped, lexicon search", "lexicon search, 300 queries"),
        _unseen("165 queries", "minilm_large, sentence search", "minilm_large, sentence search, 300 queries"),
        _unseen("weights", "shipped, sentence search", "sentence search, own copy of the embedder"),
    ],
    "An embedder for which nothing was trained": [
        Line("1,000 texts embedded, and 87 a text", "zero-shot, another layer of MiniLM",
             ("zero_shot", "zero_shot", "minilm's fifth layer, mean, 1,000 bought once")),
        Line("2,000 texts embedded, and 98 a text", "zero-shot, multilingual-e5-small",
             ("zero_shot", "zero_shot", "me5_small_q4, 1,000 bought once, words bought")),
    ],
    "Prompts of a language model, SmolLM2-135M": [
        Line("hidden states of layer 15", "SIPIT", ("hidden_states", "layers", "hidden state, layer 15, float32")),
        Line("keys of layer 15", "SIPIT", ("hidden_states", "layers", "keys, layer 15, float32")),
        Line("the last state of layer 30", "decoder",
             ("log_probabilities", "texts from one state", "last_state, layer 30")),
        Line("log-probabilities of 8 tokens", "PILS",
             ("log_probabilities", "prompts from log-probabilities", "pils, 8 output tokens")),
        Line("log-probabilities of 1 token", "logits inverter",
             ("log_probabilities", "prompts from log-probabilities", "logits_inverter, one output token")),
    ],
}  # fmt: skip
COLUMNS = {
    "word F1": ("token_f1",),
    "exact": ("exact_match", "exact_match_no_punctuation", "token_exact"),
    "entities": ("entity_recovery",),
}
BEGIN, END = "<!-- begin: python benchmarks/standing.py -->", "<!-- end -->"
PAGE, CHART = ROOT / "docs" / "README.md", ROOT / "docs" / "standing.svg"
Values = dict[str, dict[str, str]]


def main(argv: Sequence[str] | None = None) -> None:
    command_line(__doc__).parse_args(argv)
    write_file(PAGE, with_table(PAGE.read_text(encoding="utf-8")))
    write_file(CHART, chart())


def with_table(page: str) -> str:
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table()}\n{END}", page, flags=re.DOTALL)


def values_of(line: Line) -> Values:
    """The line's values by metric; KeyError if results/ has none."""
    name, table, row = line.place
    with (ROOT / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        found = {one["metric"]: one for one in csv.DictReader(file) if (one["table"], one["row"]) == (table, row)}
    if not found:
        raise KeyError(f"results/{name}.csv: no row {row!r} in the table {table!r}")
    return found


def cell(values: Values, metrics: Sequence[str]) -> str:
    """The value of the first of these metrics that there is, with its interval; empty if there is none."""
    one = next((values[metric] for metric in metrics if metric in values), None)
    if one is None:
        return ""
    interval = f" ({float(one['low']):.0f} to {float(one['high']):.0f})" if one["low"] else ""
    return f"{float(one['value']):.1f}{interval}"


def table() -> str:
    rows = [f"| beside the vectors | attack | {' | '.join(COLUMNS)} | texts |", f"|{'---|' * (len(COLUMNS) + 3)}"]
    for title, lines in STANDING.items():
        rows.append(f"| **{title}** |{' |' * (len(COLUMNS) + 2)}")
        for line in lines:
            values = values_of(line)
            cells = [cell(values, metrics) for metrics in COLUMNS.values()]
            texts = next(iter(values.values()))["texts"]
            rows.append(
                f"| {line.access} | [{line.attack}](../results/{line.place[0]}.csv) | {' | '.join(cells)} | {texts} |"
            )
    return "\n".join(rows)


def chart() -> str:
    """Word F1 of the first two groups, a chart each."""
    charts = []
    for lines in list(STANDING.values())[:2]:
        found = [(line, values_of(line)["token_f1"]) for line in lines]
        charts.append([
            NamedValue(
                f"{line.attack}; {line.access}", f"{float(one['value']):.0f} %", float(one["value"]),
                (float(one["low"]), float(one["high"])) if one["low"] else None,
            )
            for line, one in found
        ])  # fmt: skip
    height = 34.0 * max(map(len, charts)) + 26
    drawn = [row_chart("word F1", rows) for rows in charts]
    heads = ["word F1, the built-in corpus", "word F1, sources that no training had"]
    return beside("What each attack reads", drawn, WIDTH, height, heads)


if __name__ == "__main__":
    main()
