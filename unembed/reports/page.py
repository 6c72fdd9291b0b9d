"""The HTML report of a run: one file without scripts or network access, made from the run directory only.

    write_report(Path("runs/geia-minilm-synthetic/2025-11-21"))     # -> .../report.html
    print_summary(Path("runs/geia-minilm-synthetic/2025-11-21"))    # the same, short, in the terminal

To add a section, write a function from ``Results`` to HTML, a table or charts, and list it in ``SECTIONS``; a section
that returns nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from unembed.core.errors import printable
from unembed.metrics.attributes import PREFIX
from unembed.metrics.scoring import BY_LENGTH
from unembed.metrics.statistics import evenly
from unembed.reports.breakdowns import (
    attribute_table,
    correction,
    frequency_charts,
    hypothesis_charts,
    is_of_language,
    language_table,
    length_table,
    lexicon_table,
    threshold_charts,
    token_charts,
)
from unembed.reports.charts import Bars, Chart, Series, grouped_bars, histogram, line_chart, scatter, thin
from unembed.reports.numbers import duration, number, shown
from unembed.reports.output import (
    Cell,
    Line,
    Table,
    charts_of,
    macro,
    plain,
    print_values,
    sentence,
    terminal,
    write_page,
)
from unembed.reports.results import (
    Moment,
    Results,
    as_scored,
    by_quality,
    by_steps,
    difference,
    knowing,
    measure,
    ordered,
    parts,
    read_results,
)
from unembed.runs import layout
from unembed.runs.files import undertrained

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

HEADLINES = ("exact_match", "token_f1", "bleu", "cosine", "entity_recovery")
SCATTER_LIMIT = 1500
CURVE_LIMIT = 300
_WORDS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 50), (51, None))  # groups of texts by length


def write_report(run_dir: Path) -> Path:
    """Write ``run_dir/report.html`` and return its path."""
    results = read_results(run_dir)
    with knowing(results.described):
        sections = [(one.anchor, one.title, html) for one in SECTIONS if (html := one.html(results))]
    path = run_dir / layout.REPORT
    write_page(
        path,
        heading=_heading(results),
        run=str(results.config.get("name") or run_dir.resolve().name),
        facts=_facts(results),
        lead=_lead(results),
        warnings=_warnings(results),
        sections=sections,
    )
    return path


def print_summary(run_dir: Path, console: Console | None = None) -> None:
    """Print the metrics beside the nearest neighbour's, five texts from good to bad, and the path of the report."""
    from rich.table import Table

    console = console or terminal()
    results = read_results(run_dir)
    with knowing(results.described):
        table = metrics_table(results, secondary=False, explained=False)
    columns = tuple(column.lower() for column in table.columns)
    print_values(table._replace(title=_heading(results), columns=columns), console)
    console.print(plain(f"More metrics: {run_dir / layout.METRICS}", style="dim"), soft_wrap=True)
    console.print(plain(_lead(results)))
    for warning in _warnings(results):
        console.print(plain(f"\n{warning}", style="bold red"))
    name = "Sentence BLEU" if results.ordered_words else "Words recovered"
    console.print(plain("\nFive of them, at equal steps from the best to the worst score; recovered words in green:"))
    pairs = Table.grid(padding=(0, 2))
    for one in by_steps(results.recovered, 5):
        pairs.add_row(plain("text", style="dim"), _painted(one.row.reference, one.row.prediction))
        verb = "read" if one.row.given is None else "guessed"
        pairs.add_row(plain(verb, style="dim"), _painted(one.row.prediction, one.row.reference))
        worse = sum(other.quality < one.quality for other in results.recovered) / len(results.recovered)
        pairs.add_row(
            "", plain(f"{name} {one.quality:.0f}; {shown('share', worse)} of the texts have less", style="dim")
        )
    console.print(pairs)
    report = run_dir / layout.REPORT
    if report.exists():
        console.print(plain(f"Report: {report}"), soft_wrap=True)


def _lead(results: Results) -> str:
    """What was recovered, after a warning if the attack is below its baseline."""
    warning = below_baseline(results.metrics, results.baseline, trained=bool(results.training))
    return f"{warning} {verdict(results.metrics, results.baseline, len(results.recovered))}".lstrip()


