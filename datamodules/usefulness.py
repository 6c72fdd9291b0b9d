"""How useful a store still is under a defense: what its owner's search finds, and the strength that leaves so much.

    index = Searchable(collection, embedder, max_tokens=32)
    settings, defense, recall = matched({"_target_": "unembed.defenses.noise.Noise", "level": 0.01}, index, wanted=0.9)

Recall is that of the exact search: which share of the ten documents nearest to a query without the defense are among
the ten nearest with it, the mean over the queries. It needs no relevance labels. ``searched`` of a defense says what
the owner's search compares, so that of a lock whose key the owner has undone is what the owner gets.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hydra.utils import instantiate

from unembed.core.errors import InputError
from unembed.datamodules.embedded import DEFENSE_SAMPLE
from unembed.datamodules.retrieval import Searchable
from unembed.defenses.base import BaseDefense, Defense, Strength
from unembed.metrics.statistics import evenly

NEAREST = 10
PRECISION = 0.01  # relative, of a strength


class Matched(NamedTuple):
    """Settings of a defense, what was set ("level=0.0103"), the defense, fitted to the collection, and its recall."""

    settings: dict[str, Any]
    strength: str
    defense: Defense
    recall: float


def matched(settings: Mapping[str, Any], index: Searchable, wanted: float) -> Matched:
    """The strongest setting that leaves a recall of ``wanted``; a defense without a strength is measured as it is.

    Args:
        settings: Of the defense: ``_target_`` and arguments.
        index: The collection, of which the defense is fitted to the documents.
        wanted: Share of the nearest ten, above 0.

    Raises:
        InputError: The weakest setting leaves less.
    """
    exact = index.rankings(k=NEAREST)
    assert exact is not None

    def at(value: float | None) -> Matched:
        chosen, said = copy.deepcopy(dict(settings)), ""
        if value is not None:
            assert strength is not None
            said = f"{strength.argument}={value:.3g}"
            *path, last = strength.argument.split(".")
            node = chosen
            for name in path:
                node = node[name]
            node[last] = value
        defense: Defense = instantiate(chosen, _convert_="all")
        if getattr(type(defense), "fit", None) is not BaseDefense.fit:
            index.fit(defense, evenly(range(len(index.documents)), DEFENSE_SAMPLE))
        return Matched(chosen, said, defense, recall(exact, index.rankings(defense, k=NEAREST)))

    strength: Strength | None = getattr(instantiate(dict(settings), _convert_="all"), "strength", None)
    if strength is None:
        return at(None)
    whole = all(isinstance(end, int) for end in strength[1:])
    weak, strong = (float(end or index.embedder.dimension) for end in strength[1:])
    best = at(round(weak) if whole else weak)
    if best.recall < wanted:
        raise InputError(
            f"defense.recall={wanted}: at the weakest, {strength.argument}={weak:g}, the search finds "
            f"{best.recall:.3f}; take at most that, or other settings"
        )
    while abs(math.log(weak / strong)) > PRECISION:
        middle = math.sqrt(weak * strong)
        if whole:
            middle = float(round(middle))
            if middle in (weak, strong):
                break
        tried = at(round(middle) if whole else middle)
        if tried.recall >= wanted:
            weak, best = middle, tried
        else:
            strong = middle
    return best


def recall(exact: Sequence[Sequence[str]], changed: Sequence[Sequence[str]] | None) -> float:
    """Which share of the documents of ``exact`` are in the same row of ``changed``; 0 if nothing could be compared."""
    if changed is None:
        return 0.0
    shares = [len({*row} & {*other}) / len(row) for row, other in zip(exact, changed, strict=True)]
    return sum(shares) / len(shares)
