"""Perplexity: how fluent texts are to a causal language model, whatever the references were (GEIA, section 4.2).

    perplexity([Likelihood(-12.3, tokens=5), Likelihood(-40.1, tokens=9)])      # exp((12.3 + 40.1) / 14)

``scoring.language_model`` makes the likelihoods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Likelihood(NamedTuple):
    """The log probability (natural) of a text, and how many of its tokens it is of; 0 tokens for an empty text."""

    log_probability: float
    tokens: int


def perplexity(likelihoods: Iterable[Likelihood]) -> float | None:
    """Perplexity a token over all texts together, at least 1; None where no text has a token.

    exp of minus the mean log probability of a token. Sums are rounded once, so their order does not matter.
    """
    found = list(likelihoods)
    tokens = sum(one.tokens for one in found)
    return math.exp(-math.fsum(one.log_probability for one in found) / tokens) if tokens else None
