"""Pages: one file each that needs no network and no script, made of the macros of ``*.html.jinja``.

Recovered text is hostile input: it reaches a page only through the autoescaping templates or ``Markup.format``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from atomic_files import write_file
from reports.charts import Chart


def macro(name: str, template: str = "report.html.jinja", **values: Any) -> Markup:
    """Call a macro of a template; each section of a page is one."""
    return Markup(getattr(_template(template), name)(**values))


def charts_of(charts: Sequence[Chart]) -> Markup:
    """The charts beside one another; empty without any."""
    return macro("charts_of", charts=charts) if charts else Markup("")


@dataclass(frozen=True, slots=True)
class Tile:
    """A large number of a page, over a gauge from 0 to 100.

    Attributes:
        title: What it is.
        value: As it is written; None where it is not known.
        note: What stands below it.
        width: How far the gauge is filled; None without a gauge.
        tick: Where a mark stands on the gauge.
        reach: Start and length of an interval on the gauge.
        explanation: For a pointer.
    """

    title: str
    value: str | None
    note: str
    width: float | None = None
    tick: float | None = None
    reach: tuple[float, float] | None = None
    explanation: str = ""


def write_page(path: Path, **values: Any) -> None:
    """Write a page; ``values`` are those of the macro ``page``, a section being its anchor, title and HTML."""
    page = macro("page", **values)
    write_file(path, page.encode("utf-8", "replace").decode())  # a lone surrogate cannot be written


@cache
def _template(name: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).module
