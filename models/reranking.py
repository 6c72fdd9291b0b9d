"""Of several texts that an attack proposes for a target, the one whose vector lies closest to it.

    attack.decoding.rerank=16           # sixteen texts a target, decoded, embedded, and ordered by cosine

An attacker who may ask the embedder can check guesses. What that costs is counted as the attack's queries, so that
attacks can be compared at equal budgets: a corrector (Morris et al. 2023) spends its queries in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from embedders.base import QueryLimitError
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from metrics.vectors import cosine_rows

KEY = "attack.decoding.rerank"
# The last bits of a vector depend on the texts that it was embedded with: nearer than this, two texts are equally near,
# and the one that the decoder found more probable stands first, whatever the batch.
EQUAL = 1e-6


@dataclass(frozen=True, slots=True)
class Reranked:
    """The distinct proposals for a target, the closest first.

    Attributes:
        texts: At least one; those that could not be embedded stand last.
        partial: A limit of the embedder was reached before all of them had a vector.
    """

    texts: list[str]
    partial: bool = False


def check(rerank: int, dimension: int, oracle: CachedEmbedder | None) -> None:
    """Whether proposals can be compared with targets of width ``dimension``.

    Raises:
        InputError: There is no embedder, or the targets have another width than its vectors.
    """
    if not rerank:
        return
    if oracle is None:
        raise InputError(f"{KEY}={rerank}: needs the embedder to compare texts with the vector, and there is none")
    if oracle.dimension != dimension:
        raise InputError(
            f"{KEY}={rerank}: the attacked vectors have width {dimension} and the embedder's {oracle.dimension}, so "
            f"that they cannot be compared: the defense changes the width; take defense.hypotheses=defended or {KEY}=0"
        )


def reranked(proposals: Sequence[Sequence[str]], targets: Tensor, oracle: CachedEmbedder) -> list[Reranked]:
    """The distinct proposals of each target, ordered; each distinct text is embedded once.

    Args:
        proposals: At least one text for each target.
        targets: The attacked vectors, (n, d).
        oracle: Embeds the texts; they are counted as the attack's queries.
    """
    distinct = [list(dict.fromkeys(texts)) for texts in proposals]
    asked = list(dict.fromkeys(chain.from_iterable(distinct)))
    done: Sequence[int] = range(len(asked))
    try:
        vectors = oracle.embed(asked, "attack")
    except QueryLimitError as error:
        done, vectors = error.done, error.vectors
    places = {asked[position]: row for row, position in enumerate(done)}
    known = [[text for text in texts if text in places] for texts in distinct]
    owners = [row for row, texts in enumerate(known) for _ in texts]
    rows = [places[text] for text in chain.from_iterable(known)]
    cosines = iter(cosine_rows(vectors[rows], targets.cpu()[owners]).tolist())
    found = []
    for texts, near in zip(distinct, known, strict=True):
        ordered = [near[place] for place in closest_first([next(cosines) for _ in near])]
        found.append(Reranked([*ordered, *(text for text in texts if text not in places)], len(near) < len(texts)))
    return found


def closest_first(cosines: Sequence[float]) -> list[int]:
    """Places from the highest cosine to the lowest; those that differ by ``EQUAL`` or less keep their order."""
    order: list[int] = []
    alike: list[int] = []
    for place in sorted(range(len(cosines)), key=lambda place: -cosines[place]):
        if alike and cosines[alike[-1]] - cosines[place] > EQUAL:
            order += sorted(alike)
            alike = []
        alike.append(place)
    return order + sorted(alike)
