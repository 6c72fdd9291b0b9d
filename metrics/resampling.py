"""Figures of a test set taken apart into what each example adds, so that examples can be drawn again.

    sums = SUMS["bleu"](rows)              # parts (n, 10), and how BLEU is made of their sums
    sums.value                             # 30.3, as metrics.json has it
    sums.combine(resampled_sums(sums.parts, resamples=2000, seed=0))     # (2000,)

A figure that is not here (a median, a perplexity) is no function of sums over examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from metrics import text
from metrics.entities import recovered_entities, span_text
from metrics.scored import Scored
from metrics.statistics import Floats
from metrics.stop_words import content_words, stop_words
from metrics.tokens import overlap, rouge_words, token_overlap, words

Combine = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Sums:
    """A figure as a function of sums over examples.

    Attributes:
        parts: (n, k) numbers of each example.
        combine: (..., k) sums -> (...,) figures; NaN where the figure is undefined.
        share: Whether it is 100 times the share of examples that succeed, so that it has Wilson's interval.
        complete: Whether it hangs on nothing but texts and cosines; others may have been scored with labels of a tagger
            or the language of a text, which predictions.jsonl does not hold.
    """

    parts: Floats
    combine: Combine
    share: bool = False
    complete: bool = True

    @property
    def value(self) -> float:
        """The figure of all examples; NaN where it is undefined."""
        return float(self.combine(self.parts.sum(axis=0)))


def mean(values: Sequence[float | None], *, share: bool = False) -> Sums:
    """The mean of those values that exist; they are percentages already."""
    parts = [(0.0, 0.0) if value is None else (value, 1.0) for value in values]
    return Sums(np.array(parts, np.float64).reshape(-1, 2), _ratio, share)


def ratio(pairs: Sequence[tuple[float, float]], *, complete: bool = True) -> Sums:
    """100 times the first numbers' sum over the second ones'."""
    parts = np.array([(100 * above, below) for above, below in pairs], np.float64).reshape(-1, 2)
    return Sums(parts, _ratio, complete=complete)


def _ratio(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient: Floats = np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)
    return quotient


def _bleu(
    rows: Sequence[Scored], tokens: Literal["13a", "none"], orders: tuple[int, ...], smoothing: bool = False
) -> Sums:
    """Corpus BLEU of the geometric mean over ``orders``.

    Parts: matches and n-grams of each order, lengths of prediction and reference, whether either text reaches the
    highest order: of a test set in which none does, BLEU is undefined (see ``metrics.text.corpus_bleu``).
    """
    parts = []
    for counts in text.bleu_counts([(row.reference, row.prediction) for row in rows], tokens):
        lengths = (counts.prediction_length, counts.reference_length)
        parts.append((*counts.matched, *counts.predicted, *lengths, max(lengths) >= max(orders)))
    return Sums(np.array(parts, np.float64), partial(_corpus_bleu, orders=orders, smoothing=smoothing))


def _corpus_bleu(sums: Floats, orders: tuple[int, ...], smoothing: bool) -> Floats:
    matched, predicted = sums[..., :4], sums[..., 4:8]
    length, wanted, reaching = sums[..., 8], sums[..., 9], sums[..., 10]
    chosen = [order - 1 for order in orders]
    counted = matched[..., chosen].copy()
    if smoothing:  # the k-th order without a match counts as 1 / 2^k matches, unless no order has one
        missing = (counted == 0) & (predicted[..., chosen] > 0)
        guess = 0.5 ** np.cumsum(missing, axis=-1)
        counted = np.where(missing & (counted.sum(axis=-1, keepdims=True) > 0), guess, counted)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(counted / predicted[..., chosen]).mean(axis=-1)
        penalty = np.where(length < wanted, np.exp(1 - wanted / length), 1.0)
        score = np.where((counted > 0).all(axis=-1), 100 * penalty * np.exp(logs), 0.0)
    undefined = (reaching == 0) & (matched[..., 0] > 0)
    figures: Floats = np.where(undefined, np.nan, np.minimum(score, 100.0))
    return figures


def _entities(rows: Sequence[Scored]) -> Sums:
    pairs = []
    for row in rows:
        values = [span_text(row.reference, span) for span in row.spans]
        found = recovered_entities(values, row.prediction, ordered=row.kind == "sequence")
        pairs.append((float(found), float(len(values))))
    return ratio(pairs, complete=False)


def _micro(rows: Sequence[Scored], above: tuple[int, ...], below: tuple[int, ...]) -> Sums:
    """Over sets of words: of (shared, predicted, wanted), the sum of those ``above`` over that of those ``below``."""
    pairs = []
    for row in rows:
        wanted, offered = frozenset(words(row.reference)), frozenset(words(row.prediction))
        sizes = (len(wanted & offered), len(offered), len(wanted))
        pairs.append((float(sum(sizes[place] for place in above)), float(sum(sizes[place] for place in below))))
    found = ratio(pairs)
    return Sums(found.parts, _nothing_is_zero)


def _nothing_is_zero(sums: Floats) -> Floats:
    return np.nan_to_num(_ratio(sums))  # the precision of no prediction is 0 here, as everywhere in metrics


def _stop_words(rows: Sequence[Scored]) -> Sums:
    found = [stop_words([words(row.prediction)]) for row in rows]
    return ratio([(float(one.stop), float(one.words)) for one in found], complete=False)


def _content_words(rows: Sequence[Scored]) -> Sums:
    pairs = []
    for row in rows:
        wanted = content_words(words(row.reference))
        pairs.append((float(len(wanted.intersection(words(row.prediction)))), float(len(wanted))))
    return ratio(pairs, complete=False)


def _of_words(score: Callable[[list[str], list[str]], float | None]) -> Callable[[Sequence[Scored]], Sums]:
    return lambda rows: mean([score(rouge_words(row.reference), rouge_words(row.prediction)) for row in rows])


def _of_tokens(name: Literal["precision", "recall", "f1"]) -> Callable[[Sequence[Scored]], Sums]:
    return lambda rows: mean([getattr(token_overlap(row.reference, row.prediction), name) for row in rows])


def _matches(equal: Callable[[str, str], bool]) -> Callable[[Sequence[Scored]], Sums]:
    return lambda rows: mean([100.0 * equal(row.reference, row.prediction) for row in rows], share=True)


SUMS: Mapping[str, Callable[[Sequence[Scored]], Sums]] = {
    "bleu": partial(_bleu, tokens="13a", orders=(1, 2, 3, 4), smoothing=True),
    "bleu_sentence": lambda rows: mean(
        [c.sentence for c in text.bleu_counts([(r.reference, r.prediction) for r in rows])]
    ),
    "bleu1": partial(_bleu, tokens="none", orders=(1,)),
    "bleu2": partial(_bleu, tokens="none", orders=(2,)),
    "bleu4": partial(_bleu, tokens="none", orders=(1, 2, 3, 4)),
    "rouge1": _of_words(lambda reference, prediction: overlap(reference, prediction).f1),
    "rouge2": _of_words(partial(text.rouge_n, order=2)),
    "rougeL": _of_words(text.rouge_l),
    "token_precision": _of_tokens("precision"),
    "token_recall": _of_tokens("recall"),
    "token_f1": _of_tokens("f1"),
    "micro_precision": partial(_micro, above=(0,), below=(1,)),
    "micro_recall": partial(_micro, above=(0,), below=(2,)),
    "micro_f1": partial(_micro, above=(0, 0), below=(1, 2)),
    "stop_word_rate": _stop_words,
    "content_word_recovery": _content_words,
    "exact_match": _matches(text.exact_match),
    "exact_match_no_punctuation": _matches(text.exact_match_no_punctuation),
    "edit_distance_mean": lambda rows: mean([text.edit_distance(row.reference, row.prediction) for row in rows]),
    "cosine": lambda rows: mean([row.cosine for row in rows]),
    "entity_recovery": _entities,
}
