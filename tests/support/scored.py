"""What scoring is given: spans of a text, and a test split without a data module; and what it should give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from unembed.attacks.refine.refining import Refiners
from unembed.core.examples import Example, Span
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import score


def spans_of(text: str, *entities: tuple[str, str]) -> tuple[Span, ...]:
    """A span for each (value, label), at the value's next place in ``text``."""
    spans, start = [], 0
    for value, label in entities:
        start = text.index(value, start)
        spans.append(Span(start, start + len(value), label))
        start += 1
    return tuple(spans)


def check_scores(rows: Sequence[Scored], expected: Mapping[str, float | None]) -> None:
    """The metrics of ``rows`` are ``expected``: names, with a space between them, and the value that each has."""
    scores = score(rows)
    for keys, value in expected.items():
        for key in keys.split():
            assert scores[key] == (None if value is None else pytest.approx(value, rel=1e-9)), key


class HeldOut:
    """A data module whose test split is given, and a cache whose vectors are never asked for."""

    tokenizer = "minilm"
    hypotheses = "clean"
    refiners, oracle = Refiners({}), None  # of an attack

    def __init__(self, *examples: Example) -> None:
        self._examples = list(examples)

    def examples(self, split: str) -> ArrowExamples:
        return to_arrow(self._examples)

    def vectors(self, split: str, indices: Sequence[int]) -> torch.Tensor:
        return torch.ones(len(indices), 2)

    clean_vectors = vectors  # there is no defense

    def fill(self, texts: Sequence[str], purpose: str) -> None:
        assert purpose == "scoring"

    def embed(self, texts: Sequence[str], purpose: str) -> torch.Tensor:
        return torch.ones(len(texts), 2)

    def tokens(self, texts: Sequence[str]) -> None:
        return None
