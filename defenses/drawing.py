"""Random numbers of one example: the same whatever batch it stands in, whatever process draws them.

    numbers("noise", seed=0, example=Example(7, "my name is ada ."), role="test", epoch=None).standard_normal(384)

They are drawn from (purpose, seed, role, epoch, index, text). The text stands for the data set, so that row 7 of one
set does not share its noise with row 7 of another; the role keeps a query from sharing that of a document.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from defenses.base import Role
from examples import Example


def numbers(purpose: str, seed: int, example: Example, role: Role, epoch: int | None) -> np.random.Generator:
    """A generator of its own for an example in a role, and in an epoch of training; ``purpose`` names the defense.

    The key has 128 bits: a seed of 32 would be shared by some hundred pairs among a million documents.
    """
    head = f"{purpose} {seed} {role} {'' if epoch is None else epoch} {example.index} ".encode()
    digest = blake2b(head + example.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)))
