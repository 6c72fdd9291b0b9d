"""An audit for pipelines: SARIF 2.1.0, JUnit XML and a Markdown summary, beside audit.json. None holds recovered text.

audit.sarif        results by rule: shares of the store, kinds of entities, exposed rows, exceeded thresholds
audit.junit.xml    a test case a threshold; without thresholds one, which passes
audit.md           the summary, for a comment on a pull request
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from unembed import __version__
from unembed.audit import changes as changes_between
from unembed.audit import thresholds
from unembed.audit.advice import steps
from unembed.audit.changes import Change
from unembed.audit.findings import Audit, AuditedShare
from unembed.audit.inputs import file_name
from unembed.audit.tables import attackers_table, classes_table, held, tried_table
from unembed.audit.thresholds import Outcome
from unembed.audit.words import answer, more
from unembed.core.atomic_files import write_file, write_json
from unembed.core.errors import printable
from unembed.reports.numbers import DASH, shown
from unembed.reports.tables import Cell, Line, Table, escaped, markdown

SARIF, JUNIT, SUMMARY = "audit.sarif", "audit.junit.xml", "audit.md"
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# docs/audit_threats.md says what each of them asks for.
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


def write_pipeline(directory: Path, audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change]) -> None:
    """Write the three files."""
    write_json(directory / SARIF, sarif(audit, outcomes))
    write_file(directory / JUNIT, junit(audit, outcomes))
    write_file(directory / SUMMARY, summary(audit, outcomes, found))


def sarif(audit: Audit, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A SARIF log with one run; rows of the store are logical locations."""
    store = file_name(audit.store)
    results = [
        _result("UNEMBED004", "error", f"{one.said}.", store, one.condition.text) for one in outcomes if not one.passed
    ]
    if audit.readable is not None and audit.readable.value > 0:
        results.append(_result("UNEMBED001", "warning", _said("of the texts are readable", audit.readable), store))
    for kind in audit.kinds:
        if kind.share is not None and kind.share.value > 0:
            said = _said(f"of {kind.total:,} {kind.label} come back", kind.share)
            results.append(_result("UNEMBED002", "warning", said, store, kind.label))
    for row in audit.rows:
        if row.is_readable or row.reading.exact:
            probability = "" if row.probability is None else f", readable with probability {row.probability:.2f}"
            kinds = f"; kinds: {', '.join(row.kinds)}" if row.kinds else ""
            said = f"Row {row.id}: cosine {row.reading.cosine:.3f}{probability}{kinds}."
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


def junit(audit: Audit, outcomes: Sequence[Outcome]) -> str:
    """A test suite with a case for each threshold."""
    failed = sum(not one.passed for one in outcomes)
    name = printable(f"audit of {file_name(audit.store)}")
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(outcomes) or 1), failures=str(failed), errors="0")
    if not outcomes:
        ElementTree.SubElement(suite, "testcase", classname="unembed.audit", name="no threshold was set")
    for one in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname="unembed.audit", name=printable(one.condition.text))
        if not one.passed:
            ElementTree.SubElement(case, "failure", message=printable(one.said), type="threshold")
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def summary(audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change]) -> str:
    """The content of audit.md: the answer, the thresholds, then the tables of the page in its order, and what to do."""
    said = (answer(audit), thresholds.summary(outcomes), changes_between.summary(found), *audit.warnings, more(audit))
    blocks = [escaped(part) for part in said if part]
    blocks[0] = f"**{blocks[0]}**"
    advice = [f"{number}. **{escaped(one.title)}.** {escaped(one.text)}" for number, one in enumerate(steps(audit), 1)]
    blocks += [*map(markdown, tables(audit, outcomes, found)), "## What to do next", "\n".join(advice)]
    return "\n\n".join(blocks) + "\n"


def tables(audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change]) -> list[Table]:
    """The shares with what they were before, classes of data, thresholds, attackers and defenses."""
    before = {one.name: one for one in found}
    shares = {"readable": audit.readable, "exact": audit.exact}
    shares |= {f"entities.{kind.label}": kind.share for kind in audit.kinds}
    lines = tuple(
        Line(name, "", (_cell(share), _cell(before[name].before if name in before else None)))
        for name, share in shares.items()
        if share is not None
    )
    made = [Table(f"Audit of {file_name(audit.store)}", ("share", "now", "baseline"), lines)]
    if audit.classes:
        made.append(replace(classes_table(audit), title="What kinds of data leak"))
    if outcomes:
        rows = tuple(Line(one.condition.text, "", (Cell(held(one.passed, one.share)),)) for one in outcomes)
        made.append(Table("Thresholds", ("condition", "outcome"), rows))
    if audit.attackers:
        made.append(replace(attackers_table(audit), title="Who reads how much"))
    if len(audit.tried) > 1:
        made.append(replace(tried_table(audit), title="What each defense changes"))
    return made


def _cell(share: AuditedShare | None) -> Cell:
    return Cell(DASH) if share is None else Cell(share.shown, (share.reach,))


def _said(what: str, share: AuditedShare) -> str:
    how = "measured" if share.measured else "estimated"
    return f"{shown('share', share.value)} {what} (95 % interval {share.reach}, {how})."


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
