"""defense=permutation: numbers in one secret order; or the states of a text in an order of their own.

    UNEMBED_PERMUTATION_KEY=$(openssl rand -hex 32) python evaluate.py run=<dir> defense=permutation
    ... defense=permutation defense.axis=positions          # of a language model's states, another order for each text

Yuan et al. 2023 ("Secure Transformer Inference Made Non-interactive") and others run models on permuted states, since
their layers commute with permutations. Nothing is lost: the sorted numbers of a state are those of the undefended one,
and states out of order are the same set (Thomas et al. 2025, "Hidden No More"; attack=sipit has both attacks).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_256
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role
from unembed.defenses.rotation import read_key, stretched


def secret_order(key: bytes, count: int, of: bytes = b"") -> Tensor:
    """An order of ``count`` places, (count,), evenly among all; with ``of`` another for each name."""
    stream = shake_256(key + str(count).encode() + b" " + of).digest(8 * count)
    return torch.from_numpy(np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable"))


class Permutation(BaseDefense):
    """Permutes dimensions or positions; the key is read as that of defense=rotation is, and never written.

    Args:
        axis: ``dimensions`` of any vectors, in one order for all; ``positions`` of the states of a language model.
        key_env: The environment variable that holds the key; read where there is no ``key_file``.
        key_file: A file that holds the key.
    """

    holds = (
        "against an attacker with vectors alone and no text of their kind; texts of their own that were locked undo it"
    )

    def __init__(
        self,
        axis: Literal["dimensions", "positions"] = "dimensions",
        key_env: str = "UNEMBED_PERMUTATION_KEY",
        key_file: str | None = None,
    ) -> None:
        self.axis = axis
        self.of_positions = axis == "positions"
        self._key = stretched(read_key(key_env, key_file), b"unembed permutation", 32)

    def output_dimension(self, dimension: int) -> int:
        if self.of_positions:
            raise InputError(
                "defense.axis=positions: there is one vector a text here; take defense.axis=dimensions, or "
                "embedder.observe=hidden_state embedder.positions=all"
            )
        return dimension

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Permuted vectors (n, d), or the permuted states (tokens, d) of one text."""
        if not self.of_positions:
            return embeddings[:, secret_order(self._key, embeddings.shape[1])]
        return embeddings[secret_order(self._key, len(embeddings), examples[0].query.encode(errors="replace"))]
