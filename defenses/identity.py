"""defense=none: the attacker sees the unchanged vectors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role


class Identity(BaseDefense):
    """No defense."""

    perturbs = True

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        return embeddings
