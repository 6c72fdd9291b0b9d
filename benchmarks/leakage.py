"""The law of leakage: what came back of texts by dimensions, bits and length, a formula fitted to it, and a picture.

    python train.py -m experiment=leakage
    python benchmarks/leakage.py runs/leakage/minilm-[0-9]* --picture docs/capacity.svg --rows results/leakage.csv
    python benchmarks/leakage.py runs/leakage/minilm-[0-9]* --predict 256 3 10     # dimensions, bits, content words

A cell is a run at one length. Words are the different content words of a text, as of ``content_word_recovery``; from
those that came back are taken those that the predictions for the other texts of the cell have, too. Each form of FORMS
is fitted by least squares to the words of all cells, and judged by what it says of the lengths of one run when it was
fitted to the other runs. ``--rows`` completes a file of results/, with ``--table``, ``--processor``, ``--commit`` and
``--command``.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from drawing import beside
from markupsafe import Markup
from measuring import command_line
from scipy.optimize import least_squares
from scipy.stats import t as student

from unembed.audit.exposure import FREE, classes, items
from unembed.core.atomic_files import write_file
from unembed.metrics.entities import recovered_entities
from unembed.metrics.statistics import interval as percentiles
from unembed.metrics.statistics import resampled_sums
from unembed.metrics.stop_words import content_words
from unembed.metrics.text import exact_match
from unembed.metrics.tokens import token_overlap, words
from unembed.reports.svg import Frame, dot, text
from unembed.runs import layout

Array = np.ndarray[Any, np.dtype[np.float64]]
FLOAT = 16  # bits that stand for floats in the runs
RESAMPLES = 1000
WIDTH, HEIGHT = 430.0, 320.0  # of a panel
CELLS = "cells"  # the table of the cells that the law is fitted to


class Cell(NamedTuple):
    """A run at one length: what was attacked, and means over its texts.

    Attributes:
        words: Content words that came back, less those that other predictions have, too; with a 95 % interval.
        content: Content words of a text.
        scores: Metrics of results/, in percent.
    """

    name: str
    dimensions: int
    bits: int
    tokens: int
    texts: int
    content: float
    words: float
    interval: tuple[float, float]
    scores: dict[str, float]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="of experiment=leakage, of one embedder")
    parser.add_argument("--picture", type=Path, help="the SVG file to write")
    parser.add_argument("--rows", type=Path, help="the CSV file to complete")
    parser.add_argument("--table", default=CELLS, help=f"for --rows; the law is a line of {CELLS} alone")
    parser.add_argument("--processor", default="", help="that they were made on, for --rows")
    parser.add_argument("--commit", default="", help="of the code, for --rows")
    parser.add_argument("--command", default="python train.py -m experiment=leakage", help="that made them, for --rows")
    parser.add_argument("--predict", type=float, nargs=3, metavar=("DIMENSIONS", "BITS", "WORDS"))
    options = parser.parse_args(argv)
    cells = [cell for run in options.runs for cell in cells_of(run)]
    for cell in cells:
        low, high = cell.interval
        scores = "".join(f"  {name} {value:.1f}" for name, value in cell.scores.items())
        print(f"{cell.name:<50}{cell.words:>6.2f} ({low:.2f} to {high:.2f}) of {cell.content:.1f}{scores}")
    laws = [Law.of(form, cells) for form in FORMS] if len(options.runs) > len(FORMS[logit]) else []
    for law in laws:
        print(law)
    if options.predict:
        for law in laws:
            predicted, low, high = law.predict(*options.predict)
            print(f"{law.form}: {predicted:.2f} words (95 %: {low:.2f} to {high:.2f})")
    if options.picture:
        write_file(options.picture, picture(cells, laws[0]))
    if options.rows:
        complete(options, cells, laws)
    print(json.dumps({"cells": len(cells), "forms": {law.form: round(law.left_out, 4) for law in laws}}))


# -- what came back ---------------------------------------------------------------------------------------------------


def cells_of(run: Path) -> list[Cell]:
    """The cells of a run, or of an evaluation of one; the shortest length first."""
    config = yaml.safe_load((run / layout.CONFIG).read_text(encoding="utf-8"))
    defense, refine = config["defense"], config["attack"].get("refine") or {}
    shortened = defense.get("truncation", {"dimensions": 384})  # a decoder of whole vectors has no such defense
    bits = defense.get("int8", defense).get("bits", FLOAT)
    queries = refine.get("lexicon", {}).get("max_queries", 0)
    kind = "principal components" if "pca" in str(shortened.get("_target_")) else "dimensions"
    name = f"{config['choices']['embedder']}, {shortened['dimensions']} {kind}, {bits} bits"
    name += (f", {queries} queries" if queries else "") + ("" if "aligner" in config["attack"] else ", trained decoder")
    by_length: dict[int, list[tuple[str, str]]] = defaultdict(list)
    with (run / layout.PREDICTIONS).open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            by_length[int(row["attributes"]["tokens"])].append((row["reference"], row["prediction"]))
    return [
        scored(f"{name}, {length} tokens", shortened["dimensions"], bits, length, pairs)
        for length, pairs in sorted(by_length.items())
    ]


def scored(name: str, dimensions: int, bits: int, tokens: int, pairs: Sequence[tuple[str, str]]) -> Cell:
    """A cell from (reference, prediction) pairs."""
    content = [(content_words(words(one)), content_words(words(other))) for one, other in pairs]
    sizes = np.array([len(true) for true, _ in content], dtype=float)
    found = np.array([len(true & read) for true, read in content], dtype=float)
    gained = found - by_chance(content)
    ends = percentiles(resampled_sums(gained[:, None], RESAMPLES, seed=0)[:, 0] / len(gained))
    assert ends is not None  # none is NaN
    parts = [[value for kind, values in items(true, (), set(classes().values())).items() if kind != FREE
              for value in values] for true, _ in pairs]  # fmt: skip
    read = sum(recovered_entities(values, pair[1]) for values, pair in zip(parts, pairs, strict=True))
    scores = {
        "content_word_recovery": 100 * found.sum() / max(1, sizes.sum()),
        "token_f1": float(np.mean([token_overlap(*pair).f1 for pair in pairs])),
        "exact_match": 100 * float(np.mean([exact_match(*pair) for pair in pairs])),
    }
    if total := sum(map(len, parts)):
        scores["parts_recovered"] = 100 * read / total
    means = float(sizes.mean()), float(gained.mean())
    return Cell(name, dimensions, bits, tokens, len(pairs), *means, ends, scores)


def by_chance(content: Sequence[tuple[frozenset[str], frozenset[str]]]) -> Array:
    """For each text, how many of its words the prediction for another text of the cell has, in the mean: (n,)."""
    written = Counter(word for _, read in content for word in read)
    others = max(1, len(content) - 1)
    return np.array([sum(written[word] - (word in read) for word in true) / others for true, read in content])


# -- the law ----------------------------------------------------------------------------------------------------------


def capacity(p: Array, d: Array, b: Array) -> Array:
    """The words that a vector has room for: p0 (d/384)^p1 (1 - exp(-b/p2)); exponents are of log scale."""
    return np.exp(p[0]) * (d / 384) ** p[1] * (1 - np.exp(-b / np.exp(p[2])))


def saturating(p: Array, d: Array, b: Array, n: Array) -> Array:
    """Each word of a text takes some of the room that the others left."""
    room = capacity(p, d, b)
    return room * (1 - np.exp(-n / room))


def hyperbolic(p: Array, d: Array, b: Array, n: Array) -> Array:
    room = capacity(p, d, b)
    return room * n / (room + n)


def sigmoid(p: Array, d: Array, b: Array, n: Array) -> Array:
    """A share of the words that falls where they exceed the room: the exponent p3 says how steeply."""
    return n / (1 + (n / capacity(p, d, b)) ** np.exp(p[3]))


def logit(p: Array, d: Array, b: Array, n: Array) -> Array:
    """The logit of the share of words is linear in the logarithms."""
    return n / (1 + np.exp(-(p[0] + p[1] * np.log2(d / 384) + p[2] * np.log2(b / FLOAT) + p[3] * np.log2(n))))


Form = Callable[[Array, Array, Array, Array], Array]
FORMS: dict[Form, list[float]] = {  # with the values where their fit begins
    saturating: [1.0, 1.0, 0.0], hyperbolic: [1.0, 1.0, 0.0], sigmoid: [1.0, 1.0, 0.0, 0.0],
    logit: [1.0, 1.0, 1.0, -1.0],
}  # fmt: skip


class Law(NamedTuple):
    """A form fitted to cells.

    Attributes:
        r2: Share of the variance of the cells' words that it explains.
        left_out: Root mean squared error, in words, for runs that it was not fitted to.
        spread: The same, relative to the predicted words where these are above a half.
    """

    function: Form
    values: Array
    r2: float
    left_out: float
    spread: float
    cells: int

    @classmethod
    def of(cls, function: Form, cells: Sequence[Cell]) -> Law:
        """The law of these cells; at least two runs."""
        d, b, n, measured = (np.array(column, dtype=float) for column in zip(
            *((cell.dimensions, cell.bits, cell.content, cell.words) for cell in cells), strict=True))  # fmt: skip
        runs = np.array([cell.name.rsplit(",", 1)[0] for cell in cells])
        values = fit(function, d, b, n, measured)
        errors = measured - function(values, d, b, n)
        predicted = np.empty_like(measured)
        for run in dict.fromkeys(runs):
            out = runs == run
            predicted[out] = function(fit(function, d[~out], b[~out], n[~out], measured[~out]), d[out], b[out], n[out])
        large = predicted > 0.5
        r2 = 1 - np.square(errors).sum() / np.square(measured - measured.mean()).sum()
        spread = np.sqrt(np.square(measured / predicted - 1)[large].mean()) if large.any() else math.nan
        return cls(function, values, float(r2), rms(measured - predicted), float(spread), len(cells))

    @property
    def form(self) -> str:
        return self.function.__name__

    def __call__(self, dimensions: float, bits: float, content: float) -> float:
        one = (np.array([value], dtype=float) for value in (dimensions, bits, content))
        return float(self.function(self.values, *one)[0])

    def predict(self, dimensions: float, bits: float, content: float) -> tuple[float, float, float]:
        """Words of a text of so many, and a 95 % interval from the relative errors for runs that were left out."""
        middle = self(dimensions, bits, content)
        half = middle * self.spread * float(student.ppf(0.975, self.cells - len(self.values)))
        return middle, middle - half, middle + half

    def __str__(self) -> str:
        values = " ".join(f"{value:.3f}" for value in self.values)
        errors = f"R2 {self.r2:.3f}, left out {self.left_out:.3f} words, {100 * self.spread:.0f} %"
        return f"{self.form:<12}{errors}; {self.cells} cells; {values}"


def fit(function: Form, d: Array, b: Array, n: Array, measured: Array) -> Array:
    return np.asarray(least_squares(lambda p: function(p, d, b, n) - measured, FORMS[function], max_nfev=20_000).x)


def rms(errors: Array) -> float:
    return float(np.sqrt(np.square(errors).mean()))


# -- what is written --------------------------------------------------------------------------------------------------


def picture(cells: Sequence[Cell], law: Law) -> str:
    """Words by length for some vectors, dots beside the law's lines; words measured by words of the law."""
    chosen = [(384, FLOAT), (384, 1), (192, FLOAT), (96, FLOAT), (48, FLOAT)]
    most = 1.1 * max(cell.words for cell in cells)
    longest = max(cell.content for cell in cells)
    by_length, agreement = (
        Frame((0, longest * 1.05), (0, most), WIDTH, HEIGHT),
        Frame((0, most), (0, most), WIDTH, HEIGHT),
    )
    left = by_length.axes("different content words of the text", "of these came back")
    for number, (d, b) in enumerate(chosen):
        own = [cell for cell in cells if (cell.dimensions, cell.bits) == (d, b)]
        left += [dot(by_length.x(cell.content), by_length.y(cell.words), 4, f"series{number}") for cell in own]
        grid = np.geomspace(0.01, longest, 60)
        left.append(by_length.curve([(float(n), law(d, b, float(n))) for n in grid], f"series{number}"))
    right = agreement.axes("words by the law", "words measured")
    right.append(agreement.curve([(0, 0), (most, most)], "series0"))
    for cell in cells:
        place = agreement.x(law(cell.dimensions, cell.bits, cell.content)), agreement.y(max(0.0, cell.words))
        right.append(dot(*place, 3, "series1", cell.name))
    right.append(text(agreement.left + 10, agreement.top + 14, f"R² {law.r2:.3f}, {law.cells} cells", "label"))
    key = [f"{d} dimensions, {'1 bit each' if b == 1 else 'floats'}" for d, b in chosen]
    charts: list[Markup] = [by_length.svg("Words by length", left), agreement.svg("Law and measurement", right)]
    return beside("How many words come back from a vector", charts, WIDTH, HEIGHT, key=key)


