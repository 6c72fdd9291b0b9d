"""Recovery broken down: by language, length, lexicon, attribute, word frequency, threshold, place in the input; and by
step of iterative correction, with the rounds of one text.

Of corrections, it reads corrections.json and corrections.jsonl (callbacks/iterative_correction.py), and the statistics
of the hypotheses that a corrector was trained on:

    artifacts/hypotheses.json   {"train, round 0": {"exact": 0.41, "cosines": [counts], "edges": [-1, ..., 1]}, ...}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from markupsafe import Markup
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from unembed.core.atomic_files import read_json
from unembed.metrics.attributes import PREFIX, SOURCES
from unembed.metrics.entities import LexiconEntityRecovery
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import BOUNDS, BY_LENGTH, CHIEF, LENGTHS, LONGER, OF_LENGTH, TRANSLATED
from unembed.metrics.token_inversion import Inverted, TokenExact, TokenPartial, by_length, by_position, exact_by_cost
from unembed.reports.charts import (
    COLOURS,
    Bars,
    Chart,
    Series,
    counted_histogram,
    grouped_bars,
    line_chart,
    trade_off,
)
from unembed.reports.numbers import DASH, counted, number, shown
from unembed.reports.output import Cell, Line, Table, macro
from unembed.reports.results import Results, measure, own_keys, parts
from unembed.runs import layout
from unembed.runs.files import Row, read_lines, read_object, validated

_FEWEST = 20  # texts of each of two lengths, for a table of lengths
_FACTS = ("texts", "skipped", "values", "candidates")  # of an attribute
_OF_ATTRIBUTE = "{texts} texts ({skipped} without it), {values} values of {candidates}, the commonest {majority}"


def is_of_language(key: str) -> bool:
    """Whether a key of metrics.json belongs to one language: "bleu/de", "translated/bleu/de", "examples/de"."""
    name, _, language = key.removeprefix(TRANSLATED).partition("/")
    return bool(language) and name in ("examples", *CHIEF, *own_keys())


def language_table(metrics: Mapping[str, object]) -> Table | None:
    """One row per language in ``metrics``; None if there are fewer than two."""
    languages = [key.removeprefix("examples/") for key in metrics if key.startswith("examples/")]
    if not languages:
        return None
    names = [*CHIEF, *own_keys()]
    names = ["examples", *names, *(f"{TRANSLATED}{name}" for name in names if name != "cosine")]
    return _table_of_groups(metrics, "Language of the texts", {one: one for one in languages}, names, "{name}/{group}")


def length_table(metrics: Mapping[str, object]) -> Table | None:
    """One row per length in ``metrics``; None if fewer than two have ``_FEWEST`` texts."""
    counts = {name: number(metrics, f"{BY_LENGTH}examples/{name}") or 0 for name in LENGTHS}
    if sum(count >= _FEWEST for count in counts.values()) < 2:
        return None
    starts = dict(zip(LENGTHS, (1, *(bound + 1 for bound in BOUNDS)), strict=True))
    titles = {
        name: f"{starts[name]} {'or more' if name == LONGER else f'to {name}'}" for name in LENGTHS if counts[name]
    }
    return _table_of_groups(
        metrics, "Tokens of the text", titles, ["examples", *OF_LENGTH], f"{BY_LENGTH}{{name}}/{{group}}"
    )


def _table_of_groups(
    metrics: Mapping[str, object], title: str, groups: Mapping[str, str], names: Sequence[str], key: str
) -> Table:
    """A row for each group of texts (key: title), with those of the metrics ``names`` that any group has."""
    values = {name: [metrics.get(key.format(name=name, group=group)) for group in groups] for name in names}
    values = {name: column for name, column in values.items() if any(value is not None for value in column)}
    lines = [
        Line(label, "", [Cell(shown(measure(name).kind, column[place])) for name, column in values.items()])
        for place, label in enumerate(groups.values())
    ]
    return Table("", (title, *("Texts" if name == "examples" else measure(name).title for name in values)), lines)


def lexicon_table(rows: Sequence[Scored]) -> Table | None:
    """Entities inside and outside the attack's lexicon, by whether training texts have them; None without a lexicon."""
    if not any(row.in_lexicon for row in rows):
        return None
    kinds: dict[bool | None, str] = {None: "all"}
    if any(row.unseen for row in rows):
        kinds |= {False: "in the training text", True: "not in the training text"}
    lines = []
    for unseen, title in kinds.items():
        (back, has), (others, lacks) = (
            LexiconEntityRecovery(inside=inside, unseen=unseen).statistics(rows).sum(axis=0).astype(int).tolist()
            for inside in (True, False)
        )
        cells = (_share(has, has + lacks), _share(back, has), _share(others, lacks))
        lines.append(Line(title, "", (Cell(f"{has + lacks:,}"), *cells)))
    columns = ("Entities of the test texts", "Count", "In the lexicon", "Recovered of these", "Recovered of the others")
    note = "An entity is in the lexicon if the whole of it, or each of its words, is an entry."
    return Table("", columns, lines, notes=(note,))


