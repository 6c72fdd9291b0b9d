"""One text of a data set with its labels.

Example:

    Example(index=7, text="My name is Ada and I was born in Paris.",
            spans=(Span(11, 14, "first_name"), Span(33, 38, "city")))

This module is at the bottom of the import order: data modules create examples, defenses and metrics read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "valid", "test"]

# A control character that starts no text, so that written ids cannot be confused with a text of digits.
_IDS = "\x02ids"
_WRITTEN = re.compile(rf"{_IDS}((?: \d+)+)")


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled part of a text: characters ``start`` (included) to ``end`` (excluded)."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Example:
    """One text with its position in its split.

    Attributes:
        index: Position in the split, 0-based; identifies the example in predictions, noise and sampling.
        text: The text that is embedded; also the reference, unless ``original`` is set.
        spans: Entities in the reference, in order of their start.
        language: ISO 639-1 code, if known.
        attributes: Labels of the whole text, such as ``{"birthPlace": "Paris"}``.
        group: The subject or source of the text, such as a person's name; a group never spans two splits.
        context: The preceding turns of the conversation; an attacker may know it, the embedder never receives it.
        original: The reference if ``text`` is a modified version of it, such as a lengthened one; else None.
        tokens: Token ids, if the example is the input of a language model; ``text`` is then only their decoding.
        token_labels: The entity label of each of ``tokens``, None outside entities; empty if unknown.
    """

    index: int
    text: str
    spans: tuple[Span, ...] = ()
    language: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    context: str | None = None
    original: str | None = None
    tokens: tuple[int, ...] | None = None
    token_labels: tuple[str | None, ...] = ()

    @property
    def query(self) -> str:
        """The embedder's input, which also identifies the example: the text, or its ids as written by written_ids."""
        return self.text if self.tokens is None else written_ids(self.tokens)

    @property
    def reference(self) -> str:
        """The text that a recovered text is scored against."""
        return self.text if self.original is None else self.original


def written_ids(ids: Sequence[int]) -> str:
    """Token ids encoded as a text for the embedder and its cache; decoding and re-encoding would change most ids."""
    return " ".join([_IDS, *map(str, ids)])


def read_ids(text: str) -> list[int] | None:
    """The ids in a text written by ``written_ids``, at least one; None for any other text."""
    found = _WRITTEN.fullmatch(text)
    return None if found is None else [int(number) for number in found[1].split()]
