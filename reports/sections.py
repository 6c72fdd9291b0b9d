"""The sections of the report, in the order of the page.

A new one is a function from ``Results`` to its HTML, or to None where it has nothing to show, listed in ``SECTIONS``.
Recovered text is hostile input: it reaches the page only through the autoescaping template or ``Markup.format``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reports import svg
from reports.attribute_table import PREFIX, attribute_lines
from reports.correction_chart import (
    COLUMNS,
    correction_curves,
    correction_table,
    corrections,
    hypothesis_charts,
    story,
)
from reports.frequency_chart import frequency_charts
from reports.language_table import is_of_language, language_table
from reports.numbers import duration, number, shown
from reports.results import Moment, Recovered, Results, by_quality, evenly, pieces
from reports.threshold_chart import threshold_charts
from reports.token_charts import token_charts
from reports.wording import difference, measure, ordered

HEADLINES = ("exact_match", "token_f1", "bleu", "cosine", "entity_recovery")
SCATTER_LIMIT = 1500
CURVE_LIMIT = 300
_LENGTHS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 50), (51, None))


def headline(results: Results) -> Markup:
    """The large numbers, each beside the nearest neighbour's."""
    tiles = []
    for key in HEADLINES:
        one = measure(key)
        full = 1.0 if one.kind == "cosine" else 100.0
        mine, other = number(results.metrics, key), number(results.baseline, key)
        tiles.append(
            {
                "title": one.title,
                "value": shown(one.kind, results.metrics.get(key)),
                "applies": mine is not None,
                "explanation": one.explanation,
                "width": None if mine is None else round(100 * min(1.0, max(0.0, mine / full)), 1),
                "tick": None if other is None else round(100 * min(1.0, max(0.0, other / full)), 1),
                "other": None if other is None else shown(one.kind, other),
            }
        )
    return macro("headline", tiles=tiles, baseline=results.baseline is not None)


def training(results: Results) -> Markup | None:
    """Loss and learning rate over the steps, and the training in a few facts; nothing where nothing was trained."""
    history = results.history
    curves = [("training", _curve(history, "train_loss"), False), ("validation", _curve(history, "val_loss"), True)]
    losses = [svg.Series(name, points, dots) for name, points, dots in curves if points]
    if not losses:
        return None
    charts = [("Loss", svg.line_chart("Loss by training step", losses, "step"))]
    rates = _curve(history, "learning_rate")
    if rates:
        series = [svg.Series("learning rate", rates)]
        chart = svg.line_chart("Learning rate by training step", series, "step", from_zero=True)
        charts.append(("Learning rate", chart))
    facts = [("Steps", f"{history[-1].step:,}")]
    seconds = [moment.seconds for moment in history if moment.seconds is not None]
    if seconds and math.isfinite(seconds[-1]):
        facts.append(("Time", duration(seconds[-1])))
    epochs = [moment.epoch for moment in history if moment.epoch is not None]
    if epochs:
        facts.append(("Last epoch", f"{epochs[-1]:g}"))
    trained, validated = (_values(history, name) for name in ("train_loss", "val_loss"))
    if trained:
        facts.append(("Last training loss", f"{trained[-1][1]:.3f}"))
    if validated:
        step, best = min(validated, key=lambda point: point[1])
        facts.append(("Best validation loss", f"{best:.3f} at step {step:,.0f}"))
    averaged = max(len(trained), len(validated)) > CURVE_LIMIT
    return macro("training", charts=charts, facts=facts, limit=CURVE_LIMIT if averaged else None)


