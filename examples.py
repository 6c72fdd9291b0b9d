"""One text of a data set, and what is known about it.

Example:

    Example(index=7, text="My name is Ada and I was born in Paris.",
            spans=(Span(11, 14, "first_name"), Span(33, 38, "city")))

This module stands at the bottom of the import order: data modules make examples, defenses and metrics read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "valid", "test"]

# A control character that no text begins with: ids and a text of digits are two things.
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
        text: The characters that the embedder sees; the reference too, unless there is an ``original``.
        spans: Entities in the reference, in order of their start.
        language: ISO 639-1 code, where it is known.
        attributes: Labels of the whole text, such as ``{"birthPlace": "Paris"}``.
        group: What the text is about or comes from, such as a person's name; no group stands in two splits.
        context: What was said before the text in its conversation; an attacker may know it, the embedder never sees it.
        original: What ``text`` was made from, by lengthening it for one; None where it stands as it was written.
        tokens: Ids of a language model's input, where they are what was put in: ``text`` only shows them.
        token_labels: The label of the entity that each of ``tokens`` lies in, None outside; empty where unknown.
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
        """What an embedder is asked, and what tells the example from others: the text, or its token ids written out."""
        return self.text if self.tokens is None else written_ids(self.tokens)

    @property
    def reference(self) -> str:
        """What metrics compare a recovered text with."""
        return self.text if self.original is None else self.original


def written_ids(ids: Sequence[int]) -> str:
    """Token ids in place of a text, for the embedder and its cache: most ids do not survive decoding and encoding."""
    return " ".join([_IDS, *map(str, ids)])


def read_ids(text: str) -> list[int] | None:
    """The ids that ``written_ids`` wrote, at least one; None where it is a text."""
    found = _WRITTEN.fullmatch(text)
    return None if found is None else [int(number) for number in found[1].split()]
