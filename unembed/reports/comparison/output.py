"""The HTML page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unembed.reports import html
from unembed.reports.charts import Chart
from unembed.reports.html import charts_of, macro
from unembed.reports.tables import Table


def write_page(path: Path, tables: Sequence[Table], charts: Sequence[Chart], lead: str) -> None:
    """Write the page with the tables and charts."""
    sections = [
        (f"table-{number}", table.title, macro("table_of", table=table, style="wide"))
        for number, table in enumerate(tables)
    ]
    if charts:
        sections.append(("charts", "In pictures", charts_of(charts)))
    html.write_page(path, heading="Attacks compared", run="comparison", facts=[], lead=lead, sections=sections)
