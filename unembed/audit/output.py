"""Writes an audit: audit.html, audit.json, exposed.csv and the files for pipelines; and prints a summary."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from unembed.audit import changes
from unembed.audit.advice import steps
from unembed.audit.changes import Change
from unembed.audit.file import VALUES, VERSION, AuditFile
from unembed.audit.findings import Audit, Tried
from unembed.audit.page import write_audit_page
from unembed.audit.pipeline import write_pipeline
from unembed.audit.tables import attackers_table, classes_table, tried_table
from unembed.audit.thresholds import Outcome
from unembed.audit.words import answer, best_defense, insider, more
from unembed.core.atomic_files import write_file, write_json
from unembed.reports.tables import plain, print_values, terminal

if TYPE_CHECKING:
    from rich.console import Console

PAGE, EXPOSED = "audit.html", "exposed.csv"


class AuditReport(AuditFile):
    """The values of audit.json, and the files of an audit: what ``unembed.audit_vectors`` returns."""

    _parts: tuple[Audit, Sequence[Outcome], Sequence[Change]] = PrivateAttr()

    @classmethod
    def of(cls, audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change]) -> AuditReport:
        """Arguments as for ``write_audit``."""
        report = cls.model_validate(values(audit, outcomes, found))
        report._parts = audit, outcomes, found
        return report

    def save(self, directory: str | Path) -> None:
        """Write audit.html, audit.json, exposed.csv and the files for pipelines, as ``unembed audit`` does."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        write_audit(Path(directory), *self._parts)


def write_audit(directory: Path, audit: Audit, outcomes: Sequence[Outcome], found: Sequence[Change]) -> None:
    """Write audit.json, audit.html and the files for pipelines; if masked, none contains recovered or true text.

    Args:
        directory: Where.
        audit: The results.
        outcomes: Of the thresholds of ``fail_on``.
        found: What changed since the ``baseline``.
    """
    write_json(directory / VALUES, values(audit, outcomes, found))
    write_file(directory / EXPOSED, exposed(audit))
    write_audit_page(directory / PAGE, audit, outcomes, found, directory / VALUES)
    write_pipeline(directory, audit, outcomes, found)


def values(audit: Audit, outcomes: Sequence[Outcome] = (), found: Sequence[Change] = ()) -> dict[str, Any]:
    """The content of audit.json; file.py has its schema."""
    content = {"version": VERSION} | _as_written(audit)
    del content["ranked"], content["named"]  # exposed.csv has the rows; store says the name
    content["thresholds"] = [asdict(one.condition) | {"passed": one.passed, "said": one.said} for one in outcomes]
    content["changes"] = [asdict(one) | {"apart": one.apart} for one in found]
    content["tried"] = [_as_written(one) for one in audit.tried]
    for row in (*content["rows"], *content["examples"]):
        reading = row.pop("reading")
        row |= {name: reading[name] for name in ("cosine", "f1", "exact")}
    return content


def exposed(audit: Audit) -> str:
    """The content of exposed.csv: the ids of all rows, the most exposed first, without any text."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("id", "rank", "probability", "cosine", "entities", "rows_with_this_text"))
    for name, rank, probability, cosine, entities, same in audit.ranked:
        likely = "" if probability is None else f"{probability:.4f}"
        writer.writerow((name, f"{rank:.4f}", likely, f"{cosine:.4f}", entities, same))
    return lines.getvalue()


def _as_written(found: Audit | Tried) -> dict[str, Any]:
    """Plain values; the file calls the dimension of vectors "width"."""
    return {"width" if name == "dimension" else name: value for name, value in asdict(found).items()}


def print_audit(
    directory: Path,
    audit: Audit,
    outcomes: Sequence[Outcome] = (),
    found: Sequence[Change] = (),
    console: Console | None = None,
) -> None:
    """Print the answer, warnings, thresholds and what changed, then the tables of the page and what to do next."""
    console = console or terminal()
    console.print(plain(answer(audit), style="bold red" if audit.unjudged else "bold"))
    for warning in audit.warnings:
        console.print(plain(warning, style="bold red"))
    for one in outcomes:
        if not (audit.unjudged and one.share is None):  # ends the audit as an error, which is printed last
            console.print(plain(one.said, style="" if one.passed else "bold red"))
    if found:
        console.print(plain(changes.summary(found)))
    console.print(plain(more(audit)))
    if any(one.total for one in audit.classes):
        print_values(classes_table(audit), console, intervals=True)
    if len(audit.attackers) > 1:
        print_values(attackers_table(audit), console, intervals=True)
    if audit.insider is not None:
        console.print(plain(insider(audit.insider)))
    print_values(tried_table(audit), console, intervals=True)
    if said := best_defense(audit):
        console.print(plain(said))
    for number, step in enumerate(steps(audit, directory / VALUES), 1):
        console.print(plain(f"{number}. {step.title}{':' if step.commands else ''}"))
        for command in step.commands:
            console.print(plain(f"   {command}"), soft_wrap=True)
    console.print(plain(f"Report: {directory / PAGE}"), soft_wrap=True)