def verdict(metrics: Mapping[str, object], baseline: Mapping[str, object] | None, texts: int) -> str:
    """A summary sentence of ``texts`` predictions, and a second one on the nearest neighbour.

    Null metrics are not mentioned. The sentence does not claim that the texts were unseen in training, which a run
    directory does not tell.
    """
    return sentence("verdict", metrics=metrics, baseline=baseline, texts=texts)


def below_baseline(
    metrics: Mapping[str, object], baseline: Mapping[str, object] | None, *, trained: bool = True
) -> str:
    """A warning that the nearest training text scores higher than the attack; else empty.

    Compared by BLEU, or by word F1 for sets of words. Advice on training is given if the attack was ``trained``.
    """
    for key, name in (("bleu", "BLEU"), ("token_f1", "word F1")):
        ours, theirs = number(metrics, key), number(baseline, key)
        if ours is not None and theirs is not None:
            below = ours < theirs
            return sentence("below_baseline", metric=name, ours=ours, theirs=theirs, trained=trained) if below else ""
    return ""


def _warnings(results: Results) -> list[str]:
    warnings = (undertrained(results.training), sentence("cut_short", metrics=results.metrics))
    return [warning for warning in warnings if warning]


def _heading(results: Results) -> str:
    attack, embedder = results.choice("attack"), results.choice("embedder")
    if any(one.row.given is not None for one in results.recovered):
        return f"What {attack or 'the baseline'} guessed from first words, without vectors"
    return f"What {attack or 'the attack'} read from {f'{embedder} vectors' if embedder else 'embedding vectors'}"


def _facts(results: Results) -> list[tuple[str, str]]:
    named = [(group, results.choice(group)) for group in ("attack", "embedder", "datamodule", "defense", "trainer")]
    named.insert(1, ("refine", ", ".join(results.refiners) or None))
    seed = results.config.get("seed")
    named.append(("seed", None if seed is None else str(seed)))
    return [("data" if name == "datamodule" else name, value) for name, value in named if value is not None]


def _painted(text: str, other: str) -> Text:
    from rich.text import Text

    line = Text()
    for part in parts(text, other, limit=400):
        line.append(printable(" ".join(part.text.split("\n"))), style="bold green" if part.recovered else "")
    return line


# ------------------------------------------------------------------------------------------------------------ sections


def headline(results: Results) -> Markup:
    """The large numbers, each beside the nearest neighbour's."""
    tiles = []
    for key in HEADLINES:
        one = measure(key)
        mine, other = number(results.metrics, key), number(results.baseline, key)
        width, tick = (_percent(value, 1.0 if one.kind == "cosine" else 100.0) for value in (mine, other))
        note: str = "" if results.baseline is None else "no nearest neighbour value"
        if mine is None:
            note, tick = "does not apply to this run", None
        elif other is not None:
            note = Markup("nearest neighbour <strong>{}</strong>").format(shown(one.kind, other))
        value = shown(one.kind, results.metrics.get(key))
        tiles.append({"about": one, "value": value, "note": note, "width": width, "tick": tick})
    return macro("headline", tiles=tiles, compared=results.baseline is not None)


def _percent(value: float | None, full: float) -> float | None:
    return None if value is None else round(100 * min(1.0, max(0.0, value / full)), 1)


def training(results: Results) -> Markup | None:
    """Loss and learning rate over the steps, and training facts; None if nothing was trained."""
    history = results.history
    trained, validated, rates = (_values(history, name) for name in ("train_loss", "val_loss", "learning_rate"))
    curves = [("training", trained, False), ("validation", validated, True)]
    losses = [Series(name, thin(points, CURVE_LIMIT), dots) for name, points, dots in curves if points]
    if not losses:
        return None
    charts = [("Loss", line_chart("Loss by training step", losses, "step"))]
    if rates:
        series = [Series("learning rate", thin(rates, CURVE_LIMIT))]
        chart = line_chart("Learning rate by training step", series, "step", from_zero=True)
        charts.append(("Learning rate", chart))
    facts = [("Steps", f"{history[-1].step:,}")]
    if seconds := _values(history, "seconds"):
        facts.append(("Time", duration(seconds[-1][1])))
    if epochs := _values(history, "epoch"):
        facts.append(("Last epoch", f"{epochs[-1][1]:g}"))
    if trained:
        facts.append(("Last training loss", f"{trained[-1][1]:.3f}"))
    if validated:
        step, best = min(validated, key=lambda point: point[1])
        facts.append(("Best validation loss", f"{best:.3f} at step {step:,.0f}"))
    averaged = max(len(trained), len(validated)) > CURVE_LIMIT
    return macro("training", charts=charts, facts=facts, limit=CURVE_LIMIT if averaged else None)


