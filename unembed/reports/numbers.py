"""Formatting of numbers; this module imports nothing heavy.

shown("percent", 61.04)                # 61.0 %
interval("percent", (58.9, 63.1))      # 58.9 to 63.1
signed("cosine", 0.0312)               # +0.031
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DASH = "–"  # noqa: RUF001
_SPACE = "\u00a0"  # non-breaking space between a number and its unit
_LARGEST = 1e300  # larger integers may not fit a float
_SIZES = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def number(metrics: Mapping[str, object] | None, key: str) -> float | None:
    """The value under ``key`` if it is a finite number, else None (absent, null, not a number, text)."""
    value = (metrics or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST < value < _LARGEST:
        return None
    return float(value)


def shown(kind: str, value: object) -> str:
    """Format ``value`` for people; null becomes a dash.

    Args:
        kind: Its unit: one of ``Unit`` in metrics/base.py; ``moment``, a short time in seconds; ``share``, 0 to 1,
            never rounded to 0 or 100 %; ``size``, a large count in a few characters.
        value: A number; anything else is shown as text.
    """
    if value is None:
        return DASH
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not -_LARGEST < value < _LARGEST:
        return "not a number"
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "seconds":
        return duration(value)
    if kind == "percent":
        return f"{value:.1f}{_SPACE}%"
    if kind == "share":
        return _share(value)
    if kind == "size":
        unit, name = next((pair for pair in _SIZES if value >= pair[0]), (1, ""))
        return f"{value / unit:.3g}{_SPACE}{name}" if name else str(value)
    if kind in ("cosine", "moment"):
        return f"{value:.3f}"
    return f"{value:.1f}" if kind == "score" else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def interval(kind: str, ends: Sequence[float]) -> str:
    """Format an interval; the percent sign is left to the value beside it."""
    low, high = (shown(kind, end) for end in ends)
    unit = f"{_SPACE}%"
    return f"{low.removesuffix(unit)} to {high if kind == 'share' else high.removesuffix(unit)}"


def signed(kind: str, value: float) -> str:
    """Format a difference with its sign; zero has no minus."""
    digits = {"cosine": 3, "count": 0}.get(kind, 1)
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # adding 0.0 turns -0.0 into 0.0


def duration(seconds: float) -> str:
    """Format seconds: ``196.4`` as ``3 min 16 s``; below ten seconds with one decimal."""
    if seconds < 10:
        return f"{seconds:.1f}{_SPACE}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}{_SPACE}s"
    if whole < 3600:
        return f"{whole // 60}{_SPACE}min {whole % 60}{_SPACE}s"
    return f"{whole // 3600}{_SPACE}h {whole % 3600 // 60}{_SPACE}min"


def in_words(percent: float) -> str:
    """A percentage in words, never rounded to the extremes: only 0 is "none" and only 100 is "all"."""
    if percent <= 0:
        return "none"
    if percent >= 100:
        return "all"
    rounded = round(percent)
    if rounded == 0:
        return f"less than 1{_SPACE}%"
    return f"more than 99{_SPACE}%" if rounded == 100 else f"{rounded}{_SPACE}%"


def counted(number: int, thing: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _share(value: float) -> str:
    if 0 < value < 0.0005:
        return f"< 0.1{_SPACE}%"
    if 0.9995 < value < 1:
        return f"> 99.9{_SPACE}%"
    return f"{100 * value:.{0 if value >= 0.0995 or value == 0 else 1}f}{_SPACE}%"
