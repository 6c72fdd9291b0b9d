"""Numbers as a person reads them; nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Mapping

_SPACE = "\u00a0"  # a number and its unit stay on one line
_LARGEST = 1e300  # beyond, an integer may have no float


def number(metrics: Mapping[str, object] | None, key: str) -> float | None:
    """The value under ``key`` if it is a finite number, else None (absent, null, not a number, text)."""
    value = (metrics or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST < value < _LARGEST:
        return None
    return float(value)


def shown(kind: str, value: object) -> str:
    """``value`` as a person reads it; null is a dash."""
    if value is None:
        return "–"  # noqa: RUF001
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
    if kind in ("cosine", "moment"):  # a moment is seconds of which there are few
        return f"{value:.3f}"
    return f"{value:.1f}" if kind == "score" else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def duration(seconds: float) -> str:
    """``196.4`` as ``3 min 16 s``; below ten seconds with one decimal."""
    if seconds < 10:
        return f"{seconds:.1f}{_SPACE}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}{_SPACE}s"
    if whole < 3600:
        return f"{whole // 60}{_SPACE}min {whole % 60}{_SPACE}s"
    return f"{whole // 3600}{_SPACE}h {whole % 3600 // 60}{_SPACE}min"


def share(percent: float) -> str:
    """A percentage in words that never round to nothing or to all: only 0 is "none" and only 100 is "all"."""
    if percent <= 0:
        return "none"
    if percent >= 100:
        return "all"
    rounded = round(percent)
    if rounded == 0:
        return f"less than 1{_SPACE}%"
    return f"more than 99{_SPACE}%" if rounded == 100 else f"{rounded}{_SPACE}%"
