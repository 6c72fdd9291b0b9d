"""Metrics of whole texts: exact match and edit distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from unembed.metrics.base import Description, Mean, OfAll, Successes
from unembed.metrics.scored import Scored
from unembed.metrics.statistics import Floats
from unembed.metrics.text import edit_distance, exact_match, without_outer_punctuation, without_punctuation


class ExactMatch(Successes[Scored]):
    """Share of texts that are recovered, up to white space at their ends, or up to punctuation.

    Args:
        up_to: None: character for character; ``no_punctuation``: in lower case and without punctuation;
            ``no_punctuation_cased``: without punctuation around words, GEIA's exact match ratio (appendix C).
    """

    ordered = True

    def __init__(self, up_to: Literal["no_punctuation", "no_punctuation_cased"] | None = None) -> None:
        super().__init__()
        self.up_to = up_to
        self.description = {
            None: Description("exact_match", "Exact match", "Share of texts that came back exactly."),
            "no_punctuation": Description(
                "exact_match_no_punctuation",
                "Exact match, no punctuation",
                "The same, in lower case and without punctuation.",
            ),
            "no_punctuation_cased": Description(
                "exact_match_no_punctuation_cased",
                "Exact match, no punctuation, case kept",
                "The same with case, and with punctuation inside words (as in GEIA).",
                secondary=True,
                reference="GEIA, appendix C",
            ),
        }[up_to]

    def succeeds(self, row: Scored) -> bool:
        if self.up_to is None:
            return exact_match(row.reference, row.prediction)
        bare = without_punctuation if self.up_to == "no_punctuation" else without_outer_punctuation
        return bare(row.reference) == bare(row.prediction)


class EditDistanceMean(Mean[Scored]):
    """Mean Levenshtein distance in characters."""

    description = Description(
        "edit_distance_mean",
        "Edit distance, mean",
        "Characters to change, add or remove, on average.",
        "lower",
        "other",
    )
    ordered = True

    def of_example(self, row: Scored) -> float:
        return float(edit_distance(row.reference, row.prediction))


class EditDistanceMedian(OfAll[Scored]):
    """Median Levenshtein distance in characters."""

    description = Description(
        "edit_distance_median", "Edit distance, median", "The same, for the middle text.", "lower", "other"
    )
    ordered = True

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        return np.array([[edit_distance(row.reference, row.prediction)] for row in rows], np.float64)

    def value(self, parts: Floats) -> float:
        return float(np.median(parts[:, 0])) if len(parts) else float("nan")
