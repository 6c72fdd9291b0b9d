"""Whole texts: exact match and edit distance (``metrics.text``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.base import Description, ExampleMetric, Mean
from metrics.scored import Scored
from metrics.statistics import Floats
from metrics.text import edit_distance, exact_match, exact_match_no_punctuation


class ExactMatch(Mean[Scored]):
    """Share of texts that came back character for character, apart from white space at their ends."""

    def __init__(self, **settings: Any) -> None:
        described = Description("exact_match", "Exact match", "Share of texts that came back word for word.")
        super().__init__(described, ordered=True, share=True, **settings)

    def of_example(self, row: Scored) -> float:
        """100 or 0."""
        return 100.0 * exact_match(row.reference, row.prediction)


class ExactMatchNoPunctuation(Mean[Scored]):
    """Share of texts that came back, case and punctuation left out: GEIA's exact match ratio (appendix C)."""

    def __init__(self, **settings: Any) -> None:
        explanation = "The same, with punctuation left out of both texts."
        described = Description(
            "exact_match_no_punctuation", "Exact match, no punctuation", explanation, reference="GEIA, appendix C"
        )
        super().__init__(described, ordered=True, share=True, **settings)

    def of_example(self, row: Scored) -> float:
        """100 or 0."""
        return 100.0 * exact_match_no_punctuation(row.reference, row.prediction)


class EditDistanceMean(Mean[Scored]):
    """Levenshtein distance in characters, the mean over texts."""

    def __init__(self, **settings: Any) -> None:
        explanation = "Characters to change, add or remove, on average."
        described = Description("edit_distance_mean", "Edit distance, mean", explanation, "lower", "other")
        super().__init__(described, ordered=True, **settings)

    def of_example(self, row: Scored) -> float:
        """Characters."""
        return float(edit_distance(row.reference, row.prediction))


class EditDistanceMedian(ExampleMetric[Scored]):
    """Levenshtein distance in characters, of the middle text. A median is no function of sums: no bootstrap."""

    summable = False

    def __init__(self, **settings: Any) -> None:
        explanation = "The same, for the middle text."
        described = Description("edit_distance_median", "Edit distance, median", explanation, "lower", "other")
        super().__init__(described, ordered=True, **settings)

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        """(n, 1): characters."""
        return np.array([[edit_distance(row.reference, row.prediction)] for row in rows], np.float64)

    def value(self, parts: Floats) -> float:
        """The median."""
        return float(np.median(parts[:, 0])) if len(parts) else float("nan")

    def combine(self, sums: Floats) -> Floats:
        """Undefined."""
        return np.full(sums.shape[:-1], np.nan)
