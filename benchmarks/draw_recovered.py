"""Draw what a run recovered: a few references with their predictions, recovered words marked, as one SVG file.

    python benchmarks/draw_recovered.py --run runs/<run> --output docs/recovered.svg
    python benchmarks/draw_recovered.py --run runs/<run> --output docs/recovered.svg --index 3 17 256 1801

Without ``--index`` the predictions are sorted from best to worst and cut into four equal parts; the middle one of each
part is drawn, so the picture flatters nobody. The picture has its own background, light or dark as the reader's system.
"""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import yaml
from measuring import command_line

from unembed.core.atomic_files import write_file
from unembed.metrics.statistics import evenly
from unembed.metrics.text import sentence_bleu
from unembed.reports.results import parts
from unembed.runs import layout

PAIRS, COLUMNS = 4, 78
CHARACTER, LINE, LEFT, LABEL = 8.4, 22, 28, 92  # pixels; text is monospaced, and every part is set to its exact width
WIDTH = round(LEFT * 2 + LABEL + COLUMNS * CHARACTER)
STYLE = """
  .panel { fill: #ffffff; stroke: #d0d7de } .mark { fill: #c9f0d1 } .rule { stroke: #d8dee4 }
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
  .quiet { fill: #59636e } .wrong { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 2 2 }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #151b23; stroke: #3d444d } .mark { fill: #1f5b33 } .rule { stroke: #3d444d }
    text { fill: #f0f6fc } .quiet { fill: #9198a1 } .wrong { stroke: #f0883e }
  }
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a run directory")
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    parser.add_argument("--index", type=int, nargs="+", help="indices of the examples to draw")
    options = parser.parse_args(argv)

    with (options.run / layout.PREDICTIONS).open(encoding="utf-8") as lines:
        rows = {row["index"]: row for row in map(json.loads, lines)}
    chosen = [(str(rows[i]["reference"]), str(rows[i]["prediction"])) for i in options.index or across_quality(rows)]
    choices = yaml.safe_load((options.run / layout.CONFIG).read_text(encoding="utf-8"))["choices"]
    title = f"attack={choices['attack']} embedder={choices['embedder']} datamodule={choices['datamodule']}"
    write_file(options.output, picture(chosen, title))


def across_quality(rows: dict[int, dict[str, str]]) -> list[int]:
    """The middle example of each quarter, best quarter first, by sentence BLEU."""
    ranked = sorted(rows, key=lambda i: (-sentence_bleu(rows[i]["reference"], rows[i]["prediction"]), i))
    return list(evenly(ranked, PAIRS, middle=True))


def picture(pairs: list[tuple[str, str]], title: str) -> str:
    """The SVG of (reference, prediction) pairs."""
    drawing: list[str] = []
    y = 42
    drawing.append(word(LEFT, y, title, "quiet"))
    drawing.append(legend(y + LINE))
    y += LINE + 14
    for reference, prediction in pairs:
        drawing.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{y}" y2="{y}"/>')
        y += 8
        for name, text, other in (("text", reference, None), ("read back", prediction, reference)):
            drawing.append(word(LEFT, y + LINE, name, "quiet"))
            for line in lines_of(text, other):
                y += LINE
                drawing += drawn(line, y)
        y += 18
    texts = " ".join(f"Text: {reference} Read back: {prediction}" for reference, prediction in pairs)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" role="img">'
    panel = f'<rect class="panel" x=".5" y=".5" width="{WIDTH - 1}" height="{y - 1}" rx="10"/>'
    about = f"<title>Texts read back from their embeddings</title><desc>{html.escape(texts)}</desc>"
    return "\n".join([head, about, f"<style>{STYLE}</style>", panel, *filter(None, drawing), "</svg>"]) + "\n"


def lines_of(text: str, other: str | None) -> list[list[tuple[str, bool | None]]]:
    """A text cut into lines of parts, each with whether ``other`` has it; None: not a word, or nothing to mark."""
    text = " ".join(text.split())
    states: list[bool | None] = [None] * len(text)
    if other is not None:
        marked = parts(text, other, limit=len(text))
        states = [part.recovered or (False if c.isalnum() else None) for part in marked for c in part.text]
    lines, place = [], 0
    for line in textwrap.wrap(text, COLUMNS) or [""]:
        place = text.index(line, place)
        runs = groupby(zip(line, states[place:], strict=False), key=lambda pair: pair[1])
        lines.append([("".join(character for character, _ in run), state) for state, run in runs])
        place += len(line)
    return lines


def drawn(line: list[tuple[str, bool | None]], y: int) -> list[str]:
    """A line: recovered words on a coloured ground, wrong ones underlined: colour alone says little."""
    shapes = []
    x = float(LEFT + LABEL)
    for text, state in line:
        width, left = len(text) * CHARACTER, x - 1
        if state is True:
            shapes.append(
                f'<rect class="mark" x="{left:.1f}" y="{y - 15}" width="{width + 2:.1f}" height="20" rx="3"/>'
            )
        if state is False:
            shapes.append(f'<line class="wrong" x1="{x:.1f}" x2="{x + width:.1f}" y1="{y + 4}" y2="{y + 4}"/>')
        shapes.append(word(x, y, text))
        x += width
    return shapes


def word(x: float, y: float, text: str, style: str = "") -> str:
    """A part of monospaced text, set to its exact width whatever font the reader has."""
    kind = f' class="{style}"' if style else ""
    width = f'textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"'
    return f'<text{kind} x="{x:.1f}" y="{y}" {width}>{html.escape(text)}</text>' if text.strip() else ""


def legend(y: int) -> str:
    """What the marks mean."""
    x = LEFT + LABEL
    ground, _ = drawn([("recovered", True)], y)
    _, underline, _ = drawn([(" " * 11, None), ("not in the text", False)], y)
    names = [word(x, y, "recovered"), word(x + 11 * CHARACTER, y, "not in the text", "quiet")]
    return "\n".join([ground, underline, *names])


if __name__ == "__main__":
    main()
