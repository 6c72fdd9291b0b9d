"""Charts beside each other in one SVG file, with its own colours, light or dark as the reader's system."""

from __future__ import annotations

import math
from collections.abc import Sequence

import measuring  # noqa: F401  the packages are found
from markupsafe import Markup

from unembed.reports.svg import dot, text

SERIES = (("#57606a", "#9198a1"), ("#0969da", "#58a6ff"), ("#8250df", "#bc8cff"), ("#9a6700", "#d29922"),
          ("#1a7f37", "#3fb950"), ("#cf222e", "#ff7b72"), ("#bf3989", "#f778ba"))  # fmt: skip
MARGIN, KEYS_A_ROW, KEY_HEIGHT = 20, 3, 22


def style() -> str:
    colours = [
        "".join(
            f" .line.series{n} {{ stroke: {pair[mode]} }} .fill.series{n} {{ fill: {pair[mode]} }}"
            for n, pair in enumerate(SERIES)
        )
        for mode in (0, 1)
    ]
    return f"""
  svg {{ font-family: system-ui, sans-serif }} .panel {{ fill: #ffffff; stroke: #d0d7de }}
  text {{ fill: #59636e; font-size: 12px }} .key {{ fill: #1f2328; font-size: 13px }}
  .end {{ text-anchor: end }} .middle {{ text-anchor: middle }} .grid {{ stroke: #d8dee4 }} .axis {{ stroke: #59636e }}
  .line {{ fill: none; stroke-width: 2; stroke-linejoin: round }} .fill {{ stroke: none }}{colours[0]}
  @media (prefers-color-scheme: dark) {{
    .panel {{ fill: #151b23; stroke: #3d444d }} text {{ fill: #9198a1 }} .key {{ fill: #f0f6fc }}
    .grid {{ stroke: #3d444d }}{colours[1]}
  }}
"""


def beside(
    title: str, charts: Sequence[Markup], width: float, height: float,
    heads: Sequence[str] = (), key: Sequence[str] = (),
) -> str:  # fmt: skip
    """An SVG file of charts that are as wide and high as said, with heads above, and names of their series below."""
    top = 28 if heads else 10
    parts = [text(MARGIN + 12 + number * width, 24, head, "key") for number, head in enumerate(heads)]
    for number, chart in enumerate(charts):
        place = f'x="{MARGIN + number * width:g}" y="{top}" width="{width:g}" height="{height:g}"'
        parts.append(Markup(str(chart).replace("<svg ", f'<svg {place} preserveAspectRatio="xMidYMin" ', 1)))
    for number, name in enumerate(key):
        x = MARGIN + 34 + len(charts) * width / KEYS_A_ROW * (number % KEYS_A_ROW)
        y = top + height + 24 + KEY_HEIGHT * (number // KEYS_A_ROW)
        parts += [dot(x, y - 4, 5, f"series{number}"), text(x + 12, y, name, "key")]
    whole = 2 * MARGIN + width * len(charts)
    high = top + height + 16 + KEY_HEIGHT * math.ceil(len(key) / KEYS_A_ROW)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole:g} {high:g}" role="img"><title>{title}</title>'
    ground = f'<rect class="panel" x=".5" y=".5" width="{whole - 1:g}" height="{high - 1:g}" rx="10"/>'
    return "\n".join([head, f"<style>{style()}</style>", ground, *parts, "</svg>"]) + "\n"
