"""Embedders that count letters: instant, exact, and near texts lie near each other."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import torch
from torch import Tensor

from embedders.base import fingerprint_of

FEW = "abcdelmnoprs"


class Letters:
    """Counts of the 26 letters; no vector is zero."""

    dimension = len(ascii_lowercase)
    max_tokens = 64
    fingerprint = fingerprint_of(kind="letters", used="tests")

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[0.1 + text.count(letter) for letter in ascii_lowercase] for text in texts])


class FewLetters:
    """Counts of the twelve letters from which the names and cities of the tests can be read; no vector is zero."""

    dimension = len(FEW)
    max_tokens = 64
    fingerprint = fingerprint_of(kind="few letters", used="tests")

    def embed(self, texts: Sequence[str]) -> Tensor:
        counts = torch.tensor([[float(text.count(letter)) for letter in FEW] for text in texts])
        return counts + 0.1 * (counts.sum(dim=1, keepdim=True) == 0)
