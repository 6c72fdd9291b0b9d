"""The audit's own chart: a share for each of several named things, as bars from 0 to 100 % with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from reports.audit.findings import Share
from reports.svg import WIDTH

LINE, BAR, MARGIN, RIGHT = 36.0, 9.0, 4.0, 4.0  # units of the drawing
NAME = 46  # characters of a name that fit beside its value


def bars(title: str, shares: Sequence[tuple[str, Share]]) -> Markup:
    """One bar a share, in the order given; the first, what the others are compared with, in another colour."""
    parts = []

    def x(value: float) -> float:
        return round(MARGIN + value * (WIDTH - MARGIN - RIGHT), 1)

    for number, (name, share) in enumerate(shares):
        base = LINE * number
        name = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
        value = f"{100 * share.value:.0f} %"
        parts.append(Markup('<text class="label" x="{}" y="{:.1f}">{}</text>').format(MARGIN, base + 13, name))
        parts.append(
            Markup('<text class="tick end" x="{}" y="{:.1f}">{}</text>').format(WIDTH - RIGHT, base + 13, value)
        )
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>').format(
                x(0), x(1), y=base + 18 + BAR / 2
            )
        )
        parts.append(
            Markup('<rect class="fill series{}" x="{}" y="{:.1f}" width="{:.1f}" height="{}" rx="2"/>').format(
                1 if number == 0 else 0, x(0), base + 18, max(1.0, x(share.value) - x(0)), BAR
            )
        )
        if share.high > share.low:
            parts.append(
                Markup('<line class="reach" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>').format(
                    x(share.low), x(share.high), y=base + 18 + BAR / 2
                )
            )
    return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, LINE * len(shares), title, Markup("").join(parts)
    )
