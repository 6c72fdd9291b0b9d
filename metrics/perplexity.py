"""The likelihood of a text under a causal language model; ``scoring.language_model`` computes it."""

from __future__ import annotations

from typing import NamedTuple


class Likelihood(NamedTuple):
    """The log probability (natural) of a text, and how many of its tokens it is of; 0 tokens for an empty text."""

    log_probability: float
    tokens: int
