"""An audit for pipelines: SARIF 2.1.0, JUnit XML and a Markdown summary, beside audit.json. None holds recovered text.

audit.sarif        results by rule: shares of the store, kinds of entities, exposed rows, exceeded thresholds
audit.junit.xml    a test case a threshold; without thresholds one, which passes
audit.md           the summary, for a comment on a pull request
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from unembed import __version__
from unembed.audit.results import Audit, Share
from unembed.audit.thresholds import changes_in_short, thresholds_in_short
from unembed.audit.wording import answer, attackers_table, classes_table, more, share_cell, steps, tried_table
from unembed.core.atomic_files import write_file, write_json
from unembed.core.errors import printable
from unembed.reports.tables import Cell, Line, Table, escaped, markdown

SARIF, JUNIT, SUMMARY = "audit.sarif", "audit.junit.xml", "audit.md"
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


def write_pipeline(directory: Path, audit: Audit) -> None:
    """Write the three files."""
    write_json(directory / SARIF, sarif(audit))
    write_file(directory / JUNIT, junit(audit))
    write_file(directory / SUMMARY, summary(audit))


def sarif(audit: Audit) -> dict[str, Any]:
    """A SARIF log with one run; rows of the store are logical locations."""
    store = audit.title
    results = [
        _result("UNEMBED004", "error", f"{one.said}.", store, one.text) for one in audit.thresholds if not one.passed
    ]
    if audit.readable is not None and audit.readable.value > 0:
        results.append(_result("UNEMBED001", "warning", _said("of the texts are readable", audit.readable), store))
    for kind in audit.kinds:
        if kind.share is not None and kind.share.value > 0:
            said = _said(f"of {kind.total:,} {kind.label} come back", kind.share)
            results.append(_result("UNEMBED002", "warning", said, store, kind.label))
    for row in audit.rows:
        if row.is_readable or row.exact:
            probability = "" if row.probability is None else f", readable with probability {row.probability:.2f}"
            kinds = f"; kinds: {', '.join(row.kinds)}" if row.kinds else ""
            said = f"Row {row.id}: cosine {row.cosine:.3f}{probability}{kinds}."
            results.append(_result("UNEMBED003", "note", said, store, row.id, row=row.id))
    driver = {
        "name": "unembed",
        "version": __version__,
        "rules": [
            {
                "id": rule,
                "name": name,
                "shortDescription": {"text": text},
                "defaultConfiguration": {"level": "error" if rule == "UNEMBED004" else "warning"},
                "properties": {"tags": list(_TAGS)},
            }
            for rule, (name, text) in _RULES.items()
        ],
    }
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}],
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
    short = thresholds_in_short(audit.thresholds), changes_in_short(audit.changes)
    blocks = [escaped(part) for part in (answer(audit), *short, *audit.warnings, more(audit)) if part]
    blocks[0] = f"**{blocks[0]}**"
    advice = [f"{number}. **{escaped(one.title)}.** {escaped(one.text)}" for number, one in enumerate(steps(audit), 1)]
    blocks += [*map(markdown, _tables(audit)), "## What to do next", "\n".join(advice)]
    return "\n\n".join(blocks) + "\n"


def _tables(audit: Audit) -> list[Table]:
    """The shares with what they were before, classes of data, thresholds, attackers and defenses."""
    before = {one.name: one.before for one in audit.changes}
    lines = (Line(name, "", (share_cell(one), share_cell(before.get(name)))) for name, one in audit.shares().items())
    tables = [Table(f"Audit of {audit.title}", ("share", "now", "baseline"), tuple(lines))]
    if audit.classes:
        tables.append(classes_table(audit, "What kinds of data leak"))
    if audit.thresholds:
        rows = tuple(Line(one.text, "", (Cell(one.outcome),)) for one in audit.thresholds)
        tables.append(Table("Thresholds", ("condition", "outcome"), rows))
    if audit.attackers:
        tables.append(attackers_table(audit, "Who reads how much"))
    if len(audit.tried) > 1:
        tables.append(tried_table(audit, "What each defense changes"))
    return tables


def _said(what: str, share: Share) -> str:
    how = "measured" if share.measured else "estimated"
    return f"{share.shown} {what} (95 % interval {share.reach}, {how})."


def _result(rule: str, level: str, text: str, store: str, about: str = "", *, row: str | None = None) -> dict[str, Any]:
    location: dict[str, Any] = {"name": store, "fullyQualifiedName": store, "kind": "namespace"}
    if row is not None:
        location = {"name": row, "fullyQualifiedName": f"{store}/{row}", "kind": "object"}
    # The same finding in the next audit has the same fingerprint, whatever its share.
    fingerprint = hashlib.blake2b(f"{rule} {store} {about}".encode(), digest_size=16).hexdigest()
    return {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(rule),
        "level": level,
        "message": {"text": text},
        # Code scanning wants a file, too: the store stands for one.
        "locations": [
            {
                "logicalLocations": [location],
                "physicalLocation": {"artifactLocation": {"uri": quote(store)}, "region": {"startLine": 1}},
            }
        ],
        "partialFingerprints": {"finding/v1": fingerprint},
    }
