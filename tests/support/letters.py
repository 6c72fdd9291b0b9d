"""Embedders that count letters: instant, exact, and near texts lie near each other. And texts for them."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import torch
from torch import Tensor

from unembed.embedders.base import fingerprint_of

NAMES, CITIES = ["ada", "bob", "cleo", "dan"], ["paris", "rome", "oslo", "lima"]
TEXTS = [f"{name} lives in {city} ." for name in NAMES for city in CITIES]  # each has FewLetters of its own
FEW = "abcdelmnoprs"


class Letters:
    """Counts of the 26 letters, small or large; no vector is zero. Remembers what it was asked."""

    letters = ascii_lowercase
    dimension = len(letters)
    max_tokens = 64
    fingerprint = fingerprint_of(kind="letters", used="tests")

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Tensor:
        self.asked += texts
        counts = [[0.1 + text.lower().count(letter) for letter in self.letters] for text in texts]
        return torch.tensor(counts).reshape(len(texts), len(self.letters))


class LettersAndSigns(Letters):
    """Counts of letters, spaces and full stops: texts of other lengths have other vectors."""

    letters = ascii_lowercase + " ."
    dimension = len(letters)
    fingerprint = fingerprint_of(kind="letters and signs", used="tests")


class FewLetters:
    """Counts of the twelve letters from which the names and cities of the tests can be read; no vector is zero."""

    dimension = len(FEW)
    max_tokens = 64
    fingerprint = fingerprint_of(kind="few letters", used="tests")

    def embed(self, texts: Sequence[str]) -> Tensor:
        counts = torch.tensor([[float(text.count(letter)) for letter in FEW] for text in texts])
        return counts + 0.1 * (counts.sum(dim=1, keepdim=True) == 0)


class Rotated(LettersAndSigns):
    """LettersAndSigns of another maker: multiplied by a fixed random matrix, in a space of 20 more dimensions."""

    dimension = LettersAndSigns.dimension + 20
    fingerprint = fingerprint_of(kind="rotated letters and signs", used="tests")

    def embed(self, texts: Sequence[str]) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return super().embed(texts) @ torch.randn(LettersAndSigns.dimension, self.dimension, generator=generator)
