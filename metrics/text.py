"""Scores of predicted texts as sequences: BLEU, ROUGE, exact match, edit distance.

All work on plain strings, case kept unless said otherwise; all percentages are 0-100.

BLEU comes in two readings, because the papers use two. ``bleu`` is sacreBLEU's corpus score over its 13a tokens, in
which punctuation stands apart. ``bleu1``, ``bleu2`` and ``bleu4`` are GEIA's (tables 4 and 10): corpus scores over
tokens cut at white space, without smoothing, where the first two are the brevity penalty times the precision of n-grams
of that one order, and the last is the usual geometric mean over orders 1 to 4. The paper does not say so, but its
authors' evaluation does (weights 0, 1, 0, 0 for BLEU-2), and its figures allow nothing else: with a cumulative BLEU-2
of 28.99 beside a BLEU-1 of 46.93 and a BLEU-4 of 22.85, trigrams would have to be more precise than bigrams.

Neither tokenisation cuts Chinese, Japanese or Thai into words; use the word metrics for those.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from rapidfuzz.distance import LCSseq, Levenshtein

from metrics.tokens import overlap

ORDERS = 4


@dataclass(frozen=True, slots=True)
class BleuCounts:
    """What BLEU needs to know of one example; sums over examples give the corpus score.

    Attributes:
        matched: Clipped matches of n-grams of order 1 to 4.
        predicted: n-grams of the prediction, of order 1 to 4.
        prediction_length: Tokens of the prediction.
        reference_length: Tokens of the reference.
        sentence: BLEU of this example alone, 0-100: orders without an n-gram in the prediction are left out, and the
            k-th order without a match counts as 1 / 2^k matches (sacreBLEU's "exp" smoothing, its default).
    """

    matched: tuple[int, ...]
    predicted: tuple[int, ...]
    prediction_length: int
    reference_length: int
    sentence: float


def bleu_counts(pairs: Iterable[tuple[str, str]], tokens: Literal["13a", "none"] = "13a") -> list[BleuCounts]:
    """Counts of n-grams for (reference, prediction) pairs, over sacreBLEU's 13a tokens or those cut at white space.

    ``sentence`` over 13a tokens is the BLEU of Vec2Text's tables, which are means over examples, for all predictions of
    four tokens or more (theirs gives 0 to a shorter one, even to a perfect one).
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokens, effective_order=True)
    found = []
    for reference, prediction in pairs:
        bleu = metric.sentence_score(prediction, [reference])
        found.append(
            BleuCounts(
                tuple(bleu.counts), tuple(bleu.totals), bleu.sys_len, bleu.ref_len, min(float(bleu.score), 100.0)
            )
        )
    return found


def corpus_bleu(counts: Sequence[BleuCounts], smoothing: Literal["exp", "none"] = "exp") -> float | None:
    """BLEU over orders 1 to 4 of the summed counts, 0-100.

    None where no text, predicted or reference, has four tokens though some token was matched: BLEU is not defined
    there, and a 0 would speak of a failure that did not happen.
    """
    from sacrebleu.metrics import BLEU

    matched, predicted = _summed(counts)
    if _undefined(counts, ORDERS):
        return None
    bleu = BLEU.compute_bleu(
        correct=list(matched),
        total=list(predicted),
        sys_len=sum(c.prediction_length for c in counts),
        ref_len=sum(c.reference_length for c in counts),
        smooth_method=smoothing,
    )
    return min(float(bleu.score), 100.0)


def order_bleu(counts: Sequence[BleuCounts], order: int) -> float | None:
    """Brevity penalty times the precision of the n-grams of one order, 0-100: GEIA's BLEU-1 and BLEU-2.

    None where no text, predicted or reference, is as long as the order though some token was matched.
    """
    if _undefined(counts, order):
        return None
    matched, predicted = _summed(counts)
    if matched[order - 1] == 0:
        return 0.0
    length, wanted = sum(c.prediction_length for c in counts), sum(c.reference_length for c in counts)
    penalty = math.exp(1 - wanted / length) if length < wanted else 1.0
    return penalty * 100 * matched[order - 1] / predicted[order - 1]


def _summed(counts: Sequence[BleuCounts]) -> tuple[list[int], list[int]]:
    matched = [sum(c.matched[n] for c in counts) for n in range(ORDERS)]
    return matched, [sum(c.predicted[n] for c in counts) for n in range(ORDERS)]


def _undefined(counts: Sequence[BleuCounts], order: int) -> bool:
    longest = max(max(c.reference_length, c.prediction_length) for c in counts)
    return longest < order and any(c.matched[0] for c in counts)


def rouge_n(reference: Sequence[str], prediction: Sequence[str], order: int) -> float | None:
    """ROUGE-N of one example, F measure, 0-100, over lists of words (``metrics.tokens.rouge_words``), no stemmer.

    None where neither text is as long as the order, though they share a word: there is nothing to measure.
    """
    wanted, offered = _ngrams(reference, order), _ngrams(prediction, order)
    if wanted:
        return overlap(wanted, offered).f1
    return None if not offered and set(reference) & set(prediction) else 0.0


def _ngrams(items: Sequence[str], order: int) -> list[tuple[str, ...]]:
    return list(zip(*(items[start:] for start in range(order)), strict=False))


def rouge_l(reference: Sequence[str], prediction: Sequence[str]) -> float:
    """ROUGE-L of one example, F measure, 0-100: the longest common subsequence of two lists of words."""
    common = int(LCSseq.similarity(reference, prediction))
    return 200 * common / (len(reference) + len(prediction)) if common else 0.0


def exact_match(reference: str, prediction: str) -> bool:
    """Whether both are the same, character for character, apart from white space at their ends."""
    return reference.strip() == prediction.strip()


@cache
def _punctuation() -> re.Pattern[str]:
    """Unicode's punctuation, and what ``string.punctuation`` adds to it: ``$+<=>^`|~``."""
    points = (chr(p) for p in range(0x20000))
    return re.compile("[" + re.escape("".join(c for c in points if unicodedata.category(c)[0] == "P")) + r"$+<=>^`|~]")


def without_punctuation(text: str) -> str:
    """``text`` composed (NFC), lower-cased, without punctuation, with single spaces.

    A text of punctuation alone is kept, with single spaces: taking all of it away would make all such texts equal.
    """
    text = unicodedata.normalize("NFC", text.lower())
    bare = text.translate(_ASCII_PUNCTUATION) if text.isascii() else _punctuation().sub("", text)
    return " ".join(bare.split()) or " ".join(text.split())


_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match_no_punctuation(reference: str, prediction: str) -> bool:
    """Whether both are the same ``without_punctuation``: GEIA's exact match ratio (appendix C), case folded as well."""
    return without_punctuation(reference) == without_punctuation(prediction)


def edit_distance(reference: str, prediction: str) -> int:
    """Levenshtein distance in characters, white space at the ends left out: 0 exactly where ``exact_match`` holds."""
    return int(Levenshtein.distance(reference.strip(), prediction.strip()))