def _values(history: Sequence[Moment], name: str) -> list[tuple[float, float]]:
    return [(float(moment.step), value) for moment in history if (value := getattr(moment, name)) is not None]


def closeness(results: Results) -> Markup:
    """Histogram of cosines, BLEU against cosine, quality by length."""
    recovered = results.recovered
    known = [(one.cosine, one.quality) for one in recovered if one.cosine is not None]
    cosines = [cosine for cosine, _ in known]
    name = "BLEU" if results.ordered_words else "words recovered"
    charts: list[Chart] = []
    if known:
        lines = [("this run", fmean(cosines))]
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
    chart = grouped_bars("Quality by text length", names, _quality_by_length(results), "words in the text")
    charts.append(("Quality by length", chart, "Means in percent; below each length, how many texts have it."))
    return charts_of(charts)


def _quality_by_length(results: Results) -> list[Bars]:
    groups = []
    for low, high in _WORDS:
        chosen = [one for one in results.recovered if low <= max(1, one.words) <= (high or one.words)]
        if chosen:
            heights: list[float | None] = [fmean(one.quality for one in chosen)]
            if results.ordered_words:
                heights.append(100 * sum(one.exact for one in chosen) / len(chosen))
            label = f"{low}+" if high is None else f"{low}–{high}"  # noqa: RUF001
            groups.append(Bars(label, f"{len(chosen):,}", heights))
    return groups


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
    return macro("examples", groups=groups, spans=any(one.row.spans for one in ranked), parts=parts)


def all_metrics(results: Results) -> Markup:
    """All metrics of metrics.json with explanations, the secondary ones folded."""
    table, folded = (metrics_table(results, secondary=secondary) for secondary in (False, True))
    return macro("metrics", table=table, folded=folded, compared=results.baseline is not None)


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
        lines.append(Line(one.title, one.explanation if explained else "", cells, f"metric-{one.key}"))
    columns = ("Nearest neighbour", "Difference") if baseline is not None else ()
    return Table("", ("Metric", "This run", *columns), lines)


class Section(NamedTuple):
    """A section of the page: its title, and what it shows: HTML, a table, charts, or nothing."""

    title: str
    content: Callable[[Results], Markup | Table | list[Chart] | None]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")

    def html(self, results: Results) -> Markup:
        """Empty where there is nothing to show."""
        content = self.content(results)
        if isinstance(content, Table):
            return macro("table_of", table=content)
        return charts_of(content) if isinstance(content, list) else content or Markup("")


SECTIONS = (
    Section("In short", headline),
    Section("How close it came", closeness),
    Section("Token by token", lambda results: token_charts([one.row for one in results.recovered])),
    Section("Languages", lambda results: language_table(results.metrics)),
    Section("Short and long texts", lambda results: length_table(results.metrics)),
    Section("Step by step", correction),
    Section("Rare and common words", lambda results: frequency_charts(results.analyses)),
    Section(
        "Inside and outside the lexicon",
        lambda results: lexicon_table([as_scored(one.row) for one in results.recovered]),
    ),
    Section("What it discloses", lambda results: attribute_table(results.metrics)),
    Section("How it learned", training),
    Section("Hypotheses it learned from", lambda results: hypothesis_charts(results.directory)),
    Section("Which words are named", lambda results: threshold_charts(results.directory)),
    Section("Side by side", examples),
    Section("All metrics", all_metrics),
    Section("Configuration", lambda results: macro("configuration", text=results.config_text)),
)
