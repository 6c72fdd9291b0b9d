"""The sections of the report, in the order of the page.

To add one, write a function from ``Results`` to HTML and list it in ``SECTIONS``; a section that returns nothing is
left out.
Recovered text is untrusted: it enters the page only through the autoescaping template or ``Markup.format``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from unembed.metrics.statistics import evenly
from unembed.reports.attribute_table import attribute_table
from unembed.reports.charts import Bars, Chart, Series, grouped_bars, histogram, line_chart, scatter, thin
from unembed.reports.correction_chart import (
    correction_curves,
    correction_table,
    corrections,
    hypothesis_charts,
    story,
    story_table,
)
from unembed.reports.frequency_chart import frequency_charts
from unembed.reports.html import Tile, charts_of, macro
from unembed.reports.language_table import language_table
from unembed.reports.length_table import length_table
from unembed.reports.lexicon_table import lexicon_table
from unembed.reports.metrics_table import metrics_table
from unembed.reports.numbers import duration, number, shown
from unembed.reports.results import Moment, Recovered, Results, as_scored, by_quality, parts
from unembed.reports.threshold_chart import threshold_charts
from unembed.reports.token_charts import token_charts
from unembed.reports.wording import measure

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
        width, tick = (
            None if value is None else round(100 * min(1.0, max(0.0, value / full)), 1) for value in (mine, other)
        )
        if mine is None:
            note, tick = "does not apply to this run", None
        elif other is not None:
            note = Markup("nearest neighbour <strong>{}</strong>").format(shown(one.kind, other))
        else:
            note = "" if results.baseline is None else "no nearest neighbour value"
        value = shown(one.kind, results.metrics.get(key))
        tiles.append(Tile(one.title, value, note, width, tick, explanation=one.explanation))
    note = (
        "This run has no nearest neighbour baseline to compare with."
        if results.baseline is None
        else "The nearest neighbour is the training text whose vector lies closest to the attacked one: what a plain "
        "look-up gives, without any learning."
    )
    return macro("tiles", tiles=tiles, note=note)


def training(results: Results) -> Markup | None:
    """Loss and learning rate over the steps, and training facts; None if nothing was trained."""
    history = results.history
    curves = [("training", _curve(history, "train_loss"), False), ("validation", _curve(history, "val_loss"), True)]
    losses = [Series(name, points, dots) for name, points, dots in curves if points]
    if not losses:
        return None
    charts = [("Loss", line_chart("Loss by training step", losses, "step"))]
    rates = _curve(history, "learning_rate")
    if rates:
        series = [Series("learning rate", rates)]
        chart = line_chart("Learning rate by training step", series, "step", from_zero=True)
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


def closeness(results: Results) -> Markup:
    """Histogram of cosines, BLEU against cosine, quality by length."""
    recovered = results.recovered
    known = [(one.cosine, one.quality) for one in recovered if one.cosine is not None]
    cosines = [cosine for cosine, _ in known]
    name = "BLEU" if results.ordered_words else "words recovered"
    charts: list[Chart] = []
    if known:
        lines = [("this run", math.fsum(cosines) / len(cosines))]
        neighbour = number(results.baseline, "cosine")
        if neighbour is not None:
            lines.append(("nearest neighbour", neighbour))
        chart = histogram("Histogram of cosine similarity", cosines, "cosine", lines)
        note = f"{len(cosines):,} texts, by how near the recovered text's vector is to the attacked one. Lines: means."
        charts.append(("Cosine", chart, note))
        dots = evenly(known, SCATTER_LIMIT)
        note = "One dot a text" + (f"; {len(dots):,} of {len(known):,} drawn, evenly." if dots is not known else ".")
        chart = scatter(f"{name} against cosine, one dot a text", dots, "cosine", name)
        charts.append((f"{name[0].upper()}{name[1:]} against cosine", chart, note))
    names = [f"mean {name}", "exact match"] if results.ordered_words else [name]
    chart = grouped_bars("Quality by text length", names, _by_length(results), "words in the text")
    charts.append(("Quality by length", chart, "Means in percent; below each length, how many texts have it."))
    return charts_of(charts)


def examples(results: Results) -> Markup:
    """Texts side by side: the best ten, thirty evenly sampled by quality, the worst ten."""
    ranked = by_quality(results.recovered)
    how = "sentence BLEU" if results.ordered_words else "the share of the text's words that came back"
    if len(ranked) <= 50:
        groups = [("From best to worst", f"All {len(ranked)}, by {how}.", ranked)]
    else:
        between = [*evenly(ranked[10:-10], 30, middle=True)]
        note = f"The other {len(ranked) - 20:,}, sorted by {how} and cut into thirty equal parts: the middle of each."
        groups = [
            ("The best ten", f"Highest {how}; among equals the longest texts.", ranked[:10]),
            ("Thirty in between", note, between),
            ("The worst ten", f"Lowest {how}; among equals the shortest texts.", ranked[-10:]),
        ]
    spans = any(one.row.spans for one in results.recovered)
    shown_groups = [(title, note, [_card(one) for one in chosen]) for title, note, chosen in groups]
    return macro("examples", groups=shown_groups, spans=spans)


def all_metrics(results: Results) -> Markup:
    """All metrics of metrics.json with explanations, the secondary ones folded."""
    also = ", or was not computed for the nearest neighbour" if results.baseline is not None else ""
    note = f"Shares, BLEU and ROUGE run from 0 to 100. A dash: the metric does not apply{also}."
    tables = [metrics_table(results, secondary=secondary) for secondary in (False, True)]
    return macro("metrics", table=tables[0], folded=tables[1], note=note)


def frequency(results: Results) -> Markup:
    """Recovery of words by their frequency."""
    return charts_of(frequency_charts(results.analyses))


def lexicon(results: Results) -> Markup | None:
    """Entities inside and outside the lexicon of the attack; None if it has none."""
    table = lexicon_table([as_scored(one.row) for one in results.recovered])
    return macro("table_of", table=table) if table else None


def tokens(results: Results) -> Markup:
    """Recovery of a language model's inputs by length, position and cost."""
    return charts_of(token_charts([one.row for one in results.recovered]))


