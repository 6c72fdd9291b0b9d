"""Writes an audit as audit.html and audit.json, and prints a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from atomic_files import write_json
from reports import terminal
from reports.audit import changes
from reports.audit.changes import Change
from reports.audit.exposure import NAMES
from reports.audit.file import VERSION
from reports.audit.findings import Audit, AuditedShare, Exposed, Kind, Tried
from reports.audit.inputs import file_name
from reports.audit.thresholds import Outcome
from reports.audit.words import lead, limits
from reports.charts import Chart, NamedValue, Series, histogram, line_chart, row_chart
from reports.html import Tile, charts_of, macro, write_page
from reports.numbers import DASH, counted, shown
from reports.tables import Cell, Line, Table, print_values
from reports.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console

PAGE, VALUES = "audit.html", "audit.json"
TEMPLATE = "audit.html.jinja"
SHOWN = 10  # kinds of entities shown without unfolding


def write_audit(directory: Path, audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change]) -> None:
    """Write audit.json and audit.html; if masked, neither contains recovered or true text.

    Args:
        directory: Where.
        audit: The results.
        outcomes: Of the thresholds of ``fail_on``.
        found: What changed since the ``baseline``.
    """
    write_json(directory / VALUES, values(audit, outcomes, found))
    _write_page(directory / PAGE, audit, outcomes, found)


def values(audit: Audit, outcomes: Sequence[Outcome] = (), found: Sequence[Change] = ()) -> dict[str, Any]:
    """The content of audit.json; file.py has its schema."""
    content = {"version": VERSION} | _as_written(audit)
    content["thresholds"] = [asdict(one.condition) | {"passed": one.passed, "said": one.said} for one in outcomes]
    content["changes"] = [asdict(one) | {"apart": one.apart} for one in found]
    content["tried"] = [_as_written(one) for one in audit.tried]
    for row in content["rows"]:
        reading = row.pop("reading")
        row |= {name: reading[name] for name in ("cosine", "f1", "exact")}
    return content


def _as_written(found: Audit | Tried) -> dict[str, Any]:
    """Plain values; the file calls the dimension of vectors "width"."""
    return {"width" if name == "dimension" else name: value for name, value in asdict(found).items()}


def _write_page(path: Path, audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change]) -> None:
    sections = [
        ("in-short", "In short", _tiles(audit)),
        *_attackers(audit),
        *_compared(outcomes, found),
        ("what-leaks", "What leaks", _kinds(audit)),
        ("most-exposed-rows", "Most exposed rows", _exposed(audit)),
        ("what-defenses-would-change", "What defenses would change", _defenses(audit)),
        ("how-near", "How near it came", charts_of(_charts(audit))),
        ("method", "Method and limits", macro("limits", TEMPLATE, items=limits(audit))),
    ]
    facts = [(name, value) for name, value in audit.run.items() if name != "directory"]
    kept = "Texts on it are masked." if audit.masked else "It holds recovered text: keep it as private as the store."
    write_page(
        path,
        heading=f"What {file_name(audit.store)} discloses",
        run=audit.store,
        facts=[("rows", f"{audit.sampled:,} of {audit.size:,}"), ("dimension", str(audit.dimension)), *facts],
        lead=lead(audit),
        sections=sections,
        footer=f"Made by unembed with the attacker of {audit.run['directory']}. {kept}",
    )


def _attackers(audit: Audit) -> list[tuple[str, str, Markup]]:
    """A section on the attackers by themselves, if there are several."""
    if len(audit.attackers) < 2:
        return []
    lines = tuple(
        Line(one.label or one.name, "", (_cell(one.readable), _cell(one.exact), Cell(shown("cosine", one.cosine))))
        for one in audit.attackers
    )
    table = Table("", ("Attacker", "Readable", "Word for word", "Cosine"), lines)
    return [("attackers", "Attackers", macro("table_of", table=table, style="wide"))]


def held(passed: bool) -> str:
    """The outcome of a threshold."""
    return "holds" if passed else "EXCEEDED"


def _compared(outcomes: Sequence[Outcome], found: Sequence[Change]) -> list[tuple[str, str, Markup]]:
    """Sections on the thresholds and the baseline, where they are given."""
    sections = []
    if outcomes:
        lines = tuple(
            Line(one.condition.text, "", (Cell(held(one.passed), gain=one.passed), _cell(one.share)))
            for one in outcomes
        )
        note = "Compared with the upper end of the 95 % interval."
        table = Table("", ("Threshold", "Outcome", "Share"), lines, notes=(note,))
        sections.append(("thresholds", "Thresholds", macro("table_of", table=table, style="wide")))
    if found:
        lines = tuple(
            Line(one.name, "", (_cell(one.after), _cell(one.before), Cell("changed" if one.apart else "within chance")))
            for one in found
        )
        table = Table("", ("Share", "Now", "Baseline", "Change"), lines)
        sections.append(("since-the-baseline", "Since the baseline", macro("table_of", table=table, style="wide")))
    return sections


def print_audit(
    directory: Path,
    audit: Audit,
    outcomes: Sequence[Outcome] = (),
    found: Sequence[Change] = (),
    console: Console | None = None,
) -> None:
    """Print warnings, the summary, the defenses, the path of the page, and what became of thresholds and baseline."""
    console = console or terminal.console()
    for warning in audit.warnings:
        console.print(plain(warning, style="bold red"))
    console.print(plain(lead(audit)))
    if any(one.total for one in audit.classes):
        print_values(classes_table(audit), console)
    print_values(_tried_table(audit), console)
    console.print(plain(f"Report: {directory / PAGE}"), soft_wrap=True)
    if found:
        console.print(plain(changes.summary(found)))
    for one in outcomes:
        console.print(plain(one.said, style="" if one.passed else "bold red"))


def _tiles(audit: Audit) -> Markup:
    how = "measured" if audit.measured else "estimated"
    tiles = [
        _tile("Readable", audit.readable, f"{how}: word F1 of {audit.threshold:g} % and more"),
        _tile("Word for word", audit.exact, how),
    ]
    if audit.measured:
        total = sum(kind.total for kind in audit.kinds)
        tiles.append(_tile("Entities that leak", audit.entities, f"of {total:,} in the true texts"))
    else:
        shares = [(kind.share, kind.total) for kind in audit.kinds if kind.share is not None]
        likely, most = sum(share.value * n for share, n in shares), sum(share.high * n for share, n in shares)
        note = "of those that have a form (cards, mail, ...)"
        if shares:
            note = f"up to {most:,.0f}; estimated to be right, {note}"
        tiles.append(Tile("Entities", f"{likely:,.0f}" if shares else None, note))
    median = sorted(audit.cosines)[len(audit.cosines) // 2]
    note = "of recovered texts' vectors with the stored ones; 1 is equal"
    tiles.append(Tile("Median cosine", f"{median:.2f}", note, round(100 * max(0.0, median), 1)))
    return macro("tiles", tiles=tiles, style="four", warnings=audit.warnings)


def _tile(title: str, share: AuditedShare | None, note: str) -> Tile:
    if share is None:
        return Tile(title, None, note)
    width, low, span = (round(100 * part, 1) for part in (share.value, share.low, share.high - share.low))
    return Tile(title, share.shown, f"{share.reach}; {note}", width, reach=(low, span))


def _kinds(audit: Audit) -> Markup:
    if audit.measured:
        columns = ("Kind of entity", "In the true texts", "Read")
        note = f"An entity was read where it stands in the recovered text as whole words. Found by {audit.tagged}."
    else:
        columns = ("Kind of entity", "In recovered texts", "Of such, right on test texts")
        note = (
            f"Found by {audit.tagged}. The attack also invents: of the entities that it wrote for the run's own test "
            "texts, the last column says how many stood in the truth. Names and places have no form of their own: they "
            "are counted with a tagger (scoring/tagger) or true texts."
        )
    if not audit.kinds:
        note = f"No entity was found. {note}"
    return macro(
        "kinds",
        TEMPLATE,
        table=_kinds_table(columns, audit.kinds[:SHOWN]),
        folded=_kinds_table(columns, audit.kinds[SHOWN:]),
        held_out=_kinds_table(("Kind of entity", "In the test texts", "Read"), audit.held_out),
        note=note,
        held_out_note="Where their entities are labelled: what an attacker reads of text like its training text.",
    )


def classes_table(audit: Audit) -> Table:
    """Exposure by class, for the terminal and audit.md."""
    columns = ("Exposure by class", *(("Recovered", "In the true texts") if audit.measured else ("Right", "Recovered")))
    lines = []
    for one in audit.classes:
        title = f"{one.name} (by form)" if one.found == "form" and one.name == NAMES else one.name
        lines.append(Line(title, "", (_cell(one.share), Cell(f"{one.total:,}"))))
    return Table("", columns, tuple(lines))


def _kinds_table(columns: tuple[str, ...], kinds: list[Kind]) -> Table:
    lines = []
    for kind in kinds:
        of = "" if kind.share is None else f", of {kind.share.rows:,}"
        lines.append(Line(kind.label, "", (Cell(f"{kind.total:,}"), _cell(kind.share, of))))
    return Table("", columns, tuple(lines))


def _cell(share: AuditedShare | None, of: str = "") -> Cell:
    return Cell(DASH) if share is None else Cell(share.shown, (share.reach + of,))


def _exposed(audit: Audit) -> Markup:
    hidden = (
        "Letters are shown as x, digits as 0, entities by their kind; --show-text shows what was read. "
        if audit.masked
        else ""
    )
    note = (
        f"{hidden}The cosine is that of the recovered text, embedded again, with the stored vector: near 1, the "
        "text is probably right. The probability is what that cosine meant for the run's own test texts."
    )
    truth = any(row.truth is not None for row in audit.rows)
    columns = ("Row", "Cosine", "Readable with probability", "Kinds", "What was read", *(("True text",) * truth))
    lines = tuple(_exposed_line(row, truth) for row in audit.rows)
    return macro("table_of", table=Table("", columns, lines, notes=(note,)), style="wide exposed")


def _exposed_line(row: Exposed, truth: bool) -> Line:
    outcome = []
    if row.reading.f1 is not None:
        outcome = ["word for word" if row.reading.exact else f"word F1 {row.reading.f1:.0f}"]
    cells = [
        Cell(f"{row.reading.cosine:.3f}"),
        Cell(shown("share", row.probability), tuple(outcome)),
        Cell(", ".join(row.kinds)),
        Cell(row.text, quoted=True),
    ]
    return Line(row.id, "", (*cells, *((Cell(row.truth or "", quoted=True),) * truth)))


def _tried_table(audit: Audit, notes: tuple[str, ...] = ()) -> Table:
    entities = any(one.entities is not None for one in audit.tried)
    lookup = any(one.lookup is not None for one in audit.tried)
    columns = (
        "Defense",
        "Readable",
        *(("By lookup",) * lookup),
        "Word for word",
        *(("Entities read",) * entities),
        "Cosine",
        "Neighbours kept",
    )
    lines = []
    for one in audit.tried:
        unread = one.readable is None and one.cosine is None
        cells = [
            Cell("not by this attacker", ("the vectors are longer",)) if unread else _cell(one.readable),
            *([_cell(one.lookup)] if lookup else []),
            _cell(one.exact),
            *([_cell(one.entities)] if entities else []),
            Cell(shown("cosine", one.cosine)),
            Cell(shown("share", one.neighbours)),
        ]
        lines.append(Line(one.name, "", tuple(cells)))
    return Table("", columns, tuple(lines), notes=notes)


def _defenses(audit: Audit) -> Markup:
    shares = [(one.name, one.worst) for one in audit.tried if one.worst is not None]
    read = [
        NamedValue(name, f"{100 * share.value:.0f} %", share.value, (share.low, share.high)) for name, share in shares
    ]
    kept = [NamedValue(one.name, f"{100 * one.neighbours:.0f} %", one.neighbours) for one in audit.tried]
    charts = []
    if read:
        chart = row_chart("Readable share by defense", read, shares=True)
        charts.append(("Readable", chart, "By the better attacker. The line is the 95 % interval."))
    caption = "A stand-in for what search keeps, without queries."
    charts.append(("Neighbours kept", row_chart("Neighbours kept by defense", kept, shares=True), caption))
    note = (
        f"{counted(audit.tried_on, 'row')} of the sample, defended, read by the run's attack, which knows nothing of "
        "the defense (one that trains on defended vectors reads more), and by the lookup, which does. Shorter vectors "
        "were filled up with zeros for the attack. "
        "Neighbours kept: of the ten rows nearest to a row, by cosine among these rows, the share that is still so. "
        "Defenses were fitted to these rows; names and settings are those of defense=."
    )
    return macro("defenses", TEMPLATE, charts=charts, table=_tried_table(audit, (note,)))


def _charts(audit: Audit) -> list[Chart]:
    lines = [("this store, mean", sum(audit.cosines) / len(audit.cosines))]
    if audit.known:
        lines.append(("test texts, mean", sum(audit.known) / len(audit.known)))
    chart = histogram("Histogram of cosines", audit.cosines, "cosine", lines)
    charts = [("Cosine", chart, f"{counted(len(audit.cosines), 'row')} of the store.")]
    if audit.curve:
        series = [Series("readable, %", [(cosine, 100 * probability) for cosine, probability in audit.curve])]
        chart = line_chart("Probability to be readable by cosine", series, "cosine", from_zero=True)
        note = f"As learned from {counted(len(audit.known), 'test text')} of the run, whose truth is known."
        charts.append(("What a cosine means", chart, note))
    return charts
