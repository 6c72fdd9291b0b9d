"""An audit as a page for the store's owner, as audit.json, and as a few lines in the terminal.

Recovered text is hostile input: it reaches the page only through the autoescaping templates.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from atomic_files import write_file, write_json
from reports import svg, terminal
from reports.audit.chart import bars
from reports.audit.findings import Audit, Exposed, Kind, Share, Tried
from reports.audit.inputs import file_name
from reports.audit.words import counted, interval, lead, limits, percent, shown
from reports.sections import macro
from reports.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console

PAGE, VALUES = "audit.html", "audit.json"
TEMPLATE = "audit.html.jinja"
SHOWN = 10  # kinds of entities that are not folded away
NOT_READ: dict[str, str | None] = {"text": "not by this attacker", "below": "the vectors are wider"}


def write_audit(directory: Path, audit: Audit) -> None:
    """Write audit.json and audit.html; where texts are masked, neither holds recovered or true text."""
    write_json(directory / VALUES, values(audit))
    write_file(directory / PAGE, page(audit).encode("utf-8", "replace").decode())  # a lone surrogate cannot be written


def values(audit: Audit) -> dict[str, Any]:
    """What audit.json holds."""
    content = asdict(audit)
    for row in content["rows"]:
        reading = row.pop("reading")
        row |= {name: reading[name] for name in ("cosine", "f1", "exact")}
    return content


def page(audit: Audit) -> Markup:
    """The page, one file without script or network."""
    sections = [
        ("in-short", "In short", _tiles(audit)),
        ("what-leaks", "What leaks", _kinds(audit)),
        ("most-exposed-rows", "Most exposed rows", _exposed(audit)),
        ("what-defenses-would-change", "What defenses would change", _defenses(audit)),
        ("how-near", "How near it came", _charts(audit)),
        ("method", "Method and limits", macro("limits", TEMPLATE, items=limits(audit))),
    ]
    facts = [(name, value) for name, value in audit.run.items() if name != "directory"]
    kept = "Texts on it are masked." if audit.masked else "It holds recovered text: keep it as private as the store."
    return macro(
        "page",
        heading=f"What {file_name(audit.store)} gives away",
        run=audit.store,
        facts=[("rows", f"{audit.sampled:,} of {audit.size:,}"), ("width", str(audit.width)), *facts],
        lead=lead(audit),
        sections=sections,
        footer=f"Made by unembed with the attacker of {audit.run['directory']}. {kept}",
    )


def print_audit(directory: Path, audit: Audit, console: Console | None = None) -> None:
    """Print warnings, the summary, the defenses, and where the page lies."""
    from rich.table import Table

    console = console or terminal.console()
    for warning in audit.warnings:
        console.print(plain(warning, style="bold red"))
    console.print(plain(lead(audit)))
    table = Table()
    for column in _columns(audit):
        table.add_column(plain(column))
    for line in _tried_lines(audit):
        table.add_row(plain(line["label"]), *(plain(cell["text"]) for cell in line["cells"]))
    console.print(table)
    console.print(plain(f"Report: {directory / PAGE}"), soft_wrap=True)


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
        tile = _tile("Entities", None, f"up to {most:,.0f}; estimated to be right, {note}" if shares else note)
        tiles.append({**tile, "value": f"{likely:,.0f}" if shares else None})
    median = sorted(audit.cosines)[len(audit.cosines) // 2]
    cosine = {
        "title": "Median cosine",
        "value": f"{median:.2f}",
        "width": round(100 * max(0.0, median), 1),
        "low": None,
    }
    tiles.append({**cosine, "span": None, "note": "of recovered texts' vectors with the stored ones; 1 is equal"})
    return macro("tiles", TEMPLATE, tiles=tiles, warnings=audit.warnings)


def _tile(title: str, share: Share | None, note: str) -> dict[str, Any]:
    if share is None:
        return {"title": title, "value": None, "width": None, "low": None, "span": None, "note": note}
    return {
        "title": title,
        "value": percent(share.value),
        "width": round(100 * share.value, 1),
        "low": round(100 * share.low, 1),
        "span": round(100 * (share.high - share.low), 1),
        "note": f"{interval(share)}; {note}" if note else interval(share),
    }


def _kinds(audit: Audit) -> Markup:
    if audit.measured:
        columns = ["Kind of entity", "In the true texts", "Read"]
        note = f"An entity was read where it stands in the recovered text as whole words. Found by {audit.tagged}."
    else:
        columns = ["Kind of entity", "In recovered texts", "Of such, right on test texts"]
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
        columns=columns,
        lines=[_kind_line(kind) for kind in audit.kinds[:SHOWN]],
        folded=[_kind_line(kind) for kind in audit.kinds[SHOWN:]],
        held_out=[_kind_line(kind) for kind in audit.held_out],
        note=note,
        held_out_note="Where their entities are labelled: what an attacker reads of text like its training text.",
    )


def _kind_line(kind: Kind) -> dict[str, Any]:
    return {"label": kind.label, "cells": [{"text": f"{kind.total:,}", "below": None}, _cell(kind.share, rows=True)]}


def _cell(share: Share | None, *, rows: bool = False) -> dict[str, str | None]:
    if share is None:
        return {"text": "–", "below": None}  # noqa: RUF001
    return {"text": percent(share.value), "below": interval(share) + (f", of {share.rows:,}" if rows else "")}


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
    return macro(
        "exposed",
        TEMPLATE,
        rows=[_exposed_line(row) for row in audit.rows],
        truth=any(row.truth is not None for row in audit.rows),
        note=note,
    )


def _exposed_line(row: Exposed) -> dict[str, str | None]:
    outcome = None
    if row.reading.f1 is not None:
        outcome = "word for word" if row.reading.exact else f"word F1 {row.reading.f1:.0f}"
    return {
        "id": row.id,
        "cosine": f"{row.reading.cosine:.3f}",
        "probability": shown(row.probability),
        "outcome": outcome,
        "kinds": ", ".join(row.kinds),
        "text": row.text,
        "truth": row.truth,
    }


def _columns(audit: Audit) -> list[str]:
    entities = ["Entities read"] if any(one.entities is not None for one in audit.tried) else []
    return ["Defense", "Readable", "Word for word", *entities, "Cosine", "Neighbours kept"]


def _tried_lines(audit: Audit) -> list[dict[str, Any]]:
    entities = any(one.entities is not None for one in audit.tried)
    return [{"label": one.name, "cells": _tried_cells(one, entities)} for one in audit.tried]


def _tried_cells(one: Tried, entities: bool) -> list[dict[str, str | None]]:
    return [
        NOT_READ if one.readable is None and one.cosine is None else _cell(one.readable),
        _cell(one.exact),
        *([_cell(one.entities)] if entities else []),
        {"text": "–" if one.cosine is None else f"{one.cosine:.3f}", "below": None},  # noqa: RUF001
        {"text": percent(one.neighbours), "below": None},
    ]


def _defenses(audit: Audit) -> Markup:
    read = [(one.name, one.readable) for one in audit.tried if one.readable is not None]
    kept = [(one.name, Share(one.neighbours, one.neighbours, one.neighbours, 0, True)) for one in audit.tried]
    charts = []
    if read:
        charts.append(("Readable", bars("Readable share by defense", read), "The line is the 95 % interval."))
    caption = "A stand-in for what search keeps, without queries."
    charts.append(("Neighbours kept", bars("Neighbours kept by defense", kept), caption))
    note = (
        f"{counted(audit.tried_on, 'row')} of the sample, defended, read by the same attacker, who knows nothing of "
        "the defense: one who trains on defended vectors reads more. Narrower vectors were filled up with zeros. "
        "Neighbours kept: of the ten rows nearest to a row, by cosine among these rows, the share that is still so. "
        "Defenses were fitted to these rows; names and settings are those of defense=."
    )
    return macro("defenses", TEMPLATE, charts=charts, columns=_columns(audit), lines=_tried_lines(audit), note=note)


def _charts(audit: Audit) -> Markup:
    lines = [("this store, mean", sum(audit.cosines) / len(audit.cosines))]
    if audit.known:
        lines.append(("test texts, mean", sum(audit.known) / len(audit.known)))
    chart = svg.histogram("Histogram of cosines", audit.cosines, "cosine", lines)
    charts = [("Cosine", chart, f"{counted(len(audit.cosines), 'row')} of the store.")]
    if audit.curve:
        points = [(cosine, 100 * probability) for cosine, probability in audit.curve]
        series = [svg.Series("readable, %", points)]
        chart = svg.line_chart("Probability to be readable by cosine", series, "cosine", from_zero=True)
        note = f"As learned from {counted(len(audit.known), 'test text')} of the run, whose truth is known."
        charts.append(("What a cosine means", chart, note))
    return macro("closeness", charts=charts)
