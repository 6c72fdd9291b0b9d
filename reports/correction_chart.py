"""What correction gave, for the report: curves over steps, queries and time, a table, and one text's rounds.

Reads corrections.json and corrections.jsonl (callbacks/iterative_correction.py), and what a corrector's training wrote
down about its hypotheses:

    artifacts/hypotheses.json   {"train, round 0": {"exact": 0.41, "cosines": [counts], "edges": [-1, ..., 1]}, ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from markupsafe import Markup
from pydantic import BaseModel, Field, ValidationError, model_validator

import limits
from atomic_files import read_json
from errors import InputError
from reports import svg
from reports.numbers import shown
from reports.results import Piece, pieces
from run_directory import layout

HYPOTHESES = "hypotheses.json"
CURVES = 4  # that the page has colours for
# The columns of the table: figure, title, and how it is written.
COLUMNS = (
    ("bleu", "BLEU", "score"),
    ("token_f1", "Token F1", "percent"),
    ("exact_match", "Exact match", "percent"),
    ("cosine", "Cosine", "cosine"),
    ("queries", "Queries a text", "score"),
    ("seconds", "Seconds a text", "moment"),
)

Content = TypeVar("Content", bound=BaseModel)
Chart = tuple[str, Markup, str]  # title, drawing, note


# Numbers that a chart has a place for.
_Number = Annotated[float, Field(ge=-1e150, le=1e150, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=-(2**53), le=2**53)]


class Row(BaseModel):
    """One width and step of corrections.json."""

    beams: _Count
    step: _Count
    bleu: _Number | None
    token_f1: _Number
    exact_match: _Number
    cosine: _Number | None
    queries: _Number
    seconds: _Number
    partial: _Count = 0  # texts whose search was cut short


class Corrections(BaseModel):
    """corrections.json."""

    examples: int
    table: list[Row] = Field(min_length=1)


class Round(BaseModel):
    """What stood for a text after a step."""

    step: _Count
    text: str
    cosine: _Number | None
    queries: _Count


class Corrected(BaseModel):
    """A line of corrections.jsonl."""

    index: int
    beams: int
    reference: str
    rounds: list[Round] = Field(min_length=1)


class Hypotheses(BaseModel):
    """Cosines of a set of training hypotheses with their targets, counted between ``edges``."""

    exact: _Number
    cosines: list[Annotated[_Count, Field(ge=0)]]
    edges: list[_Number]

    @model_validator(mode="after")
    def _fit(self) -> Hypotheses:
        if len(self.edges) != len(self.cosines) + 1 or sorted(set(self.edges)) != self.edges:
            raise ValueError(f"{len(self.cosines)} counts need one more edge than that, each above the one before")
        return self


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the table; ``gain``: better or worse than the step before, None where neither."""

    text: str
    gain: bool | None = None
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableLine:
    """A line of the table."""

    title: str
    below: str
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class Step:
    """A round of the text that is shown, its words that stand in the reference marked."""

    step: int
    pieces: list[Piece]
    cosine: str
    queries: str


@dataclass(frozen=True, slots=True)
class Story:
    """One text's rounds."""

    index: int
    beams: int
    reference: str
    steps: list[Step]


def correction_curves(table: Sequence[Row]) -> list[Chart]:
    """BLEU over the steps, exact match over queries, BLEU over time; a curve a width."""
    widths = sorted({row.beams for row in table})[:CURVES]
    charts = []
    for title, x_name, y_name, x_label, note in (
        ("BLEU by step", "step", "bleu", "correction steps", "Step 0 is the initial hypothesis."),
        ("Exact match by queries", "queries", "exact_match", "queries a text", "Percent of the texts, a dot a step."),
        ("BLEU by time", "seconds", "bleu", "seconds a text, power of ten", "Of the whole attack on this machine."),
    ):
        series = []
        for beams in widths:
            points = [(getattr(row, x_name), getattr(row, y_name)) for row in table if row.beams == beams]
            known = [(float(x), float(y)) for x, y in points if y is not None]
            if x_name == "seconds":  # a wide beam takes a hundred times the time of a guess
                known = [(math.log10(x), y) for x, y in known if x > 0]
            if known:
                series.append(svg.Series(_beams(beams), known, dots=True))
        if series:
            charts.append((title, svg.line_chart(title, series, x_label), note))
    return charts


