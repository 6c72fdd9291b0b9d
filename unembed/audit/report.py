"""Writes an audit, and prints a summary. Only the first two files hold recovered text, masked unless asked for.

audit.html         the page for the store's owner
audit.json         all results (results.py)
exposed.csv        the ids of all rows, the most exposed first
audit.sarif        SARIF 2.1.0, results by rule: shares, kinds of entities, exposed rows, exceeded thresholds
audit.junit.xml    a test case a threshold; without thresholds one, which passes
audit.md           a summary, for a comment on a pull request
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from markupsafe import Markup

from unembed import __version__
from unembed.audit.exposure import NAMES
from unembed.audit.results import VALUES, Audit, DataClass, Share, least_read
from unembed.core.atomic_files import write_file, write_json
from unembed.core.commands import command, quoted
from unembed.core.errors import printable
from unembed.reports.charts import Chart, Series, histogram, line_chart
from unembed.reports.numbers import DASH, counted, shown
from unembed.reports.output import (
    Cell,
    Line,
    Table,
    escaped,
    macro,
    markdown,
    paragraphs,
    plain,
    print_values,
    sentence,
    terminal,
    write_page,
)

if TYPE_CHECKING:
    from rich.console import Console

PAGE, EXPOSED, SARIF, JUNIT, SUMMARY = "audit.html", "exposed.csv", "audit.sarif", "audit.junit.xml", "audit.md"
MOST, ACCEPTED = 95, 5  # percent: the largest threshold that is proposed, and the one proposed above it
KINDS = 10  # kinds of entities in the chart, where there are no classes
_HTML, _TEXT = "audit/audit.html.jinja", "audit/audit.txt.jinja"
_MASKED = re.compile(r"(\[[^\]\s]+\])|(?<![^\W_])([Xx0]+)(?![^\W_])")
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# docs/audit.md says what each of them asks for.
_TAGS = (
    "security", "privacy", "OWASP-LLM09:2026", "OWASP-LLM08:2025", "MITRE-ATLAS-AML.T0024.001", "NIST-AI-100-2",
    "OWASP-AISVS-8.2.1",
)  # fmt: skip
# Ids are stable: what a rule means does not change, and none is used twice.
_RULES = {
    "UNEMBED001": ("ReadableText", "Texts of the vector store can be read back from its vectors."),
    "UNEMBED002": ("LeakedEntity", "Entities such as names and numbers can be read back from the vectors."),
    "UNEMBED003": ("ExposedRow", "A row of the store whose text is probably readable."),
    "UNEMBED004": ("ThresholdExceeded", "A share is above the threshold that was set with fail_on."),
}


def write_audit(directory: Path, audit: Audit) -> None:
    """Write all files of an audit; if it is masked, none contains recovered or true text."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / VALUES, audit.model_dump(mode="json"))
    write_file(directory / EXPOSED, exposed(audit))
    write_audit_page(directory / PAGE, audit, directory / VALUES)
    write_json(directory / SARIF, sarif(audit))
    write_file(directory / JUNIT, junit(audit))
    write_file(directory / SUMMARY, summary(audit))


def exposed(audit: Audit) -> str:
    """The content of exposed.csv, without any text."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("id", "rank", "probability", "cosine", "entities", "rows_with_this_text"))
    for row in audit.ranked:
        likely = "" if row.probability is None else f"{row.probability:.4f}"
        writer.writerow((row.id, f"{row.rank:.4f}", likely, f"{row.cosine:.4f}", row.entities, row.same))
    return lines.getvalue()


def say(name: str, audit: Audit, **values: Any) -> str:
    """A sentence of audit.txt.jinja; empty where it does not apply."""
    return sentence(name, _TEXT, audit=audit, **values)


def best_defense(audit: Audit) -> str:
    """The defense that leaves its best attacker least, if the difference is significant and one attacker knows it."""
    best, undefended = least_read(audit.tried[1:]), audit.tried[0].worst if audit.tried else None
    if best is None or undefended is None or (audit.unjudged and audit.readable is None):
        return ""
    return say("best_defense", audit, best=best, plain=undefended)


def print_audit(directory: Path, audit: Audit, console: Console | None = None) -> None:
    """Print the answer, warnings, thresholds and what changed, then the tables of the page and what to do next."""
    console = console or terminal()
    console.print(plain(say("answer", audit), style="bold red" if audit.unjudged else "bold"))
    for warning in audit.warnings:
        console.print(plain(warning, style="bold red"))
    for one in audit.thresholds:
        if not (audit.unjudged and one.share is None):  # ends the audit as an error, which is printed last
            console.print(plain(one.said, style="" if one.passed else "bold red"))
    if audit.changes:
        console.print(plain(say("changes", audit)))
    console.print(plain(say("more", audit)))
    if any(one.total for one in audit.classes):
        print_values(classes_table(audit), console, intervals=True)
    if len(audit.attackers) > 1:
        print_values(attackers_table(audit), console, intervals=True)
    if audit.insider is not None:
        console.print(plain(say("insider", audit)))
    print_values(tried_table(audit), console, intervals=True)
    if said := best_defense(audit):
        console.print(plain(said))
    for number, step in enumerate(steps(audit, directory / VALUES), 1):
        console.print(plain(f"{number}. {step.title}{':' if step.commands else ''}"))
        for line in step.commands:
            console.print(plain(f"   {line}"), soft_wrap=True)
    console.print(plain(f"Report: {directory / PAGE}"), soft_wrap=True)


# -- what to do next ---------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One thing to do: its title, the reason, and commands."""

    title: str
    text: str
    commands: tuple[str, ...] = ()


