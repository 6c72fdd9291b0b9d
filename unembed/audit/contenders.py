"""The attackers of an audit: the texts that each recovers, and the scores of those whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from unembed.audit.estimates import TEST_TEXTS, Estimator, scored
from unembed.audit.findings import Reading, Truth
from unembed.audit.lookup import Lookup
from unembed.audit.reading import StoreReader


@dataclass(frozen=True, slots=True)
class Contender:
    """An attacker of the store.

    Attributes:
        name: See ``findings.Attacker``.
        label: What a reader calls it.
        readings: Of the store's rows.
        tested: Of the run's test texts.
        estimator: Of shares, from texts whose truth is known: ``tested``, and its own.
        cost: Its seconds and queries; empty if they are not counted.
    """

    name: str
    label: str
    readings: list[Reading]
    tested: list[Reading]
    estimator: Estimator
    cost: str = ""


def by_lookup(
    lookup: Lookup,
    reader: StoreReader,
    vectors: Tensor,
    truths: Sequence[Truth | None],
    test: Tensor,
    known: Sequence[Truth],
    stored: Tensor,
) -> Contender:
    """The lookup as an attacker of the store's ``vectors`` (n, d), and of the ``test`` texts' (m, d).

    Cosines are with ``vectors``. What is looked up is ``stored``, (n, d), the vectors without a denoiser: of known
    texts, the one nearest to the noisy vector is the most probable.
    """
    tested = reader.readings(lookup.texts(test), test, known) if known else []
    label = "the lookup of the nearest training text"
    return Contender(
        "lookup", label, reader.readings(lookup.texts(stored), vectors, truths), tested, Estimator(scored(tested))
    )


def closest_of(own: Sequence[Contender]) -> Contender:
    """The attacker who has them all, and takes for each vector the text whose own vector is nearest."""
    tested = closest([one.tested for one in own])
    label = f"of {'both' if len(own) == 2 else 'all'}, the text with the nearer vector"
    # What a cosine means hardly depends on who found the text, but for a search, which raises cosines by itself.
    before = (
        []
        if any(one.name == "search" for one in own)
        else [score for one in own for score in one.estimator.known if score.source != TEST_TEXTS]
    )
    known = Estimator([*before, *scored(tested)])
    return Contender("closest", label, closest([one.readings for one in own]), tested, known)


def closest(texts: Sequence[Sequence[Reading]]) -> list[Reading]:
    """Of the attackers' texts for each vector the one whose own vector is nearest, which an attacker can see."""
    return [max(of_row, key=lambda one: one.cosine) for of_row in zip(*texts, strict=True)]
