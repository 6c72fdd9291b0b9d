"""defense=hadamard: secret signs, a Hadamard transform and a secret order, in turn.

    UNEMBED_HADAMARD_KEY=$(openssl rand -hex 32) python evaluate.py run=<dir> defense=hadamard

Each round is x -> P H D x, with random signs D, the orthonormal Walsh-Hadamard transform H and a random permutation P
(Ailon and Chazelle 2006 mix coordinates this way). It takes d log d operations where a dense rotation takes d^2, and is
a rotation all the same: lengths and angles stay, and so does what an attacker of a rotation finds. The numbers of
dimensions are cut into powers of two, 384 into 256 and 128, which the permutations mix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Role
from unembed.defenses.permutation import secret_order
from unembed.defenses.rotation import read_key, stretched


def hadamard(vectors: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of rows (n, 2^k), and of blocks of that kind for another width."""
    count, width = vectors.shape
    block = 1 << (width.bit_length() - 1)
    mixed, half = vectors[:, :block], 1
    while half < block:
        pairs = mixed.reshape(count, -1, 2, half)
        mixed = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], dim=2)
        half *= 2
    mixed = mixed.reshape(count, block) / block**0.5
    return mixed if block == width else torch.cat([mixed, hadamard(vectors[:, block:])], dim=1)


class Hadamard(BaseDefense):
    """A rotation of vectors by signs, sums and orders; the key is read as that of defense=rotation is.

    Args:
        rounds: How often; after one, a block of dimensions still holds what it held.
        key_env: The environment variable that holds the key; read where there is no ``key_file``.
        key_file: A file that holds the key.
    """

    holds = (
        "against an attacker with vectors alone and no text of their kind; texts of their own that were locked undo it"
    )

    def __init__(
        self, rounds: PositiveInt = 3, key_env: str = "UNEMBED_HADAMARD_KEY", key_file: str | None = None
    ) -> None:
        self.rounds = rounds
        self._key = stretched(read_key(key_env, key_file), b"unembed hadamard", 32)

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        width, mixed = embeddings.shape[1], embeddings
        for number in range(self.rounds):
            signs = 1 - 2 * (secret_order(self._key, width, b"signs %d" % number) % 2)
            mixed = hadamard(mixed * signs.to(mixed))[:, secret_order(self._key, width, b"order %d" % number)]
        return mixed