def _step(name: str, audit: Audit, *commands: str, **values: Any) -> Step:
    title, *text = paragraphs(name, _TEXT, audit=audit, **values)
    return Step(title, " ".join(text), commands)


def steps(audit: Audit, values: Path | None = None) -> list[Step]:
    """What the owner should do, most important first; ``values`` is audit.json, for comparing the next audit with."""
    run = audit.run.get("directory")
    words = (*([f"run={quoted(run)}"] if run else []), *audit.named)
    if audit.unjudged and audit.readable is None:
        return [_step("find_out", audit)]
    every = [_step("protect", audit)]
    if audit.rows:
        every.append(_step("exposed", audit))
    every.append(_defend(audit))
    if run:
        train = _training(audit, "run_dir=runs/own")
        every.append(_step("inform", audit, train, command("audit", "run=runs/own", *audit.named)))
    if not audit.measured:
        every.append(_step("measure", audit, command("audit", *words, "texts=<file>")))
    if audit.readable is not None and not audit.unjudged:
        shares = [audit.readable, *(one.readable for one in audit.attackers)]
        percent = max(math.ceil(100 * one.high) for one in shares if one is not None)
        exceeded = percent > MOST  # a threshold that nearly nothing exceeds is none
        condition = f"fail_on=readable>{ACCEPTED if exceeded else percent}"
        earlier = {} if values is None else {"baseline": values}
        check = command("audit", *words, condition, **earlier)
        every.append(_step("fail", audit, check, percent=percent, exceeded=exceeded))
    return every


def _defend(audit: Audit) -> Step:
    """What was tried, what an informed attacker still reads behind it, and the command that trains such an attacker."""
    fitting = [one for one in audit.tried[1:] if one.width == audit.width]  # the attacker's weights fit
    best, tried = best_defense(audit), least_read(fitting) or least_read(audit.tried[1:])
    trains = bool(best and tried and audit.run.get("directory"))
    commands = []
    if trains and tried is not None:
        # The name of a defense in tables, as launch.defense_points makes it: ``noise level=0.01``.
        parts = [part for part in tried.name.split(" ") if part != "+"]
        options = [part for part in parts if "=" not in part]
        choice = options[0] if len(options) == 1 else f"[{','.join(options)}]"
        words = [f"defense={choice}", *(f"defense.{part}" for part in parts if "=" in part)]
        words += ["defense.adaptive=true", "run_dir=runs/defended"]
        commands = [_training(audit, *words, anew=tried.width != audit.width)]
    return _step("defend", audit, *commands, best=best, tried=tried, trains=trains)


def _training(audit: Audit, *words: str, anew: bool = False) -> str:
    """A command that trains on a sample of the owner's text: from the weights of the audit's attacker, or ``anew``."""
    embedder = audit.run.get("embedder", "minilm")
    if not anew:  # init_from= takes over the embedder, with what its option leaves open, such as the model
        begin = [f"init_from={quoted(audit.run['directory'])}"]
    else:
        begin = [] if embedder == "minilm" else [f"embedder={embedder}"]
    return command("train", *begin, "datamodule=files", "datamodule.path=<file>", *words)


# -- tables ------------------------------------------------------------------------------------------------------------


