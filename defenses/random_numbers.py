"""Random numbers of one example: the same in any batch and any process.

    generator_of("noise", 0, Example(7, "my name is ada ."), role="test", epoch=None).standard_normal(384)

The key is derived from (purpose, seed, role, epoch, index, text). The text keeps row 7 of one data set from sharing its
noise with row 7 of another; the role separates a query from a document.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from unembed.core.examples import Example
from unembed.defenses.base import Role


def generator_of(purpose: str, seed: int, example: Example, role: Role, epoch: int | None) -> np.random.Generator:
    """The random generator of an example in a role and training epoch; ``purpose`` names the defense.

    The key has 128 bits: with 32, about a hundred pairs among a million documents would share their noise.
    """
    head = f"{purpose} {seed} {role} {'' if epoch is None else epoch} {example.index} ".encode()
    digest = blake2b(head + example.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)))
