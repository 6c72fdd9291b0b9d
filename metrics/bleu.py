"""BLEU in the two variants of the papers: sacreBLEU's and GEIA's.

``bleu`` is sacreBLEU's corpus score over its 13a tokens, which separate punctuation. ``bleu1``, ``bleu2`` and
``bleu4`` are GEIA's (tables 4 and 10): corpus scores over white-space tokens, without smoothing. The first two are the
brevity penalty times the precision of n-grams of that one order; the last is the usual geometric mean over orders 1 to
4. The authors' evaluation code shows this (weights 0, 1, 0, 0 for BLEU-2), and the paper's values confirm it: if the
BLEU-2 of 28.99 were cumulative, between a BLEU-1 of 46.93 and a BLEU-4 of 22.85, trigrams would be more precise than
bigrams.

Neither tokenization segments Chinese, Japanese or Thai; use the word metrics for those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from unembed.metrics.base import Description, ExampleMetric, Mean
from unembed.metrics.scored import Scored
from unembed.metrics.statistics import Floats
from unembed.metrics.text import Tokens, sacrebleu, sentence_bleu

ORDERS = 4


class CorpusBleu(ExampleMetric[Scored]):
    """BLEU of summed counts, 0-100: BP * exp(mean of log p_n) over the orders 1 to 4, or BP * p_n of one order.

    Statistics, (n, 11): clipped matches and n-grams of the orders 1 to 4, lengths of prediction and reference, and
    whether either is long enough for the highest order. If no example is, but some token matched, BLEU is undefined
    and not 0, which would mean a failure.

    Args:
        description: Key, title, unit and direction.
        tokens: sacreBLEU's tokenization: "13a", or "none" to split at white space.
        order: A single order of n-grams; None for all four.
        smoothing: sacreBLEU's smoothing of orders without a match; only without ``order``.
    """

    ordered = True

    def __init__(
        self,
        description: Description,
        tokens: Tokens = "13a",
        order: int | None = None,
        smoothing: Literal["exp", "none"] = "exp",
    ) -> None:
        super().__init__()
        self.description, self.tokens, self.order, self.smoothing = description, tokens, order, smoothing

    @property
    def shares(self) -> object:
        return type(self), self.tokens, self.order or ORDERS

    def statistics(self, rows: Sequence[Scored]) -> Floats:
        parts = []
        for row in rows:
            one = sacrebleu(self.tokens).sentence_score(row.prediction, [row.reference])
            reaches = max(one.sys_len, one.ref_len) >= (self.order or ORDERS)
            parts.append((*one.counts, *one.totals, one.sys_len, one.ref_len, reaches))
        return np.array(parts, np.float64)

    def combine(self, sums: Floats) -> Floats:
        flat = sums.reshape(-1, sums.shape[-1])
        values: Floats = np.array([self._of(row) for row in flat], np.float64).reshape(sums.shape[:-1])
        return values

    def _of(self, sums: Floats) -> float:
        whole = [round(count) for count in sums.tolist()]
        matched, predicted, (length, wanted, reaching) = whole[:ORDERS], whole[ORDERS : 2 * ORDERS], whole[2 * ORDERS :]
        if not reaching and matched[0]:
            return math.nan
        if self.order is None:
            score = float(sacrebleu(self.tokens).compute_bleu(matched, predicted, length, wanted, self.smoothing).score)
            return min(score, 100.0)
        if matched[self.order - 1] == 0:
            return 0.0
        penalty = math.exp(1 - wanted / length) if length < wanted else 1.0
        return float(penalty * 100 * matched[self.order - 1] / predicted[self.order - 1])


class SentenceBleu(Mean[Scored]):
    """The mean of ``sentence_bleu`` (Vec2Text's tables)."""

    description = Description(
        "bleu_sentence", "BLEU, sentence", "The mean of BLEU computed for each text alone.", kind="score"
    )
    ordered = True

    def of_example(self, row: Scored) -> float:
        return sentence_bleu(row.reference, row.prediction)


def bleu() -> CorpusBleu:
    """sacreBLEU's corpus score."""
    explanation = "Overlap of runs of one to four words, over the whole corpus (sacreBLEU)."
    return CorpusBleu(Description("bleu", "BLEU", explanation, kind="score"))


def geia_bleu(order: Literal[1, 2, 4]) -> CorpusBleu:
    """GEIA's BLEU-1, BLEU-2 or BLEU-4 (tables 4 and 10): white-space tokens, no smoothing."""
    explanation = {
        1: "Precision of single words, short predictions penalised (as in GEIA).",
        2: "The same for pairs of neighbouring words alone.",
        4: "Runs of one to four words, cut at white space, without smoothing.",
    }[order]
    described = Description(f"bleu{order}", f"BLEU-{order}", explanation, kind="score", reference="GEIA, tables 4, 10")
    return CorpusBleu(described, "none", None if order == ORDERS else order, "none")
