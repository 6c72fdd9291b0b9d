"""Whether vectors that somebody gives to invert.py or audit.py are such as the run's embedder makes.

    warnings = check_space("mine.npy", vectors, ["a text of the run's test", ...], embedder, trusted=False)

Vectors of another embedder, of another pooling, in another order of their numbers or of another length are read as
fluent text that nobody wrote, or give metrics that look like safety. So their lengths and directions are compared with
those of the run's own test texts. docs/audit.md has the measurements behind the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from embedders.cache.cached import CachedEmbedder
from errors import InputError
from metrics import spaces

COMPARED = 256  # the run's test texts whose vectors stand for its embedder
FEWEST = 10  # rows below which directions say nothing
LIKE = 0.3  # likeness of other text by the same embedder
UNLIKE = 0.05  # likeness of another embedder's vectors
LONGER = 1.5  # times that vectors may be longer or shorter: noise lengthens them a little
TRUST = "; trust_vectors=true continues all the same"


def check_space(name: str, vectors: Tensor, known: Sequence[str], embedder: CachedEmbedder, trusted: bool) -> list[str]:
    """Compare vectors, (n, d), with those of texts that the run was tested on.

    Of fewer than ``FEWEST`` vectors, the lengths alone.

    Args:
        name: Of the vectors, as in ``vectors=``.
        vectors: The vectors.
        known: Texts that the run was tested on.
        embedder: What made their vectors: the run's embedder, with its defense if the attacker was trained behind it.
        trusted: Whether to warn instead of raising.

    Returns:
        Warnings for the user.

    Raises:
        InputError: The vectors are not of the run's embedder, by their lengths or directions, and are not ``trusted``.
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
