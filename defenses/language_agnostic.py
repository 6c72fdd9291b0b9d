"""defense=language_agnostic: the mean vector of a text's language is subtracted (Chen et al. 2024, appendix I.2).

    defense=language_agnostic                           # each example has a language
    defense=language_agnostic defense.language=en       # all texts are in English
    defense=language_agnostic defense.mean=coordinates  # each vector's own mean, as in the authors' code

Libovicky et al. 2020 interpret the mean of a language's vectors as the language, and the remainder as the meaning. The
code that Chen et al. published subtracts another mean: from each vector the mean of its own coordinates, one number,
which depends on no language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role


class LanguageAgnostic(BaseDefense):
    """Subtracts a mean from each vector.

    Args:
        language: Language of all texts, overriding the examples'; None uses each example's language.
        mean: ``language`` subtracts the mean training vector of the text's language; ``coordinates`` subtracts the mean
            of the vector's own coordinates from each of them, and needs neither languages nor fitting.
    """

    def __init__(self, language: str | None = None, mean: Literal["language", "coordinates"] = "language") -> None:
        self.language, self.mean = language, mean
        self.means: dict[str, Tensor] = {}

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Compute the mean of each language's training vectors, (n, d); nothing if ``mean`` is ``coordinates``."""
        if self.mean == "coordinates":
            return
        rows: dict[str, list[int]] = {}
        for row, example in enumerate(examples):
            rows.setdefault(self._language(example, "train"), []).append(row)
        self.means = {language: embeddings[own].double().mean(dim=0).float() for language, own in sorted(rows.items())}

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Vectors without the mean of their language, or of their coordinates, (n, d) -> (n, d)."""
        if self.mean == "coordinates":
            # in float64, so that the mean of a row does not depend on the other rows
            return embeddings - embeddings.double().mean(dim=1, keepdim=True).to(embeddings)
        return embeddings - torch.stack([self._mean(example, role) for example in examples]).to(embeddings)

    def state(self) -> dict[str, Tensor]:
        """The mean of each language, (d,)."""
        return dict(self.means)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if any(mean.ndim != 1 or not mean.is_floating_point() for mean in state.values()):
            raise InputError("defense=language_agnostic: what was estimated is not one vector a language")
        self.means = dict(state)

    def _mean(self, example: Example, role: Role) -> Tensor:
        language = self._language(example, role)
        if language not in self.means:
            raise InputError(
                f"defense=language_agnostic: {role} text {example.index} is in {language!r}, and no training text is, "
                f"so that there is no mean to subtract; {did_you_mean(language, self.means)}"
            )
        return self.means[language]

    def _language(self, example: Example, role: Role) -> str:
        language = example.language if self.language is None else self.language
        if language is None:
            which = "a text that the attack wrote" if role == "hypothesis" else f"{role} text {example.index}"
            raise InputError(
                f"defense=language_agnostic: {which} has no language; name the field that holds it by "
                "datamodule.language_field, or the language of all texts by defense.language"
            )
        return language
