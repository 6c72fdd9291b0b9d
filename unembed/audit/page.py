"""The page of an audit, audit.html."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from unembed.audit import changes, thresholds
from unembed.audit.advice import steps
from unembed.audit.bars import BarRow, BarTable, bar, plain_bar
from unembed.audit.changes import Change
from unembed.audit.findings import Audit, Exposed, Tried
from unembed.audit.inputs import file_name
from unembed.audit.tables import class_name, held, kinds_table, share_cell, tried_table
from unembed.audit.thresholds import Outcome
from unembed.audit.words import answer, best_defense, chosen, insider, limits, more
from unembed.reports.charts import Chart, Series, histogram, line_chart
from unembed.reports.html import charts_of, macro, write_page
from unembed.reports.numbers import counted, shown
from unembed.reports.tables import Cell, Line, Table

TEMPLATE = "audit.html.jinja"
SHOWN = 10  # kinds of entities in the chart, where there are no classes
_MASKED = re.compile(r"(\[[^\]\s]+\])|(?<![^\W_])([Xx0]+)(?![^\W_])")


def write_audit_page(
    path: Path, audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change], values: Path
) -> None:
    """Write the page; ``values`` is the audit.json that it names for later audits."""
    sections = [
        *_examples(audit),
        ("what-leaks", "What kinds of data leak", _exposure(audit)),
        *_compared(outcomes, found),
        *_attackers(audit),
        ("defenses", "What each defense changes", _defenses(audit)),
        ("what-to-do", "What to do next", macro("steps", TEMPLATE, steps=steps(audit, values))),
        ("details", "Details", Markup("").join(_details(audit))),
    ]
    kept = "Texts on it are masked." if audit.masked else "It holds recovered text: keep it as private as the store."
    said = (thresholds.summary(outcomes), changes.summary(found), more(audit))
    write_page(
        path,
        heading=f"What {file_name(audit.store)} discloses",
        run=audit.store,
        facts=[],
        lead=answer(audit),
        said=[one for one in said if one],
        warnings=audit.warnings,
        style=macro("style", TEMPLATE),
        sections=sections,
        footer=f"with the attacker of {audit.run.get('directory', 'a run')}. {kept}",
    )


def _examples(audit: Audit) -> list[tuple[str, str, Markup]]:
    """Rows that an owner would show."""
    if not audit.examples:
        return []
    cards = [
        {
            "parts": _parts(row.text) if audit.masked else [("text", row.text)],
            "truth": row.truth,
            "facts": [
                f"row {row.id}",
                _outcome(row) or f"readable with probability {shown('share', row.probability)}",
                ", ".join(row.kinds),
            ],
        }
        for row in audit.examples
    ]
    title = "One example" if len(cards) == 1 else f"{('Two', 'Three')[len(cards) - 2]} examples"
    html = macro("examples", TEMPLATE, cards=cards, chosen=chosen(audit), masked=audit.masked)
    return [("examples", title, html)]


def _parts(text: str) -> list[tuple[str, str]]:
    """A masked text cut into labels of entities, masked words and what is between them."""
    found, end = [], 0
    for match in _MASKED.finditer(text):
        found += [("between", text[end : match.start()])] if match.start() > end else []
        found.append(("label", match[1][1:-1]) if match[1] else ("word", match[2]))
        end = match.end()
    return [*found, ("between", text[end:])] if end < len(text) else found


def _attackers(audit: Audit) -> list[tuple[str, str, Markup]]:
    """A section on the attackers by themselves."""
    if not audit.attackers:
        return []
    rows = [
        BarRow(
            one.label or one.name,
            f"mean cosine {shown('cosine', one.cosine)}{f'; {one.cost}' if one.cost else ''}",
            [bar(one.readable), bar(one.exact, "third")],
            one.readable is not None and one.readable == audit.readable,
        )
        for one in audit.attackers
    ]
    table = BarTable("Shares read by each attacker", ("Attacker", "Read", "Word for word"), rows)
    notes = ["A lower bound: a better attacker reads more."]
    if len(rows) > 1:
        notes = ["The strongest one is the headline. Each is a lower bound: a better one reads more."]
    if audit.insider is not None:
        notes.append(insider(audit.insider))
    return [("attackers", "Who reads how much", macro("bars", TEMPLATE, table=table, notes=notes))]


def _compared(outcomes: Sequence[Outcome], found: Sequence[Change]) -> list[tuple[str, str, Markup]]:
    """Sections on the thresholds and the baseline, where they are given."""
    sections = []
    if outcomes:
        lines = tuple(
            Line(one.condition.text, "", (Cell(held(one.passed, one.share), gain=one.passed), share_cell(one.share)))
            for one in outcomes
        )
        note = "Compared with the upper end of the 95 % interval."
        table = Table("", ("Threshold", "Outcome", "Share"), lines, notes=(note,))
        sections.append(("thresholds", "Thresholds", macro("table_of", table=table, style="wide")))
    if found:
        lines = tuple(
            Line(
                one.name,
                "",
                (share_cell(one.after), share_cell(one.before), Cell("changed" if one.apart else "within chance")),
            )
            for one in found
        )
        table = Table("", ("Share", "Now", "Baseline", "Change"), lines)
        sections.append(("since-the-baseline", "Since the baseline", macro("table_of", table=table, style="wide")))
    return sections


def _exposure(audit: Audit) -> Markup:
    """Classes of data, or kinds of entities where there are no classes."""
    if any(one.share is not None for one in audit.classes):
        parts = [(class_name(one), one.total, one.share) for one in audit.classes]
    else:
        parts = [(one.label, one.total, one.share) for one in audit.kinds[:SHOWN]]
    of = "in the true texts" if audit.measured else "in what was read"
    rows = [BarRow(name, f"{total:,} {of}", [bar(share)]) for name, total, share in parts if total]
    notes = []
    if not rows:
        notes.append("No name, number, date or address was found in what was read.")
    elif audit.measured:
        notes.append("Of what the true texts hold, the share that stands in the recovered text as whole words.")
    else:
        notes.append(
            "Estimated: of what the true texts hold, the share that comes back, as it did in texts of known truth "
            "at the same cosine and length; the interval covers how their sources differ. Fewer than "
            "ten such texts, as with e-mail: as entities of all kinds did. Most of what an attacker writes may be "
            "wrong. Give the true texts of some rows (texts=) to measure."
        )
    if absent := [name for name, total, _ in parts if not total]:
        notes.append(f"None found: {', '.join(absent)}.")
    table = BarTable("Exposure by class of data", ("Class", "Comes back"), rows)
    return macro("bars", TEMPLATE, table=table, notes=notes)


def _kinds(audit: Audit) -> Markup:
    if audit.measured:
        columns = ("Kind of entity", "In the true texts", "Read")
        note = f"An entity was read where it stands in the recovered text as whole words. Found by {audit.tagged}."
    else:
        columns = ("Kind of entity", "In recovered texts", "Comes back, estimated")
        note = (
            f"Found by {audit.tagged}. The last column is the share of the true texts' entities that comes back, as "
            "estimated from texts whose truth is known. Names and places have no form of their own: they "
            "are counted with a tagger (scoring/tagger) or true texts."
        )
    if not audit.kinds:
        note = f"No entity was found. {note}"
    return macro(
        "kinds",
        TEMPLATE,
        table=kinds_table(columns, audit.kinds),
        held_out=kinds_table(("Kind of entity", "In the test texts", "Read"), audit.held_out),
        note=note,
    )


def _exposed(audit: Audit) -> Markup:
    hidden = (
        "Common English words are shown; letters of all others as x, digits as 0, entities by their kind. "
        "--show-text shows what was read. "
        if audit.masked
        else ""
    )
    note = (
        f"{hidden}The cosine is that of the recovered text, embedded again, with the stored vector: near 1, the "
        "text is probably right. The probability is what that cosine meant for the attacker's test texts; where the "
        "true text is known, the word F1 with it stands instead."
    )
    truth = any(row.truth is not None for row in audit.rows)
    columns = ("Row", "Cosine", "Readable with probability", "Kinds", "What was read", *(("True text",) * truth))
    lines = tuple(_exposed_line(row, truth) for row in audit.rows)
    return macro("table_of", table=Table("", columns, lines, notes=(note,)), style="wide exposed")


def _outcome(row: Exposed) -> str:
    """How right a text is whose truth is known."""
    if row.reading.f1 is None:
        return ""
    return "word for word" if row.reading.exact else f"word F1 {row.reading.f1:.0f} %"


def _exposed_line(row: Exposed, truth: bool) -> Line:
    cells = [
        Cell(f"{row.reading.cosine:.3f}"),
        Cell(_outcome(row) or shown("share", row.probability)),
        Cell(", ".join(row.kinds)),
        Cell(row.text, quoted=True),
    ]
    return Line(row.id, "", (*cells, *((Cell(row.truth or "", quoted=True),) * truth)))


def _defenses(audit: Audit) -> Markup:
    rows = [
        BarRow(_defense_name(one), "", [bar(one.worst, "second"), plain_bar(one.neighbours)], not number)
        for number, one in enumerate(audit.tried)
    ]
    columns = ("Defense", "Still read", "Search kept")
    notes = [] if len(rows) > 1 else ["No defense was tried (defenses=)."]
    if said := best_defense(audit):
        notes = [f"{said} “What to do next” has the command that measures an attacker who knows a defense."]
    by = "the run's attack, which was trained without the defense"
    if any(one.lookup is not None for one in audit.tried):
        by = f"the better of {by}, and a lookup that applies it to its own vectors"
    notes.append(
        f"Tried on {counted(audit.tried_on, 'row')}. Still read: by {by}. Search kept: of the ten rows nearest to a "
        "row, the share that stays so."
    )
    table = BarTable("Shares still read and neighbours kept by defense", columns, rows)
    return macro("bars", TEMPLATE, table=table, notes=notes)


def _defense_name(one: Tried) -> str:
    return "none, as it is now" if one.name == "none" else one.name


def _details(audit: Audit) -> list[Markup]:
    """Folded parts, for readers who ask how."""
    facts = [("rows read", f"{audit.sampled:,} of {audit.size:,}"), ("dimension", str(audit.dimension))]
    facts += [(name, value) for name, value in audit.run.items()]
    parts = [
        ("exposed", f"The {counted(len(audit.rows), 'most exposed row')}", _exposed(audit)),
        ("kinds", "Entities by kind", _kinds(audit)),
        ("tried", "Defenses in numbers", macro("table_of", table=tried_table(audit), style="wide")),
        ("how-near", "How near it came, and what that means", charts_of(_charts(audit))),
        ("method", "Method, limits and words", macro("limits", TEMPLATE, items=limits(audit))),
        ("made", "How this page was made", macro("facts", TEMPLATE, facts=facts)),
    ]
    return [macro("folded", TEMPLATE, anchor=anchor, title=title, content=html) for anchor, title, html in parts]


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