def classes_table(audit: Audit, title: str = "") -> Table:
    """Exposure by class."""
    columns = ("Exposure by class", "Comes back", "In the true texts" if audit.measured else "In recovered texts")
    lines = [Line(class_name(one), "", (_cell(one.share), Cell(f"{one.total:,}"))) for one in audit.classes]
    return Table(title, columns, lines)


def attackers_table(audit: Audit, title: str = "") -> Table:
    """What each attacker reads."""
    lines = [
        Line(one.title, one.cost, (_cell(one.readable), _cell(one.exact), Cell(shown("cosine", one.cosine))))
        for one in audit.attackers
    ]
    return Table(title, ("Attacker", "Readable", "Word for word", "Cosine"), lines)


def tried_table(audit: Audit, title: str = "") -> Table:
    """What each defense changes."""
    columns = {
        "Readable": [_cell(one.readable) for one in audit.tried],
        "By lookup": [_cell(one.lookup) for one in audit.tried],
        "Word for word": [_cell(one.exact) for one in audit.tried],
        "Entities read": [_cell(one.entities) for one in audit.tried],
        "Cosine": [Cell(shown("cosine", one.cosine)) for one in audit.tried],
        "Neighbours kept": [Cell(shown("share", one.neighbours)) for one in audit.tried],
    }
    for row, one in enumerate(audit.tried):
        if one.readable is None and one.cosine is None:
            columns["Readable"][row] = Cell("not by this attacker", ("the vectors are longer",))
    if all(one.lookup is None for one in audit.tried):
        del columns["By lookup"]
    # Patterns find few kinds of entities: their share would be taken for that of the names and numbers of the classes.
    by_form = all(one.found == "form" for one in audit.classes)
    if by_form or all(one.entities is None for one in audit.tried):
        del columns["Entities read"]
    rows = zip(audit.tried, zip(*columns.values(), strict=True), strict=True)
    return Table(title, ("Defense", *columns), [Line(one.name, "", cells) for one, cells in rows])


def class_name(one: DataClass) -> str:
    """A class of data, and that its names were found by their form alone where they were."""
    return f"{one.name} (by form)" if one.found == "form" and one.name == NAMES else one.name


def _cell(share: Share | None) -> Cell:
    return Cell(DASH) if share is None else Cell(share.shown, (share.reach,))


# -- the page ----------------------------------------------------------------------------------------------------------


def write_audit_page(path: Path, audit: Audit, values: Path) -> None:
    """Write the page; ``values`` is the audit.json that it names for later audits."""

    def section(name: str, **more: Any) -> Markup:
        return macro(name, _HTML, audit=audit, **more)

    sections = []
    if audit.examples:
        cards = [(row, _parts(row.text) if audit.masked else [("text", row.text)]) for row in audit.examples]
        title = ("One example", "Two examples", "Three examples")[len(cards) - 1]
        sections.append(("examples", title, section("examples", cards=cards)))
    if any(one.share is not None for one in audit.classes):
        parts = [(class_name(one), one.total, one.share) for one in audit.classes]
    else:
        parts = [(one.label, one.total, one.share) for one in audit.kinds[:KINDS]]
    sections.append(("what-leaks", "What kinds of data leak", section("exposure", parts=parts)))
    if audit.thresholds:
        sections.append(("thresholds", "Thresholds", section("thresholds")))
    if audit.changes:
        sections.append(("since-the-baseline", "Since the baseline", section("changes")))
    if audit.attackers:
        insider = "" if audit.insider is None else say("insider", audit)
        sections.append(("attackers", "Who reads how much", section("attackers", insider=insider)))
    sections += [
        ("defenses", "What each defense changes", section("defenses", best=best_defense(audit))),
        ("what-to-do", "What to do next", macro("steps", _HTML, steps=steps(audit, values))),
        ("details", "Details", section("details", charts=_charts(audit), tried=tried_table(audit))),
    ]
    private = "Texts on it are masked." if audit.masked else "It holds recovered text: keep it as private as the store."
    write_page(
        path,
        heading=f"What {audit.title} discloses",
        run=audit.store,
        facts=[],
        lead=say("answer", audit),
        said=[said for said in (say(name, audit) for name in ("thresholds", "changes", "more")) if said],
        warnings=audit.warnings,
        style=macro("style", _HTML),
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


# -- pipelines ---------------------------------------------------------------------------------------------------------


def sarif(audit: Audit) -> dict[str, Any]:
    """A SARIF log with one run; rows of the store are logical locations."""
    results = [
        _result("UNEMBED004", "error", f"{one.said}.", audit, one.text) for one in audit.thresholds if not one.passed
    ]
    if audit.readable is not None and audit.readable.value > 0:
        results.append(_result("UNEMBED001", "warning", _share("of the texts are readable", audit.readable), audit))
    for kind in audit.kinds:
        if kind.share is not None and kind.share.value > 0:
            text = _share(f"of {kind.total:,} {kind.label} come back", kind.share)
            results.append(_result("UNEMBED002", "warning", text, audit, kind.label))
    for row in audit.rows:
        if row.is_readable or row.exact:
            probability = "" if row.probability is None else f", readable with probability {row.probability:.2f}"
            kinds = f"; kinds: {', '.join(row.kinds)}" if row.kinds else ""
            text = f"Row {row.id}: cosine {row.cosine:.3f}{probability}{kinds}."
            results.append(_result("UNEMBED003", "note", text, audit, row.id, row=row.id))
    rules = [
        {
            "id": rule,
            "name": name,
            "shortDescription": {"text": text},
            "defaultConfiguration": {"level": "error" if rule == "UNEMBED004" else "warning"},
            "properties": {"tags": list(_TAGS)},
        }
        for rule, (name, text) in _RULES.items()
    ]
    driver = {"name": "unembed", "version": __version__, "rules": rules}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}],
    }


