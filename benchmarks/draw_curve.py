"""Draw exact match and the recovery of unseen names against queries a text, from the points of lexicon_curve.py.

    python benchmarks/draw_curve.py --points curve.json --output docs/lexicon.svg
    python benchmarks/draw_curve.py --points curve.json --output docs/lexicon.svg \\
        --other 'Vec2Text' '1.3:73.4' '8.0:82.8'

``--other`` adds points of exact match that were measured elsewhere, as queries:percent. The picture has its own
background, light or dark as the reader's system.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from measuring import command_line

from unembed.core.atomic_files import write_file
from unembed.reports.svg import Frame, Point, dot, text

WIDTH, HEIGHT, LEFT, KEY = 430.0, 320.0, 20, 44
PANELS = {"exact_folded": "texts that come back exactly, %", "unseen_entities": "names that training never showed, %"}
TICKS = (0, 1, 3, 10, 30, 100, 300)
NOTHING = 0.35  # where no query stands on the logarithmic axis
NAMES = {
    "nearest": "nearest training text",
    "attack": "GEIA",
    "attack + reranking": "GEIA, reranked",
    "nearest + lexicon": "nearest + lexicon search",
    "attack + lexicon": "GEIA + lexicon search",
    "attack + lexicon + white box": "GEIA + lexicon + white box",
}
STYLE = """
  svg { font-family: system-ui, sans-serif } .panel { fill: #ffffff; stroke: #d0d7de }
  text { fill: #59636e; font-size: 12px } .key { fill: #1f2328; font-size: 13px }
  .end { text-anchor: end } .middle { text-anchor: middle } .grid { stroke: #d8dee4 } .axis { stroke: #59636e }
  .line { fill: none; stroke-width: 2.2; stroke-linejoin: round } .fill { stroke: none }
  .line.s0 { stroke: #57606a } .fill.s0 { fill: #57606a } .line.s1 { stroke: #0969da } .fill.s1 { fill: #0969da }
  .line.s2 { stroke: #8250df } .fill.s2 { fill: #8250df } .line.s3 { stroke: #9a6700 } .fill.s3 { fill: #9a6700 }
  .line.s4 { stroke: #1a7f37 } .fill.s4 { fill: #1a7f37 } .line.s5 { stroke: #cf222e } .fill.s5 { fill: #cf222e }
  .line.s6 { stroke: #bf3989 } .fill.s6 { fill: #bf3989 }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #151b23; stroke: #3d444d } text { fill: #9198a1 } .key { fill: #f0f6fc } .grid { stroke: #3d444d }
    .line.s0 { stroke: #9198a1 } .fill.s0 { fill: #9198a1 } .line.s1 { stroke: #58a6ff } .fill.s1 { fill: #58a6ff }
    .line.s2 { stroke: #bc8cff } .fill.s2 { fill: #bc8cff } .line.s3 { stroke: #d29922 } .fill.s3 { fill: #d29922 }
    .line.s4 { stroke: #3fb950 } .fill.s4 { fill: #3fb950 } .line.s5 { stroke: #ff7b72 } .fill.s5 { fill: #ff7b72 }
    .line.s6 { stroke: #f778ba } .fill.s6 { fill: #f778ba }
  }
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (queries, percent) of one attack in each panel."""

    name: str
    style: str
    points: dict[str, list[Point]]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--points", type=Path, required=True, help="the file of lexicon_curve.py")
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    parser.add_argument("--other", nargs="+", action="append", default=[], help="a name, and its points")
    options = parser.parse_args(argv)
    rows = json.loads(options.points.read_text(encoding="utf-8"))
    curves = list(of_points(rows))
    for number, (name, *given) in enumerate(options.other):
        pairs = [point.split(":") for point in given]
        exact = [(float(queries), float(share)) for queries, share in pairs]
        curves.append(Curve(name, f"s{6 - number}", {"exact_folded": exact}))
    write_file(options.output, picture(curves, rows))


def of_points(rows: Sequence[dict[str, Any]]) -> Iterator[Curve]:
    """The attacks that were measured, in the order of the key."""
    for number, (line, name) in enumerate(NAMES.items()):
        own = sorted((row for row in rows if row["line"] == line), key=lambda row: row["queries"])
        points = {
            panel: [(row["queries"], 100 * row[panel][0] / row[panel][1]) for row in own if row[panel][1]]
            for panel in PANELS
        }
        if own:
            yield Curve(name, f"s{number}", points)


def picture(curves: Sequence[Curve], rows: Sequence[dict[str, Any]]) -> str:
    """The SVG: two panels, and the key below them."""
    parts = [panel(number, key, curves) for number, key in enumerate(PANELS)]
    lines = math.ceil(len(curves) / 3)
    for number, curve in enumerate(curves):
        x, y = LEFT + 34 + 285 * (number % 3), HEIGHT + 34 + 22 * (number // 3)
        parts += [dot(x, y - 4, 5, curve.style), text(x + 12, y, curve.name, "key")]
    width, height = LEFT * 2 + WIDTH * 2, HEIGHT + 26 + 22 * lines + 12
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
    about = f"<title>Exact match and unseen names against queries, {rows[0]['settings']['targets']} texts</title>"
    ground = f'<rect class="panel" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="10"/>'
    return "\n".join([head, about, f"<style>{STYLE}</style>", ground, *parts, "</svg>"]) + "\n"


def panel(number: int, key: str, curves: Sequence[Curve]) -> str:
    """One plot with its axes."""
    frame = Frame((math.log10(NOTHING) - 0.1, math.log10(600)), (0, 100), WIDTH, HEIGHT)
    parts: list[Markup] = frame.axes("queries a text", PANELS[key], x_ticks=0)
    parts += [text(frame.x(at(tick)), frame.floor + 17, str(tick), "middle") for tick in TICKS]
    for curve in curves:
        points = [(at(queries), share) for queries, share in curve.points.get(key, [])]
        if len(points) > 1:
            parts.append(frame.curve(points, curve.style))
        parts += [dot(frame.x(x), frame.y(y), 3.4, curve.style, f"{curve.name}: {y:.1f} %") for x, y in points]
    place = f'<svg x="{LEFT + number * WIDTH:g}" y="10" width="{WIDTH:g}" height="{HEIGHT:g}" '
    return str(frame.svg(PANELS[key], parts)).replace("<svg ", place, 1)


def at(queries: float) -> float:
    """The place of a number of queries on the logarithmic axis."""
    return math.log10(max(queries, NOTHING))


if __name__ == "__main__":
    main()
