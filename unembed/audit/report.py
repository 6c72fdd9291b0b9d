"""Writes an audit: audit.html, audit.json, exposed.csv and the files for pipelines; and prints a summary."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from unembed.audit import wording
from unembed.audit.pipeline import write_pipeline
from unembed.audit.results import VALUES, Audit, Row
from unembed.audit.thresholds import changes_in_short, thresholds_in_short
from unembed.core.atomic_files import write_file, write_json
from unembed.reports.charts import Chart, Series, histogram, line_chart
from unembed.reports.html import macro, write_page
from unembed.reports.numbers import counted
from unembed.reports.tables import plain, print_values, terminal

if TYPE_CHECKING:
    from rich.console import Console

PAGE, EXPOSED, TEMPLATE = "audit.html", "exposed.csv", "audit.html.jinja"
KINDS = 10  # kinds of entities in the chart, where there are no classes
_MASKED = re.compile(r"(\[[^\]\s]+\])|(?<![^\W_])([Xx0]+)(?![^\W_])")


def write_audit(directory: Path, audit: Audit) -> None:
    """Write all files of an audit; if it is masked, none contains recovered or true text."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / VALUES, audit.model_dump(mode="json"))
    write_file(directory / EXPOSED, exposed(audit))
    write_audit_page(directory / PAGE, audit, directory / VALUES)
    write_pipeline(directory, audit)


def exposed(audit: Audit) -> str:
    """The content of exposed.csv: the ids of all rows, the most exposed first, without any text."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("id", "rank", "probability", "cosine", "entities", "rows_with_this_text"))
    for row in audit.ranked:
        likely = "" if row.probability is None else f"{row.probability:.4f}"
        writer.writerow((row.id, f"{row.rank:.4f}", likely, f"{row.cosine:.4f}", row.entities, row.same))
    return lines.getvalue()


def print_audit(directory: Path, audit: Audit, console: Console | None = None) -> None:
    """Print the answer, warnings, thresholds and what changed, then the tables of the page and what to do next."""
    console = console or terminal()
    console.print(plain(wording.answer(audit), style="bold red" if audit.unjudged else "bold"))
    for warning in audit.warnings:
        console.print(plain(warning, style="bold red"))
    for one in audit.thresholds:
        if not (audit.unjudged and one.share is None):  # ends the audit as an error, which is printed last
            console.print(plain(one.said, style="" if one.passed else "bold red"))
    if audit.changes:
        console.print(plain(changes_in_short(audit.changes)))
    console.print(plain(wording.more(audit)))
    if any(one.total for one in audit.classes):
        print_values(wording.classes_table(audit), console, intervals=True)
    if len(audit.attackers) > 1:
        print_values(wording.attackers_table(audit), console, intervals=True)
    if audit.insider is not None:
        console.print(plain(wording.insider(audit.insider)))
    print_values(wording.tried_table(audit), console, intervals=True)
    if said := wording.best_defense(audit):
        console.print(plain(said))
    for number, step in enumerate(wording.steps(audit, directory / VALUES), 1):
        console.print(plain(f"{number}. {step.title}{':' if step.commands else ''}"))
        for command in step.commands:
            console.print(plain(f"   {command}"), soft_wrap=True)
    console.print(plain(f"Report: {directory / PAGE}"), soft_wrap=True)


# -- the page ----------------------------------------------------------------------------------------------------------


def write_audit_page(path: Path, audit: Audit, values: Path) -> None:
    """Write the page; ``values`` is the audit.json that it names for later audits."""

    def section(name: str, **more: Any) -> Markup:
        return macro(name, TEMPLATE, audit=audit, words=wording, **more)

    sections = []
    if audit.examples:
        cards = [(row, _parts(row.text) if audit.masked else [("text", row.text)]) for row in audit.examples]
        title = "One example" if len(cards) == 1 else f"{('Two', 'Three')[len(cards) - 2]} examples"
        sections.append(("examples", title, section("examples", cards=cards, outcome=_outcome)))
    if any(one.share is not None for one in audit.classes):
        parts = [(wording.class_name(one), one.total, one.share) for one in audit.classes]
    else:
        parts = [(one.label, one.total, one.share) for one in audit.kinds[:KINDS]]
    sections.append(("what-leaks", "What kinds of data leak", section("exposure", parts=parts)))
    if audit.thresholds:
        sections.append(("thresholds", "Thresholds", section("thresholds")))
    if audit.changes:
        sections.append(("since-the-baseline", "Since the baseline", section("changes")))
    if audit.attackers:
        sections.append(("attackers", "Who reads how much", section("attackers")))
    sections += [
        ("defenses", "What each defense changes", section("defenses")),
        ("what-to-do", "What to do next", section("steps", steps=wording.steps(audit, values))),
        ("details", "Details", section("details", charts=_charts(audit), outcome=_outcome)),
    ]
    private = "Texts on it are masked." if audit.masked else "It holds recovered text: keep it as private as the store."
    said = (thresholds_in_short(audit.thresholds), changes_in_short(audit.changes), wording.more(audit))
    write_page(
        path,
        heading=f"What {audit.title} discloses",
        run=audit.store,
        facts=[],
        lead=wording.answer(audit),
        said=[one for one in said if one],
        warnings=audit.warnings,
        style=macro("style", TEMPLATE),
        sections=sections,
        footer=f"with the attacker of {audit.run.get('directory', 'a run')}. {private}",
    )


def _parts(text: str) -> list[tuple[str, str]]:
    """A masked text cut into labels of entities, masked words and what is between them."""
    parts, end = [], 0
    for match in _MASKED.finditer(text):
        parts.append(("between", text[end : match.start()]))
        parts.append(("label", match[1][1:-1]) if match[1] else ("word", match[2]))
        end = match.end()
    return [*parts, ("between", text[end:])]


def _outcome(row: Row) -> str:
    """How right a text is whose truth is known."""
    if row.f1 is None:
        return ""
    return "word for word" if row.exact else f"word F1 {row.f1:.0f} %"


def _charts(audit: Audit) -> list[Chart]:
    lines = [("this store, mean", sum(audit.cosines) / len(audit.cosines))]
    if audit.known:
        lines.append(("test texts, mean", sum(audit.known) / len(audit.known)))
    chart = histogram("Histogram of cosines", audit.cosines, "cosine", lines)
    charts = [("Cosine", chart, f"{counted(len(audit.cosines), 'row')} of the store.")]
    if audit.curve:
        series = [Series("readable, %", [(cosine, 100 * probability) for cosine, probability in audit.curve])]
        chart = line_chart("Probability to be readable by cosine", series, "cosine", from_zero=True)
        note = f"As learned from {counted(len(audit.known), 'test text')} of the attacker, whose truth is known."
        charts.append(("What a cosine means", chart, note))
    return charts