def attributes(results: Results) -> Markup | None:
    """Accuracy of the attribute attack; None if the run has none."""
    table = attribute_table(results.metrics)
    return macro("table_of", table=table) if table else None


def languages(results: Results) -> Markup | None:
    """Main metrics by language; None if the texts are in one language."""
    table = language_table(results.metrics)
    return macro("table_of", table=table) if table else None


def lengths(results: Results) -> Markup | None:
    """Metrics by length of the texts; None if the texts are of one length."""
    table = length_table(results.metrics)
    return macro("table_of", table=table) if table else None


def threshold(results: Results) -> Markup:
    """Precision and recall of a classifier at other thresholds."""
    return charts_of(threshold_charts(results.directory))


def correction(results: Results) -> Markup | None:
    """Results and cost of each correction step, and the rounds of one text; None without corrections."""
    found = corrections(results.directory)
    if found is None:
        return None
    whole, paths = found
    chosen = story(paths)
    steps = None if chosen is None else story_table(chosen, lambda marked: macro("passage", parts=marked))
    charts, table = correction_curves(whole.table), correction_table(whole)
    return macro("correction", charts=charts, table=table, story=chosen, steps=steps)


def hypotheses(results: Results) -> Markup:
    """Cosines of the hypotheses that a corrector was trained on."""
    return charts_of(hypothesis_charts(results.directory))


def configuration(results: Results) -> Markup:
    """config.yaml, folded."""
    return macro("configuration", text=results.config_text)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page: its title, and the function that renders it or returns None."""

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
    Section("Short and long texts", lengths),
    Section("Step by step", correction),
    Section("Rare and common words", frequency),
    Section("Inside and outside the lexicon", lexicon),
    Section("What it discloses", attributes),
    Section("How it learned", training),
    Section("Hypotheses it learned from", hypotheses),
    Section("Which words are named", threshold),
    Section("Side by side", examples),
    Section("All metrics", all_metrics),
    Section("Configuration", configuration),
)


def _values(history: Sequence[Moment], name: str) -> list[tuple[float, float]]:
    points = [(float(moment.step), getattr(moment, name)) for moment in history]
    return [(step, value) for step, value in points if value is not None and math.isfinite(value)]


def _curve(history: Sequence[Moment], name: str) -> list[tuple[float, float]]:
    return thin(_values(history, name), CURVE_LIMIT)


def _by_length(results: Results) -> list[Bars]:
    groups = []
    for low, high in _LENGTHS:
        chosen = [one for one in results.recovered if low <= max(1, one.words) <= (high or one.words)]
        if chosen:
            heights: list[float | None] = [math.fsum(one.quality for one in chosen) / len(chosen)]
            if results.ordered_words:
                heights.append(100 * sum(one.exact for one in chosen) / len(chosen))
            label = f"{low}+" if high is None else f"{low}–{high}"  # noqa: RUF001
            groups.append(Bars(label, f"{len(chosen):,}", heights))
    return groups


def _card(one: Recovered) -> dict[str, Any]:
    row = one.row
    return {
        "index": row.index,
        "exact": one.exact,
        "quality": f"{one.quality:.0f}",
        "measure": "BLEU" if row.kind == "sequence" else "% of words",
        "cosine": None if one.cosine is None else f"{one.cosine:.3f}",
        "reference": parts(row.reference, row.prediction, row.spans),
        "prediction": parts(row.prediction, row.reference),
        "given": row.given,
        "cut": max(len(row.reference), len(row.prediction)) > 1000,
    }
