"""Fluency of predictions: perplexity and stop word rates (GEIA, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from unembed.metrics.base import Description, ExampleMetric, Ratio, quotient
from unembed.metrics.scored import Scored
from unembed.metrics.statistics import Floats
from unembed.metrics.stop_words import LANGUAGE, content_words, geia_stop_words, stop_words
from unembed.metrics.tokens import words

# numpy's exp differs in the last bit between processors.
_EXP = np.vectorize(math.exp, otypes=[np.float64])

Way = Literal["words", "geia"]  # how stop words are counted: by stop_words or by geia_stop_words


class Perplexity(ExampleMetric[Scored]):
    """Perplexity of the predictions per token, at least 1; ``scoring.language_model`` computes the likelihoods.

    Statistics, (n, 2): log probability and number of tokens.
    """

    description = Description(
        "perplexity",
        "Perplexity",
        "Of the predictions, a token; the lower, the more fluent.",
        None,
        "other",
        reference="GEIA, section 4.2",
    )
    needs = "models"

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        return np.array([row.likelihood or (0.0, 0) for row in rows], np.float64)

    def combine(self, sums: Floats) -> Floats:
        perplexity: Floats = _EXP(-quotient(sums[..., 0], sums[..., 1]))
        return perplexity


class StopWordRate(Ratio[Scored]):
    """Share of stop words among the words of the predictions, or of the references; English texts only.

    Args:
        of: Which texts.
        way: How stop words are counted.
    """

    needs = "labels"

    def __init__(self, of: Literal["prediction", "reference"], way: Way = "words") -> None:
        super().__init__()
        description = {
            "prediction": Description(
                "stop_word_rate", "Stop words", "Share of the predicted words that say little.", None, secondary=True
            ),
            "reference": Description(
                "stop_word_rate_reference",
                "Stop words, references",
                "The same share of the references' words.",
                None,
                secondary=True,
            ),
        }[of]
        self.description, self.of_text, self.way = _described(description, way), of, way

    def of_example(self, row: Scored) -> tuple[int, int]:
        return _counted(getattr(row, self.of_text), row, self.way)


class StopWordDifference(ExampleMetric[Scored]):
    """Stop word rate of the predictions minus that of the references.

    Statistics, (n, 4): stop words and words of the predictions, and of the references.

    Args:
        way: How stop words are counted.
    """

    needs = "labels"

    def __init__(self, way: Way = "words") -> None:
        super().__init__()
        explanation = "Percentage points by which predictions have more stop words than references; near 0 is natural."
        own = Description("stop_word_rate_difference", "Stop words, difference", explanation, None, "score")
        self.description, self.way = _described(own, way), way

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        counted = [[_counted(text, row, self.way) for text in (row.prediction, row.reference)] for row in rows]
        return np.array(counted, np.float64).reshape(-1, 4)

    def combine(self, sums: Floats) -> Floats:
        return quotient(100 * sums[..., 0], sums[..., 1]) - quotient(100 * sums[..., 2], sums[..., 3])


class ContentWordRecovery(Ratio[Scored]):
    """Share of the references' distinct content words (no stop words) that the predictions have; English texts only."""

    description = Description(
        "content_word_recovery",
        "Content words",
        "Share of the references' distinct words, stop words apart, that came back.",
    )
    needs = "labels"

    def of_example(self, row: Scored) -> tuple[int, int]:
        if not _is_english(row):
            return 0, 0
        wanted = content_words(words(row.reference))
        return len(wanted.intersection(words(row.prediction))), len(wanted)


def _is_english(row: Scored) -> bool:
    return row.language in (None, LANGUAGE)


def _described(own: Description, way: Way) -> Description:
    """The description of a metric counted that way."""
    if way == "words":
        return own
    return replace(own, key=f"{own.key}_geia", title=f"{own.title}, GEIA", reference="GEIA, section 4.2")


def _counted(text: str, row: Scored, way: Way) -> tuple[int, int]:
    """Stop words and words of a text of ``row``; none in another language than English."""
    if not _is_english(row):
        return 0, 0
    return geia_stop_words(text) if way == "geia" else stop_words(text)