def _share(part: int, total: int) -> Cell:
    """A percentage, above its counts."""
    return Cell(shown("percent", 100 * part / total), (f"{part:,} of {total:,}",)) if total else Cell(DASH)


# ---------------------------------------------------------------------------------------------------------- attributes


def attribute_table(metrics: Mapping[str, object]) -> Table | None:
    """One line per attribute in ``metrics``, followed by one line per source of the guess; None without attributes."""
    keys = [key.removesuffix("/texts") for key in metrics if key.startswith(PREFIX) and key.endswith("/texts")]
    if not keys:
        return None
    tops = (re.fullmatch(rf"{PREFIX}.*/reconstructed_top(\d+)", key) for key in metrics)
    k = next((top[1] for top in tops if top and top[1] != "1"), None)
    lines = []
    for key in keys:
        facts = {fact: shown("count", metrics.get(f"{key}/{fact}")) for fact in _FACTS}
        majority = shown("percent", metrics.get(f"{key}/majority"))
        lines.append(Line(key.removeprefix(PREFIX), _OF_ATTRIBUTE.format(**facts, majority=majority), ()))
        for source, title in SOURCES.items():
            kinds = ("macro", "top1", *([f"top{k}"] if k else []))
            cells = [shown("percent", metrics.get(f"{key}/{source}_{kind}")) for kind in kinds]
            if (error := number(metrics, f"{key}/{source}_standard_error")) is not None:
                cells[1] += f" ± {error:.1f}"
            lines.append(Line("", title, [*map(Cell, cells)]))
    columns = ("Attribute, guessed from", "Macro accuracy", "Accuracy ± s.e.")
    note = (
        "The guess is the value whose vector lies nearest; nothing is learned for it. Macro accuracy is the mean over "
        "values, each counted once. The original text bounds what any attack could give. The standard error takes "
        "texts for independent, which texts about one subject are not."
    )
    return Table("", (*columns, *([f"Among the nearest {k}"] if k else [])), lines, notes=(note,))


# ------------------------------------------------------------------- words by frequency, thresholds, place in the input


class _Bin(BaseModel):
    """Words that occur between ``low`` and ``high`` times in the training text."""

    low: Annotated[int, Field(ge=0, lt=2**53, alias="from")]
    high: Annotated[int, Field(ge=0, lt=2**53, alias="to")]
    occurrences: Annotated[int, Field(gt=0, lt=2**53)]
    recovered: Annotated[int, Field(ge=0, lt=2**53)]


def _short(count: int) -> str:
    """``639``, ``1.1k``, ``12k``, ``3M``."""
    size, unit = next((pair for pair in ((10**6, "M"), (1000, "k")) if count >= pair[0]), (1, ""))
    return f"{count / size:.{1 if size <= count < 10 * size else 0}f}".removesuffix(".0") + unit


def frequency_charts(analyses: Mapping[str, Any] | None) -> list[Chart]:
    """Recovered words by their count in the training text (Morris et al. 2023, figure 6); empty without analyses."""
    listed = (analyses or {}).get("word_frequency", [])
    bins = validated(TypeAdapter(dict[str, list[_Bin]]), {"word_frequency": listed}, layout.ANALYSES)["word_frequency"]
    if not bins:
        return []
    groups = [Bars(_short(one.low), _short(one.occurrences), [100 * one.recovered / one.occurrences]) for one in bins]
    title = "Words recovered, by their count in the training text"
    chart = grouped_bars(title, ["recovered"], groups, "times in the training text, at least")
    note = (
        "Percent of the words' occurrences in the test texts; below each bar, the smallest count of its words in the "
        "training text, and how many occurrences there are."
    )
    return [("Words by frequency", chart, note)]