def _share(what: str, share: Share) -> str:
    how = "measured" if share.measured else "estimated"
    return f"{share.shown} {what} (95 % interval {share.reach}, {how})."


def _result(
    rule: str, level: str, text: str, audit: Audit, about: str = "", *, row: str | None = None
) -> dict[str, Any]:
    store = audit.title
    location: dict[str, Any] = {"name": store, "fullyQualifiedName": store, "kind": "namespace"}
    if row is not None:
        location = {"name": row, "fullyQualifiedName": f"{store}/{row}", "kind": "object"}
    # Code scanning wants a file, too: the store stands for one.
    file = {"artifactLocation": {"uri": quote(store)}, "region": {"startLine": 1}}
    # The same finding in the next audit has the same fingerprint, whatever its share.
    fingerprint = hashlib.blake2b(f"{rule} {store} {about}".encode(), digest_size=16).hexdigest()
    return {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(rule),
        "level": level,
        "message": {"text": text},
        "locations": [{"logicalLocations": [location], "physicalLocation": file}],
        "partialFingerprints": {"finding/v1": fingerprint},
    }


def junit(audit: Audit) -> str:
    """A test suite with a case for each threshold."""
    failed = sum(not one.passed for one in audit.thresholds)
    name, cases = printable(f"audit of {audit.title}"), str(len(audit.thresholds) or 1)
    suite = ElementTree.Element("testsuite", name=name, tests=cases, failures=str(failed), errors="0")
    if not audit.thresholds:
        ElementTree.SubElement(suite, "testcase", classname="unembed.audit", name="no threshold was set")
    for one in audit.thresholds:
        case = ElementTree.SubElement(suite, "testcase", classname="unembed.audit", name=printable(one.text))
        if not one.passed:
            ElementTree.SubElement(case, "failure", message=printable(one.said), type="threshold")
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def summary(audit: Audit) -> str:
    """The content of audit.md: the answer, the thresholds, then the tables of the page in its order, and what to do."""
    short = [say("thresholds", audit), say("changes", audit), *audit.warnings, say("more", audit)]
    blocks = [f"**{escaped(say('answer', audit))}**", *(escaped(part) for part in short if part)]
    before = {one.name: one.before for one in audit.changes}
    lines = [Line(name, "", (_cell(one), _cell(before.get(name)))) for name, one in audit.shares().items()]
    tables = [Table(f"Audit of {audit.title}", ("share", "now", "baseline"), lines)]
    if audit.classes:
        tables.append(classes_table(audit, "What kinds of data leak"))
    if audit.thresholds:
        rows = [Line(one.text, "", (Cell(one.outcome),)) for one in audit.thresholds]
        tables.append(Table("Thresholds", ("condition", "outcome"), rows))
    if audit.attackers:
        tables.append(attackers_table(audit, "Who reads how much"))
    if len(audit.tried) > 1:
        tables.append(tried_table(audit, "What each defense changes"))
    advice = [f"{number}. **{escaped(one.title)}.** {escaped(one.text)}" for number, one in enumerate(steps(audit), 1)]
    return "\n\n".join([*blocks, *map(markdown, tables), "## What to do next", "\n".join(advice)]) + "\n"
