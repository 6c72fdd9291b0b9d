"""BLEU as metrics of a test set: sacreBLEU's corpus score, its mean over texts, and GEIA's (``metrics.text``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from metrics.base import Description, ExampleMetric, Mean
from metrics.scored import Scored
from metrics.statistics import Floats
from metrics.text import ORDERS, BleuCounts, bleu_counts, corpus_bleu, order_bleu


class CorpusBleu(ExampleMetric[Scored]):
    """BLEU of summed counts, 0-100: BP * exp(mean of log p_n) over the orders 1 to 4, or BP * p_n of one order.

    Statistics, (n, 11): matches and n-grams of the orders 1 to 4, lengths of prediction and reference, and whether
    either reaches the highest order: of a test set in which none does, BLEU is undefined.

    Args:
        description: Key, title, unit and direction.
        tokens: sacreBLEU's tokenization: "13a", or "none" to cut at white space.
        order: The one order of n-grams; None for all four.
        smoothing: sacreBLEU's smoothing of orders without a match; of all four orders only.
        settings: Of torchmetrics.Metric.
    """

    def __init__(
        self,
        description: Description,
        tokens: Literal["13a", "none"] = "13a",
        order: int | None = None,
        smoothing: Literal["exp", "none"] = "exp",
        **settings: Any,
    ) -> None:
        super().__init__(description, ordered=True, **settings)
        self.tokens, self.order, self.smoothing = tokens, order, smoothing

    @property
    def shares(self) -> object:
        """Those of one tokenization whose highest order is the same."""
        return type(self), self.tokens, self.order or ORDERS

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        """(n, 11); see the class."""
        highest = self.order or ORDERS
        parts = [
            (
                *counts.matched,
                *counts.predicted,
                counts.prediction_length,
                counts.reference_length,
                max(counts.prediction_length, counts.reference_length) >= highest,
            )
            for counts in bleu_counts([(row.reference, row.prediction) for row in rows], self.tokens)
        ]
        return np.array(parts, np.float64)

    def combine(self, sums: Floats) -> Floats:
        """BLEU of each row of sums, by sacreBLEU."""
        flat = sums.reshape(-1, sums.shape[-1])
        values: Floats = np.array([self._of(row) for row in flat], np.float64).reshape(sums.shape[:-1])
        return values

    def _of(self, sums: Floats) -> float:
        whole = [round(count) for count in sums.tolist()]
        matched, predicted = tuple(whole[:ORDERS]), tuple(whole[ORDERS : 2 * ORDERS])
        length, wanted, reaching = whole[2 * ORDERS :]
        if not reaching and matched[0]:
            return math.nan
        counts = [BleuCounts(matched, predicted, length, wanted, sentence=math.nan)]
        value = corpus_bleu(counts, self.smoothing) if self.order is None else order_bleu(counts, self.order)
        return math.nan if value is None else value


class SentenceBleu(Mean[Scored]):
    """The mean of the BLEU of each text alone, over 13a tokens with "exp" smoothing (Vec2Text's tables)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            Description(
                "bleu_sentence", "BLEU, sentence", "The mean of BLEU computed for each text alone.", kind="score"
            ),
            ordered=True,
            **settings,
        )

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        """(n, 2): the text's BLEU, and 1."""
        counted = bleu_counts([(row.reference, row.prediction) for row in rows])
        return np.array([(counts.sentence, 1.0) for counts in counted], np.float64)

    def of_example(self, row: Scored) -> float:
        """BLEU of one text."""
        return bleu_counts([(row.reference, row.prediction)])[0].sentence


def bleu(**settings: Any) -> CorpusBleu:
    """sacreBLEU's corpus score."""
    explanation = "Overlap of runs of one to four words, over the whole corpus (sacreBLEU)."
    return CorpusBleu(Description("bleu", "BLEU", explanation, kind="score"), **settings)


def geia_bleu(order: Literal[1, 2, 4], **settings: Any) -> CorpusBleu:
    """GEIA's BLEU-1, BLEU-2 or BLEU-4 (tables 4 and 10): tokens cut at white space, no smoothing."""
    explanation = {
        1: "Precision of single words, short predictions penalised (as in GEIA).",
        2: "The same for pairs of neighbouring words alone.",
        4: "Runs of one to four words, cut at white space, without smoothing.",
    }[order]
    described = Description(f"bleu{order}", f"BLEU-{order}", explanation, kind="score", reference="GEIA, tables 4, 10")
    return CorpusBleu(described, "none", None if order == ORDERS else order, "none", **settings)