class _Threshold(BaseModel):
    """Scores at one threshold on the validation text; 0 to 1, precision None if no word is predicted."""

    threshold: float
    precision: float | None
    recall: float
    f1: float


class _Thresholds(BaseModel):
    """artifacts/threshold.json of attack=bag_of_words: the chosen threshold, and the scores at all thresholds."""

    threshold: float
    curve: list[_Threshold]


def threshold_charts(run_dir: Path) -> list[Chart]:
    """Precision against recall of a classifier at other thresholds; empty if the run has none."""
    path = run_dir / layout.ARTIFACTS / "threshold.json"
    if not path.exists():
        return []
    scores = validated(TypeAdapter(_Thresholds), read_object(path), path)
    points = [(one, (100 * one.recall, 100 * one.precision)) for one in scores.curve if one.precision is not None]
    best = next(((one, place) for one, place in points if one.threshold == scores.threshold), None)
    if best is None:
        return []
    title = "Precision against recall, a dot a threshold"
    chart = trade_off(title, [place for _, place in points], best[1], "recall", "precision")
    note = (
        f"Distinct words of the validation text, in percent. Thresholds from {points[0][0].threshold:g}, right, to "
        f"{points[-1][0].threshold:g}, left; the large dot is the chosen one, {scores.threshold:g}, with the best F1: "
        f"{100 * best[0].f1:.1f}."
    )
    return [("Precision and recall", chart, note)]


def token_charts(rows: Sequence[Row]) -> list[Chart]:
    """Recovery of a language model's inputs by length, position and cost; empty without token ids."""
    inverted = [
        Inverted(
            true=row.reference_tokens,
            found=row.prediction_tokens,
            claimed=row.search is not None and row.search.verified,
            cost=None if row.search is None else row.search.passes,
        )
        for row in rows
        if row.reference_tokens is not None and row.prediction_tokens is not None
    ]
    if not inverted:
        return []
    bars = [
        Bars(str(length), f"{len(group):,}", [TokenExact().of(group), TokenPartial().of(group)])
        for length, group in by_length(inverted).items()
    ]
    chart = grouped_bars("Recovered by input length", ["inputs", "tokens"], bars, "tokens in the input")
    note = "Percent of the inputs that came back whole, and of their tokens in their places; below, how many inputs."
    charts = [("By length", chart, note)]
    placed = {length: shares for length, shares in by_position(inverted).items() if length > 1}
    if placed:
        lengths = list(placed)
        some = lengths[:: max(1, len(lengths) // (COLOURS - 1))][: COLOURS - 1]
        series = []
        for length in sorted({*some, lengths[-1]}):
            points = [(float(place), one.rate or 0.0) for place, one in enumerate(placed[length], 1)]
            series.append(Series(f"{length} tokens", points, dots=True))
        chart = line_chart("Tokens recovered by place", series, "place in the input", from_zero=True)
        charts.append(("By place", chart, "Percent of the tokens at each place that came back."))
    costs = [row.cost for row in inverted if row.cost is not None]
    if len(costs) == len(inverted) and max(costs) > 0:
        steps = [max(costs) * place / 100 for place in range(101)]
        points = [(step, share or 0.0) for step, share in zip(steps, exact_by_cost(inverted, steps), strict=True)]
        curve = [Series("inputs", points)]
        chart = line_chart("Inputs recovered by cost", curve, "forward passes a target", from_zero=True)
        charts.append(("By cost", chart, "Percent of the inputs that had come back; a backward pass counts two."))
    return charts


# --------------------------------------------------------------------------------------------------------- corrections

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
        lines.append(Line(f"{counted(row.beams, 'beam')}, {counted(row.step, 'step')}", cut, cells))
        before = row
    note = (
        f"Means over {content.examples:,} texts, but BLEU is that of the corpus. Coloured: other than a line before. "
        "Queries are distinct texts that were embedded for a target."
    )
    return Table("", ("Correction", *(title for title, _ in COLUMNS.values())), lines, notes=(note,))


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
    return Table("", ("Step", "Closest text so far", "Cosine", "Queries"), lines)


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
