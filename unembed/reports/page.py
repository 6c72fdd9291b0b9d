"""The HTML report of a run: one file without scripts or network access, made from the run directory only.

    write_report(Path("runs/geia-minilm-synthetic/2025-11-21"))     # -> .../report.html
    print_summary(Path("runs/geia-minilm-synthetic/2025-11-21"))    # the same, short, in the terminal

``sections`` lists the sections. The page's content security policy forbids scripts and external resources.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.core.errors import printable
from unembed.metrics.statistics import evenly
from unembed.reports import terminal
from unembed.reports.caveats import below_baseline, partial
from unembed.reports.html import write_page
from unembed.reports.metrics_table import metrics_table
from unembed.reports.results import Results, by_quality, parts, read_results
from unembed.reports.sections import SECTIONS
from unembed.reports.tables import print_values
from unembed.reports.terminal import plain
from unembed.reports.wording import knowing, verdict
from unembed.runs import layout
from unembed.runs.record import undertrained

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def write_report(run_dir: Path) -> Path:
    """Write ``run_dir/report.html`` and return its path.

    Raises:
        InputError: A file of the run directory is missing or invalid.
    """
    results = read_results(run_dir)
    with knowing(results.described):
        sections = [(section, section.render(results)) for section in SECTIONS]
    path = run_dir / layout.REPORT
    write_page(
        path,
        heading=_heading(results),
        run=str(results.config.get("name") or run_dir.resolve().name),
        facts=_facts(results),
        lead=_lead(results),
        warnings=_warnings(results),
        sections=[(section.anchor, section.title, html) for section, html in sections if html],
    )
    return path


def print_summary(run_dir: Path, console: Console | None = None) -> None:
    """Print the metrics beside the nearest neighbour's, five recovered texts, and the path of the report.

    Raises:
        InputError: A file of the run directory is missing or invalid.
    """
    from rich.table import Table

    console = console or terminal.console()
    results = read_results(run_dir)
    with knowing(results.described):
        found = metrics_table(results, secondary=False, explained=False)
    columns = tuple(column.lower() for column in found.columns)
    print_values(replace(found, title=_heading(results), columns=columns), console)
    console.print(plain(f"More metrics: {run_dir / layout.METRICS}", style="dim"), soft_wrap=True)
    console.print(plain(_lead(results)))
    for warning in _warnings(results):
        console.print(plain(f"\n{warning}", style="bold red"))
    console.print(plain("\nFive of them, evenly from the best to the worst; recovered words in green:"))
    pairs = Table.grid(padding=(0, 2))
    for one in evenly(by_quality(results.recovered), 5, middle=True):
        pairs.add_row(plain("text", style="dim"), _painted(one.row.reference, one.row.prediction))
        said = "read" if one.row.given is None else "guessed"
        pairs.add_row(plain(said, style="dim"), _painted(one.row.prediction, one.row.reference))
        pairs.add_row()
    console.print(pairs)
    report = run_dir / layout.REPORT
    if report.exists():
        console.print(plain(f"Report: {report}"), soft_wrap=True)


def _lead(results: Results) -> str:
    """The summary: a warning if the attack is below its baseline, and what was recovered."""
    said = verdict(results.metrics, results.baseline, len(results.recovered))
    below = below_baseline(results.metrics, results.baseline, trained=bool(results.training))
    return said if below is None else f"{below} {said}"


def _warnings(results: Results) -> list[str]:
    found = (undertrained(results.training), partial(results.metrics))
    return [warning for warning in found if warning is not None]


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
