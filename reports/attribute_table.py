"""The attribute attack's figures of metrics.json as the lines of a table.

"attribute/birthPlace/reconstructed_macro": 41.2, ...   ->   birthPlace: 41.2 % from the recovered text, ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from reports.numbers import number, shown

PREFIX = "attribute/"
SOURCES = {
    "reconstructed": "the recovered text",
    "target": "the attacked vector",
    "original": "the original text",
}


@dataclass(frozen=True, slots=True)
class Guess:
    """How well an attribute's values were guessed from one source, ready to be shown."""

    source: str
    macro: str
    top1: str
    top_k: str


@dataclass(frozen=True, slots=True)
class AttributeLine:
    """An attribute: its name, what there was to guess, and a guess for each source."""

    name: str
    facts: str
    guesses: list[Guess]


def attribute_lines(metrics: Mapping[str, object]) -> tuple[list[AttributeLine], str]:
    """A line for each attribute in ``metrics``, and how many values its top-k figures may name ('' without a line)."""
    names = [key.removeprefix(PREFIX).removesuffix("/texts") for key in metrics if _is_first(key)]
    tops = (re.fullmatch(rf"{PREFIX}.*/reconstructed_top(\d+)", key) for key in metrics)
    k = next((found[1] for found in tops if found and found[1] != "1"), "")
    return [_line(name, metrics, k) for name in names], k


def _is_first(key: str) -> bool:
    return key.startswith(PREFIX) and key.endswith("/texts")


def _line(name: str, metrics: Mapping[str, object], k: str) -> AttributeLine:
    key = f"{PREFIX}{name}"
    texts, skipped, values, candidates = (
        shown("count", metrics.get(f"{key}/{fact}")) for fact in ("texts", "skipped", "values", "candidates")
    )
    majority = shown("percent", metrics.get(f"{key}/majority"))
    facts = f"{texts} texts ({skipped} without it), {values} values of {candidates}, the commonest {majority}"
    guesses = []
    for source, title in SOURCES.items():
        top1 = shown("percent", metrics.get(f"{key}/{source}_top1"))
        error = number(metrics, f"{key}/{source}_standard_error")
        guesses.append(
            Guess(
                source=title,
                macro=shown("percent", metrics.get(f"{key}/{source}_macro")),
                top1=top1 if error is None else f"{top1} ± {error:.1f}",
                top_k=shown("percent", metrics.get(f"{key}/{source}_top{k}")) if k else "",
            )
        )
    return AttributeLine(name, facts, guesses)