def correction_table(table: Sequence[Row]) -> list[TableLine]:
    """A line a width and step; figures of quality are coloured where they moved since the line before."""
    lines = []
    before: Row | None = None
    for row in table:
        cells = []
        for name, _, kind in COLUMNS:
            value = getattr(row, name)
            text = shown(kind, value)
            last = None if before is None or before.beams != row.beams else getattr(before, name)
            moved = name not in ("queries", "seconds") and None not in (value, last) and shown(kind, last) != text
            cells.append(Cell(text, value > last if moved else None))
        steps = f"{row.step} step{'' if row.step == 1 else 's'}"
        cut = f"{row.partial:,} cut short" if row.partial else ""
        lines.append(TableLine(f"{_beams(row.beams)}, {steps}", cut, cells))
        before = row
    return lines


def story(paths: Sequence[Corrected]) -> Story | None:
    """Of the texts that the widest search changed, the one whose cosine rose by the median amount; None without one."""
    widest = max((path.beams for path in paths), default=0)
    changed = [path for path in paths if path.beams == widest and path.rounds[-1].text != path.rounds[0].text]
    if not changed:
        return None
    ranked = sorted(changed, key=lambda path: (_gain(path), path.index))
    chosen = ranked[len(ranked) // 2]
    steps, text = [], None
    for one in chosen.rounds:
        if one.text != text or one is chosen.rounds[-1]:
            marked = pieces(one.text, chosen.reference)
            steps.append(Step(one.step, marked, shown("cosine", one.cosine), shown("count", one.queries)))
        text = one.text
    return Story(chosen.index, widest, chosen.reference, steps)


def _gain(path: Corrected) -> float:
    """How much closer the text came; without a vector there is nothing to say."""
    first, last = path.rounds[0].cosine, path.rounds[-1].cosine
    return 0.0 if first is None or last is None else last - first


def corrections(directory: Path) -> tuple[Corrections, list[Corrected]] | None:
    """What the files of a run say; None where it was not corrected.

    Raises:
        InputError: A file is missing or broken.
    """
    path = directory / layout.CORRECTIONS
    if not path.exists():
        return None
    rounds = directory / layout.CORRECTION_ROUNDS
    if not rounds.exists():
        raise InputError(f"{rounds}: missing, though {path.name} is there")
    return _read(path, limits.content(path, limits.LARGEST_JSON), Corrections), [
        _read(f"{rounds}:{number}", line, Corrected) for number, line in limits.lines(rounds) if line.strip()
    ]


def hypothesis_charts(directory: Path) -> list[Chart]:
    """How near the hypotheses of a corrector's training lay (Morris et al. 2023, figure 4); a chart a set.

    Raises:
        InputError: The file is broken.
    """
    path = directory / layout.ARTIFACTS / HYPOTHESES
    if not path.exists():
        return []
    charts = []
    for name, content in read_json(path).items():
        found = _read(f"{path}: {name}", json.dumps(content), Hypotheses)
        if any(found.cosines):
            title = f"{name[:1].upper()}{name[1:]}"
            chart = svg.counted_histogram(f"Cosine of hypotheses, {name}", found.cosines, found.edges, "cosine")
            note = (
                f"{sum(found.cosines):,} hypotheses by their cosine with the target; {100 * found.exact:.1f} % right."
            )
            charts.append((title, chart, note))
    return charts


def _read(where: Path | str, text: str | bytes, kind: type[Content]) -> Content:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _beams(count: int) -> str:
    return f"{count} beam{'' if count == 1 else 's'}"