def closeness(results: Results) -> Markup | None:
    """Histogram of cosine, BLEU against cosine, quality by length."""
    recovered = results.recovered
    known = [(one.cosine, one.quality) for one in recovered if one.cosine is not None]
    cosines = [cosine for cosine, _ in known]
    name = "BLEU" if results.ordered_words else "words recovered"
    charts = []
    if known:
        lines = [("this run", math.fsum(cosines) / len(cosines))]
        neighbour = number(results.baseline, "cosine")
        if neighbour is not None:
            lines.append(("nearest neighbour", neighbour))
        chart = svg.histogram("Histogram of cosine similarity", cosines, "cosine", lines)
        note = f"{len(cosines):,} texts, by how near the recovered text's vector is to the attacked one. Lines: means."
        charts.append(("Cosine", chart, note))
        size = len(known)
        drawn = (
            [known[place * size // SCATTER_LIMIT] for place in range(SCATTER_LIMIT)] if size > SCATTER_LIMIT else known
        )
        note = "One dot a text" + (f"; {len(drawn):,} of {size:,} drawn, evenly." if len(drawn) < size else ".")
        chart = svg.scatter(f"{name} against cosine, one dot a text", drawn, "cosine", name)
        charts.append((f"{name[0].upper()}{name[1:]} against cosine", chart, note))
    names = [f"mean {name}", "word for word"] if results.ordered_words else [name]
    chart = svg.grouped_bars("Quality by text length", names, _by_length(results), "words in the text")
    charts.append(("Quality by length", chart, "Means in percent; below each length, how many texts have it."))
    return macro("closeness", charts=charts)


def examples(results: Results) -> Markup:
    """Texts side by side: thirty evenly over quality, the best ten, the worst ten."""
    ranked = by_quality(results.recovered)
    how = "sentence BLEU" if results.ordered_words else "the share of the text's words that came back"
    if len(ranked) <= 50:
        groups = [("From best to worst", f"All {len(ranked)}, by {how}.", ranked)]
    else:
        middle = evenly(ranked[10:-10], 30)
        note = f"The other {len(ranked) - 20:,}, sorted by {how} and cut into thirty equal parts: the middle of each."
        groups = [
            ("The best ten", f"Highest {how}; among equals the longest texts.", ranked[:10]),
            ("Thirty in between", note, middle),
            ("The worst ten", f"Lowest {how}; among equals the shortest texts.", ranked[-10:]),
        ]
    spans = any(one.row.spans for one in results.recovered)
    shown_groups = [(title, note, [_card(one) for one in chosen]) for title, note, chosen in groups]
    return macro("examples", groups=shown_groups, spans=spans)


def all_figures(results: Results) -> Markup:
    """Every figure of metrics.json with its explanation, the secondary ones folded."""
    lines = comparison(results)
    first, folded = ([line for line in lines if line.secondary is secondary] for secondary in (False, True))
    return macro("figures", lines=first, folded=folded, baseline=results.baseline is not None)


def frequency(results: Results) -> Markup | None:
    """How much of the rare and of the common words came back."""
    charts = frequency_charts(results.analyses)
    return macro("closeness", charts=charts) if charts else None


def tokens(results: Results) -> Markup | None:
    """What came back of a language model's inputs, by length, place and cost."""
    charts = token_charts([one.row for one in results.recovered])
    return macro("closeness", charts=charts) if charts else None


def attributes(results: Results) -> Markup | None:
    """How well the values of attributes were guessed, where the run tried."""
    lines, k = attribute_lines(results.metrics)
    return macro("attributes", lines=lines, k=k) if lines else None


def languages(results: Results) -> Markup | None:
    """The chief figures of each language, where the texts are in several."""
    table = language_table(results.metrics)
    return macro("languages", columns=table.columns, lines=table.lines) if table else None


def threshold(results: Results) -> Markup | None:
    """What other thresholds of a classifier would give."""
    charts = threshold_charts(results.directory)
    return macro("closeness", charts=charts) if charts else None


def correction(results: Results) -> Markup | None:
    """What each step of correction gave and cost, where the run looked, and one text's way."""
    found = corrections(results.directory)
    if found is None:
        return None
    whole, paths = found
    columns = ["Correction", *(title for _, title, _ in COLUMNS)]
    lines, charts = correction_table(whole.table), correction_curves(whole.table)
    return macro("correction", charts=charts, columns=columns, lines=lines, texts=whole.examples, story=story(paths))


def hypotheses(results: Results) -> Markup | None:
    """How near the hypotheses lay that a corrector was trained on."""
    charts = hypothesis_charts(results.directory)
    return macro("closeness", charts=charts) if charts else None


def configuration(results: Results) -> Markup:
    """config.yaml, folded."""
    return macro("configuration", text=results.config_text)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: its title, and the function that makes its HTML or finds that there is nothing to show."""

    title: str
    render: Callable[[Results], Markup | None]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


SECTIONS = (
    Section("In short", headline),
    Section("How close it came", closeness),
    Section("Token by token", tokens),
    Section("Languages", languages),
    Section("Step by step", correction),
    Section("Rare and common words", frequency),
    Section("What it gives away", attributes),
    Section("How it learned", training),
    Section("Hypotheses it learned from", hypotheses),
    Section("Which words are named", threshold),
    Section("Side by side", examples),
    Section("All figures", all_figures),
    Section("Configuration", configuration),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of this run beside the nearest neighbour's; ``gain``: whether it is better, None where neither is.

    ``known``: whether either has a value; ``secondary``: see ``Measure``.
    """

    title: str
    key: str
    explanation: str
    mine: str
    other: str
    difference: str
    applies: bool
    gain: bool | None
    known: bool
    secondary: bool


def comparison(results: Results) -> list[Line]:
    """Every figure of metrics.json, ready to be shown."""
    lines = []
    apart = {key for key in results.metrics if key.startswith(PREFIX) or is_of_language(key)}
    for one in ordered({key: value for key, value in results.metrics.items() if key not in apart}):
        mine, other = number(results.metrics, one.key), number(results.baseline, one.key)
        theirs = (results.baseline or {}).get(one.key)
        gain = None if mine is None or other is None or mine == other else (mine > other) == (one.more == "higher")
        value = results.metrics[one.key]
        lines.append(
            Line(
                title=one.title,
                key=one.key,
                explanation=one.explanation,
                mine=shown(one.kind, value),
                other=shown(one.kind, theirs),
                difference=difference(one, mine, other),
                applies=value is not None,
                gain=gain if one.more else None,
                known=value is not None or theirs is not None,
                secondary=one.secondary,
            )
        )
    return lines


def _values(history: Sequence[Moment], name: str) -> list[tuple[float, float]]:
    points = [(float(moment.step), getattr(moment, name)) for moment in history]
    return [(step, value) for step, value in points if value is not None and math.isfinite(value)]


def _curve(history: Sequence[Moment], name: str) -> list[tuple[float, float]]:
    return svg.thin(_values(history, name), CURVE_LIMIT)


def _by_length(results: Results) -> list[svg.Bars]:
    groups = []
    for low, high in _LENGTHS:
        chosen = [one for one in results.recovered if low <= max(1, one.words) <= (high or one.words)]
        if chosen:
            heights: list[float | None] = [math.fsum(one.quality for one in chosen) / len(chosen)]
            if results.ordered_words:
                heights.append(100 * sum(one.exact for one in chosen) / len(chosen))
            label = f"{low}+" if high is None else f"{low}–{high}"  # noqa: RUF001
            groups.append(svg.Bars(label, f"{len(chosen):,}", heights))
    return groups


def _card(one: Recovered) -> dict[str, Any]:
    row = one.row
    return {
        "index": row.index,
        "exact": one.exact,
        "quality": f"{one.quality:.0f}",
        "measure": "BLEU" if row.kind == "sequence" else "% of words",
        "cosine": None if one.cosine is None else f"{one.cosine:.3f}",
        "reference": pieces(row.reference, row.prediction, row.spans),
        "prediction": pieces(row.prediction, row.reference),
        "given": row.given,
        "cut": max(len(row.reference), len(row.prediction)) > 1000,
    }


@cache
def _template(name: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).module


def macro(name: str, template: str = "report.html.jinja", **values: Any) -> Markup:
    """Call a macro of a template; each section of a page is one."""
    return Markup(getattr(_template(template), name)(**values))
