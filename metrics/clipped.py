"""BLEU-1 and ROUGE-1 of one text, as Zhu et al. 2024 define them (section 4.3, equations 11 and 12).

    clipped_bleu1("a a b c".split(), "a b b".split())    # (1 + 1) / 3, times the brevity penalty exp(1 - 4/3)
    clipped_rouge1("a a b c".split(), "a b b".split())   # (1 + 1) / 4

Each *type* is visited once: a word that stands m times in the original and n times in the prediction is matched
min(m, n) times. The paper does not say how a text is cut; here, as for GEIA's BLEU-1, at white space, case kept. Its
tables run from 0 to 1 and are means over texts and trials; these figures are percentages, and ``metrics.scoring``
takes the mean over texts. That is where ``clipped_bleu1`` differs from ``bleu1``, which sums over the texts first;
``clipped_rouge1`` is a recall, ``rouge1`` an F measure over lower-cased words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def clipped_bleu1(reference: Sequence[str], prediction: Sequence[str]) -> float:
    """Clipped unigram precision times the brevity penalty, 0-100; 0 where nothing is predicted (equation 11)."""
    if not prediction:
        return 0.0
    short = len(prediction) < len(reference)
    penalty = math.exp(1 - len(reference) / len(prediction)) if short else 1.0
    return 100 * penalty * _matched(reference, prediction) / len(prediction)


def clipped_rouge1(reference: Sequence[str], prediction: Sequence[str]) -> float:
    """Clipped unigram recall, 0-100 (equation 12).

    Raises:
        ValueError: The reference is empty, so that recall has no meaning.
    """
    if not reference:
        raise ValueError("recall has no meaning for an empty reference")
    return 100 * _matched(reference, prediction) / len(reference)


def _matched(reference: Sequence[str], prediction: Sequence[str]) -> int:
    return (Counter(reference) & Counter(prediction)).total()
