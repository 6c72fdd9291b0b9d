"""ROUGE and the clipped unigram scores of Zhu et al., each a mean over texts.

The clipped scores (llm_attackers_zhu2024, section 4.3, equations 11 and 12) count matches per *type*: a word that
occurs m times in the original and n times in the prediction has min(m, n) matches.

    original "a a b c", prediction "a b b":   BLEU-1 = (1 + 1) / 3, times the brevity penalty exp(1 - 4/3)
                                              ROUGE-1 = (1 + 1) / 4

The paper does not specify the tokenization; here texts are split at white space and keep their case, as for GEIA's
BLEU-1. The paper's values range from 0 to 1 and are means over texts and trials. ``clipped_bleu1`` is a mean over
texts, whereas ``bleu1`` sums over the texts first; ``clipped_rouge1`` is a recall, ``rouge1`` an F measure over
lower-cased words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from rapidfuzz.distance import LCSseq

from unembed.metrics.base import Description, Mean
from unembed.metrics.scored import Scored
from unembed.metrics.tokens import overlap, rouge_words


class RougeN(Mean[Scored]):
    """Overlap of n-grams of words (``unembed.metrics.tokens.rouge_words``, no stemmer) as F measure."""

    def __init__(self, order: Literal[1, 2]) -> None:
        super().__init__()
        what = "single words, as F measure" if order == 1 else "pairs of neighbouring words"
        self.description = Description(f"rouge{order}", f"ROUGE-{order}", f"Overlap of {what}.", kind="score")
        self.order, self.ordered = order, order > 1

    def of_example(self, row: Scored) -> float | None:
        """The F measure, 0-100; None if both texts are shorter than the order but share a word."""
        texts = rouge_words(row.reference), rouge_words(row.prediction)
        wanted, offered = (_ngrams(text, self.order) for text in texts)
        if wanted:
            return overlap(wanted, offered).f1
        return None if not offered and set(texts[0]) & set(texts[1]) else 0.0


class RougeL(Mean[Scored]):
    """The longest common subsequence of words as F measure."""

    description = Description("rougeL", "ROUGE-L", "Length of the longest common subsequence of words.", kind="score")
    ordered = True

    def of_example(self, row: Scored) -> float:
        wanted, offered = rouge_words(row.reference), rouge_words(row.prediction)
        common = int(LCSseq.similarity(wanted, offered))
        return 200 * common / (len(wanted) + len(offered)) if common else 0.0


class ClippedBleu1(Mean[Scored]):
    """Clipped precision of single words times a brevity penalty, of each text alone."""

    description = Description(
        "clipped_bleu1",
        "BLEU-1, clipped",
        "Precision of single words times a brevity penalty, of each text alone (Zhu et al. 2024).",
        kind="score",
        secondary=True,
        reference="Zhu et al. 2024, equation 11",
    )
    ordered = True

    def of_example(self, row: Scored) -> float:
        wanted, offered = row.reference.split(), row.prediction.split()
        if not offered:
            return 0.0
        penalty = math.exp(1 - len(wanted) / len(offered)) if len(offered) < len(wanted) else 1.0
        return 100 * penalty * _matched(wanted, offered) / len(offered)


class ClippedRouge1(Mean[Scored]):
    """Clipped recall of single words, of each text alone."""

    description = Description(
        "clipped_rouge1",
        "ROUGE-1, clipped",
        "Recall of single words, of each text alone (Zhu et al. 2024).",
        kind="score",
        secondary=True,
        reference="Zhu et al. 2024, equation 12",
    )
    ordered = True

    def of_example(self, row: Scored) -> float:
        wanted = row.reference.split()
        return 100 * _matched(wanted, row.prediction.split()) / len(wanted)


def _matched(reference: Sequence[str], prediction: Sequence[str]) -> int:
    return (Counter(reference) & Counter(prediction)).total()


def _ngrams(items: Sequence[str], order: int) -> list[tuple[str, ...]]:
    return list(zip(*(items[start:] for start in range(order)), strict=False))
