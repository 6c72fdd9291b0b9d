"""The attribute attack: which of some known values lies nearest to a text (Zhu et al. 2023, sections 2.3 and 4.3).

    similarities      "Paris"  "Rome"          cosines of one text's vector with the vectors of the values
    "Ada ... Paris"     .71      .43           -> the nearest value is the true one

Nothing is learned. Values are compared by their vectors and not looked up in the text, so that a synonym or another
way of writing counts as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttributeFigures:
    """How often the true value was found; percentages 0 to 100.

    Attributes:
        top1: Share of texts whose true value is the nearest.
        top_k: Share of texts whose true value is among the k nearest; None where there are not more than k values.
        macro: The mean of ``top1`` over the true values, each for its own texts: a frequent value counts no more than
            a rare one.
        standard_error: Of ``top1``, as a mean over independent texts.
    """

    top1: float
    top_k: float | None
    macro: float
    standard_error: float


def similarities(texts: Tensor, values: Tensor) -> Tensor:
    """Cosines of texts (n, d) with values (c, d): (n, c) float64. A zero vector is equally far from everything."""
    sides = [torch.nn.functional.normalize(side.to(torch.float64), dim=-1) for side in (texts, values)]
    return sides[0] @ sides[1].T


def ranks(truth: Sequence[int], cosines: Tensor) -> list[int]:
    """Place of the true value of each text among all values, 0 for the nearest; of equals, the true one comes last.

    Args:
        truth: Column of the true value, (n,).
        cosines: (n, c).
    """
    columns = torch.tensor(truth, dtype=torch.long)
    own = cosines.gather(1, columns[:, None])
    # Counting equals against the attacker: text that was not recovered at all must not win by an order of names.
    places: list[int] = ((cosines >= own).sum(dim=1) - 1).tolist()
    return places


def score_ranks(truth: Sequence[int], places: Sequence[int], candidates: int, k: int) -> AttributeFigures:
    """Accuracy from the places of the true values.

    Args:
        truth: Column of the true value, (n,).
        places: See ``ranks``, (n,).
        candidates: Number of values to choose from.
        k: Values that may be named.

    Raises:
        ValueError: No text.
    """
    if not truth:
        raise ValueError("there is no text with a value")
    of_value, hits = Counter(truth), Counter(value for value, place in zip(truth, places, strict=True) if place == 0)
    share = sum(hits.values()) / len(truth)
    return AttributeFigures(
        top1=100 * share,
        top_k=100 * sum(place < k for place in places) / len(truth) if candidates > k else None,
        macro=100 * math.fsum(hits[value] / count for value, count in of_value.items()) / len(of_value),
        standard_error=100 * math.sqrt(share * (1 - share) / len(truth)),
    )


def majority(truth: Sequence[int]) -> float:
    """Share of the most frequent true value, 0 to 100: what always naming that one would give."""
    return 100 * max(Counter(truth).values()) / len(truth)
