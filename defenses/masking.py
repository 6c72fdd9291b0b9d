"""defense=masking: the first dimension replaced by an identifier of the text's language (Chen et al. 2024, section 6).

    defense=masking                                                     # the identifier 1 for all texts
    defense=masking 'defense.languages={en: 1, de: 2}'                  # one identifier per language
    defense=masking defense.dimensions=8 defense.scale=0.1              # 0.1 in each of the first eight dimensions

The paper numbers the languages and does not mention the scale, which matters: a vector of length 1 has coordinates of
about 1/sqrt(d), so an identifier of 1 rotates every vector far towards the same direction. Within one language and
length, the ranking of similarities changes only through the replaced coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role, check_dimensions


class Masking(BaseDefense):
    """Replaces the first dimensions.

    Args:
        dimensions: Number of leading dimensions to replace; 1 in the paper.
        scale: Factor of each identifier.
        languages: The identifier of each language; None gives all texts the identifier 1.
    """

    def __init__(
        self, dimensions: PositiveInt = 1, scale: float = 1.0, languages: Mapping[str, float] | None = None
    ) -> None:
        self.dimensions, self.scale, self.languages = dimensions, scale, languages

    def output_dimension(self, dimension: int) -> int:
        check_dimensions("masking", self.dimensions, dimension)
        return dimension

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Vectors whose first dimensions hold the identifier, (n, d) -> (n, d)."""
        masked = embeddings.clone()
        identifiers = [self._identifier(example, role) for example in examples]
        masked[:, : self.dimensions] = self.scale * torch.tensor(identifiers).to(embeddings)[:, None]
        return masked

    def _identifier(self, example: Example, role: Role) -> float:
        if self.languages is None:
            return 1.0
        if example.language is None:
            raise InputError(
                f"defense=masking, languages={dict(self.languages)}: {role} text {example.index} has no language; "
                "name the field that holds it by datamodule.language_field, or take languages=null (one for all)"
            )
        if example.language not in self.languages:
            raise InputError(
                f"defense=masking, languages={dict(self.languages)}: {role} text {example.index} is in "
                f"{example.language!r}, which has no identifier; {did_you_mean(example.language, self.languages)}"
            )
        return self.languages[example.language]