def complete(options: argparse.Namespace, cells: Sequence[Cell], laws: Sequence[Law]) -> None:
    """Add lines to a file of results/, in place of those of the same table, row and metric."""
    columns = ["table", "row", "metric", "value", "low", "high", "unit", "texts", "date", "processor", "commit",
               "command", "note"]  # fmt: skip
    old = []
    if options.rows.exists():
        with options.rows.open(encoding="utf-8", newline="") as file:
            old = list(csv.DictReader(file))
    shared = {"date": datetime.date.today().isoformat(), "processor": options.processor, "commit": options.commit,
              "command": options.command}  # fmt: skip
    new: list[dict[str, Any]] = []
    for cell in cells:
        own = {"table": options.table, "row": cell.name, "texts": cell.texts, **shared}
        low, high = (f"{value:.3f}" for value in cell.interval)
        note = f"of {cell.content:.2f} content words of a text"
        new.append({**own, "metric": "words_recovered", "value": f"{cell.words:.3f}", "low": low, "high": high,
                    "unit": "other", "note": note})  # fmt: skip
        shares = ((key, f"{value:.2f}") for key, value in cell.scores.items())
        new += [{**own, "metric": key, "value": value, "unit": "percent"} for key, value in shares]
    for law in laws if options.table == CELLS else []:
        own = {"table": "law", "row": f"{cells[0].name.split(',')[0]}: {law.form}", "unit": "other", **shared,
               "note": f"{law.cells} cells; parameters as in benchmarks/leakage.py"}  # fmt: skip
        values = {"r_squared": law.r2, "left_out_error": law.left_out}
        values |= {f"parameter_{number}": float(value) for number, value in enumerate(law.values)}
        new += [{**own, "metric": key, "value": f"{value:.4f}"} for key, value in values.items()]
    lines = {(row["table"], row["row"], row["metric"]): row for row in [*old, *new]}
    written = io.StringIO()
    writer = csv.DictWriter(written, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines.values())
    write_file(options.rows, written.getvalue())


if __name__ == "__main__":
    main()
