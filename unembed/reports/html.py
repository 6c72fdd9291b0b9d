"""HTML pages: one file each, without scripts or network access, built from the macros of ``*.html.jinja``.

Recovered text is untrusted: it enters a page only through autoescaping templates or ``Markup.format``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unembed import __version__
from unembed.core.atomic_files import write_file, write_json
from unembed.reports.charts import Chart
from unembed.reports.tables import Table, write_markdown


def macro(name: str, template: str = "report.html.jinja", **values: Any) -> Markup:
    """Render a macro of a template; each section of a page is one."""
    return Markup(getattr(_template(template), name)(**values))


def charts_of(charts: Sequence[Chart]) -> Markup:
    """The charts side by side; empty for none."""
    return macro("charts_of", charts=charts) if charts else Markup("")


@dataclass(frozen=True, slots=True)
class Tile:
    """A large number with a gauge from 0 to 100.

    Attributes:
        title: Name of the number.
        value: Formatted value; None if unknown.
        note: Text below it.
        width: Filled part of the gauge in percent; None for no gauge.
        tick: Position of a mark on the gauge.
        reach: Start and length of an interval on the gauge.
        explanation: Tooltip.
    """

    title: str
    value: str | None
    note: str
    width: float | None = None
    tick: float | None = None
    reach: tuple[float, float] | None = None
    explanation: str = ""


def write_page(path: Path, **values: Any) -> None:
    """Write a page; ``values`` are the arguments of the macro ``page``. A section is its anchor, title and HTML."""
    page = macro("page", **values)
    write_file(path, page.encode("utf-8", "replace").decode())  # replace lone surrogates, which cannot be encoded


def write(
    output: Path, page: Mapping[str, Any], tables: Sequence[Table], values: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write tables as a page, as Markdown and, with ``values``, as JSON.

    Args:
        output: Path of the files without their endings.
        page: Arguments of the macro ``page``; its ``lead`` is the first paragraph of the Markdown, too.
        tables: For the Markdown.
        values: For the JSON.

    Returns:
        The paths of the files.
    """
    text, html, plain = (output.with_name(output.name + ending) for ending in (".md", ".html", ".json"))
    write_markdown(text, tables, page["lead"])
    write_page(html, **page)
    if values is None:
        return [text, html]
    write_json(plain, values)
    return [text, html, plain]


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
    environment.globals["version"] = __version__
    return environment.get_template(name).module
