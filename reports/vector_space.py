"""Check that vectors given to invert.py or audit.py could come from the run's embedder.

    warnings = check_space("mine.npy", vectors, ["a text of the run's test", ...], embedder, trusted=False)

Vectors of another embedder or pooling, or with permuted or rescaled components, would be inverted to fluent but
unrelated text, or would make a store look safe. So their lengths and directions are compared with those of the run's
own test texts. docs/audit.md has the measurements behind the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from embedders.cache.cached import CachedEmbedder
from errors import InputError
from metrics import spaces

COMPARED = 256  # number of the run's test texts to compare with
FEWEST = 10  # smallest number of rows for a comparison of directions
LIKE = 0.3  # likeness of other text by the same embedder, at least
UNLIKE = 0.05  # likeness of another embedder's vectors, at most
LONGER = 1.5  # accepted ratio of lengths: noise lengthens vectors a little
TRUST = "; trust_vectors=true continues all the same"


def check_space(name: str, vectors: Tensor, known: Sequence[str], embedder: CachedEmbedder, trusted: bool) -> list[str]:
    """Compare vectors, (n, d), with those of texts that the run was tested on.

    With fewer than ``FEWEST`` vectors, only the lengths are compared.

    Args:
        name: Name of the vectors, as in ``vectors=``.
        vectors: The vectors.
        known: Test texts of the run.
        embedder: The run's embedder, defended if the attacker was trained on defended vectors.
        trusted: Whether to warn instead of raising.

    Returns:
        Warnings for the user.

    Raises:
        InputError: Lengths or directions do not match the run's embedder, and the vectors are not ``trusted``.
    """
    if not len(vectors) or len(known) < FEWEST:
        return []
    step = -(-len(known) // COMPARED)
    compared = spaces.compare(embedder.embed(list(known[::step]), "scoring"), vectors)
    enough = len(vectors) >= FEWEST
    wrong = None
    if not 1 / LONGER <= compared.ratio <= LONGER:
        wrong = (
            f"vectors={name}: their median length is {compared.other_norm:.3g}, but the run's embedder gives "
            f"vectors of length {compared.norm:.3g}: another embedder, or one of the two is not normalised"
        )
    elif enough and compared.likeness < UNLIKE:
        wrong = (
            f"vectors={name}: their directions have nothing in common with those of the run's embedder "
            f"(likeness {compared.likeness:.2f}; {LIKE:.1f} and more for other text by the same embedder): another "
            "model, pooling or prefix, or a rotation"
        )
    if wrong is not None:
        if not trusted:
            raise InputError(wrong + TRUST)
        return [wrong + "."]
    if enough and compared.likeness < LIKE:
        return [
            f"The vectors point elsewhere than those of the run's own test texts (likeness "
            f"{compared.likeness:.2f}, where 1 is the same kind of text): text of another kind, or vectors that were "
            "defended. An attacker who trains on text like theirs reads more."
        ]
    return []
