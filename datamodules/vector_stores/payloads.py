"""Texts of a payload: the object that a store keeps beside a vector.

flat_texts({"a": 1, "b": {"c": "hi"}})    # {"b.c": "hi"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEEPEST = 8  # levels of objects within each other


def flat_texts(payload: Mapping[str, Any] | None, field: str | None = None) -> dict[str, str]:
    """The texts of a payload by dotted name; only ``field``, where one is given."""
    found: dict[str, str] = {}
    left: list[tuple[str, Any, int]] = [("", payload or {}, 0)]
    while left:
        name, value, depth = left.pop()
        if isinstance(value, str):
            found[name] = value
        elif isinstance(value, Mapping) and depth < _DEEPEST:
            left += [(f"{name}.{key}" if name else str(key), one, depth + 1) for key, one in value.items()]
    return found if field is None else {field: found[field]} if field in found else {}
