"""Iterative correction: curves over steps, queries and time, the rounds of one text, and the training hypotheses.

Reads corrections.json and corrections.jsonl (callbacks/iterative_correction.py), and the statistics of the hypotheses
that a corrector was trained on:

    artifacts/hypotheses.json   {"train, round 0": {"exact": 0.41, "cosines": [counts], "edges": [-1, ..., 1]}, ...}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from markupsafe import Markup
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from unembed.core.atomic_files import read_json
from unembed.reports.charts import COLOURS, Chart, Series, counted_histogram, line_chart
from unembed.reports.numbers import counted, shown
from unembed.reports.output import Cell, Line, Table, macro
from unembed.reports.results import Results, parts
from unembed.runs import layout
from unembed.runs.files import read_lines, read_object, validated

HYPOTHESES = "hypotheses.json"
# Columns of the table: title, format.
COLUMNS = {
    "bleu": ("BLEU", "score"),
    "bleu_sentence": ("BLEU, sentence", "score"),
    "rouge1": ("ROUGE-1", "score"),
    "rougeL": ("ROUGE-L", "score"),
    "token_f1": ("Word F1", "percent"),
    "token_set_f1": ("Token-set F1", "percent"),
    "exact_match": ("Exact match", "percent"),
    "cosine": ("Cosine", "cosine"),
    "tokens_prediction": ("Tokens", "score"),
    "queries": ("Queries a text", "score"),
    "seconds": ("Seconds a text", "moment"),
}
_COSTS = ("tokens_prediction", "queries", "seconds")  # never coloured
_CURVES = (
    ("BLEU by step", "step", "bleu", "correction steps", "Step 0 is the initial hypothesis."),
    ("Exact match by queries", "queries", "exact_match", "queries a text", "Percent of the texts, a dot a step."),
    ("BLEU by time", "seconds", "bleu", "seconds a text, power of ten", "Of the whole attack on this machine."),
)

# Finite numbers, which a chart can show.
_Number = Annotated[float, Field(ge=-1e150, le=1e150, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=-(2**53), le=2**53)]


class StepScores(BaseModel, extra="allow"):
    """A beam width and step of corrections.json, with the metrics of ``COLUMNS``; ``partial`` texts were cut short."""

    __pydantic_extra__: dict[str, _Number | None]
    beams: _Count
    step: _Count
    queries: _Number
    seconds: _Number
    partial: _Count = 0

    def value(self, name: str) -> float | None:
        value: float | None = getattr(self, name, None)
        return value


class Corrections(BaseModel):
    """corrections.json."""

    examples: int
    table: list[StepScores] = Field(min_length=1)


class CorrectedRound(BaseModel):
    """The best text after a step."""

    step: _Count
    text: str
    cosine: _Number | None
    queries: _Count


class Corrected(BaseModel):
    """A line of corrections.jsonl."""

    index: int
    beams: int
    reference: str
    rounds: list[CorrectedRound] = Field(min_length=1)

    @property
    def gain(self) -> float:
        """Increase of the cosine; 0 if there is none."""
        first, last = self.rounds[0].cosine, self.rounds[-1].cosine
        return 0.0 if first is None or last is None else last - first


class HypothesisCosines(BaseModel):
    """Histogram of the cosines of training hypotheses with their targets, counted between ``edges``."""

    exact: _Number
    cosines: list[Annotated[_Count, Field(ge=0)]]
    edges: list[_Number]

    @model_validator(mode="after")
    def _fit(self) -> HypothesisCosines:
        if len(self.edges) != len(self.cosines) + 1 or sorted(set(self.edges)) != self.edges:
            raise ValueError(f"{len(self.cosines)} counts need one more edge than that, each above the one before")
        return self


def correction(results: Results) -> Markup | None:
    """The section: results and cost of each correction step, and the rounds of one text; None without corrections."""
    path = results.directory / layout.CORRECTIONS
    if not path.exists():
        return None
    content = validated(TypeAdapter(Corrections), read_object(path), path)
    chosen = story(read_lines(results.directory / layout.CORRECTION_ROUNDS, Corrected))
    steps = None if chosen is None else story_table(chosen)
    charts, table = correction_curves(content.table), correction_table(content)
    return macro("correction", charts=charts, table=table, story=chosen, steps=steps)


def correction_curves(table: Sequence[StepScores]) -> list[Chart]:
    """BLEU by step, exact match by queries, BLEU by time; one curve per beam width."""
    curves = []
    for title, x_name, y_name, x_label, note in _CURVES:
        series = []
        for beams in sorted({row.beams for row in table})[:COLOURS]:
            points = [(row.value(x_name), row.value(y_name)) for row in table if row.beams == beams]
            known = [(float(x), float(y)) for x, y in points if x is not None and y is not None]
            if x_name == "seconds":  # a wide beam takes a hundred times as long as the initial hypothesis
                known = [(math.log10(x), y) for x, y in known if x > 0]
            if known:
                series.append(Series(counted(beams, "beam"), known, dots=True))
        if series:
            curves.append((title, line_chart(title, series, x_label), note))
    return curves


def correction_table(content: Corrections) -> Table:
    """One row per beam width and step; values that differ from the previous row are coloured."""
    lines = []
    before: StepScores | None = None
    for row in content.table:
        cells = []
        for name, (_, kind) in COLUMNS.items():
            value = row.value(name)
            last = None if before is None or before.beams != row.beams or name in _COSTS else before.value(name)
            moved = value is not None and last is not None and shown(kind, last) != shown(kind, value)
            cells.append(Cell(shown(kind, value), gain=(value or 0.0) > (last or 0.0) if moved else None))
        cut = f"{row.partial:,} cut short" if row.partial else ""
        lines.append(Line(f"{counted(row.beams, 'beam')}, {counted(row.step, 'step')}", cut, tuple(cells)))
        before = row
    note = (
        f"Means over {content.examples:,} texts, but BLEU is that of the corpus. Coloured: other than a line before. "
        "Queries are distinct texts that were embedded for a target."
    )
    return Table("", ("Correction", *(title for title, _ in COLUMNS.values())), tuple(lines), notes=(note,))


def story(paths: Sequence[Corrected]) -> Corrected | None:
    """Among the texts changed by the widest search, the one with the median gain in cosine; None if there is none."""
    widest = max((path.beams for path in paths), default=0)
    changed = [path for path in paths if path.beams == widest and path.rounds[-1].text != path.rounds[0].text]
    return sorted(changed, key=lambda path: (path.gain, path.index))[len(changed) // 2] if changed else None


def story_table(chosen: Corrected) -> Table:
    """The rounds in which a text changed, and the last one; words of the reference are marked."""
    lines = [Line("text", "", (Cell(chosen.reference, quoted=True), Cell(""), Cell("")))]
    before = None
    for one in chosen.rounds:
        if one.text != before or one is chosen.rounds[-1]:
            text = Cell(macro("passage", parts=parts(one.text, chosen.reference)), quoted=True)
            values = (Cell(shown("cosine", one.cosine)), Cell(shown("count", one.queries)))
            lines.append(Line(str(one.step), "", (text, *values)))
        before = one.text
    return Table("", ("Step", "Closest text so far", "Cosine", "Queries"), tuple(lines))


def hypothesis_charts(directory: Path) -> list[Chart]:
    """A histogram per set of a corrector's training hypotheses, by their cosine (Morris et al. 2023, figure 4)."""
    path = directory / layout.ARTIFACTS / HYPOTHESES
    charts = []
    for name, content in (read_json(path) if path.exists() else {}).items():
        one = validated(TypeAdapter(HypothesisCosines), content, f"{path}: {name}")
        if any(one.cosines):
            chart = counted_histogram(f"Cosine of hypotheses, {name}", one.cosines, one.edges, "cosine")
            count, right = sum(one.cosines), 100 * one.exact
            note = f"{count:,} hypotheses by their cosine with the target; {right:.1f} % right."
            charts.append((f"{name[:1].upper()}{name[1:]}", chart, note))
    return charts
