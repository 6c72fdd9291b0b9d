"""The one place where predictions are scored.

    score([Scored("Ada lives in Paris.", "Ada lives in Rome.")])  ->  {"bleu": 42.7..., "token_f1": 75.0, ...}

Figures do not depend on the order of the rows: counts are whole numbers, and means are sums rounded once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from examples import Span
from metrics import text
from metrics.entities import entity_key, recovered_entities, span_text
from metrics.tokens import Overlap, overlap, rouge_words, token_overlap

Figures = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Scored:
    """One example with its prediction.

    Attributes:
        reference: The text that the embedder saw.
        prediction: The attack's best candidate; may be empty.
        spans: Entities of the reference.
        kind: "set" where the prediction is words in no order, joined by spaces; metrics of order are None for it.
        cosine: Cosine of the embedder's vector of the prediction with the target, -1..1, where it was asked.
    """

    reference: str
    prediction: str
    spans: tuple[Span, ...] = ()
    kind: Literal["sequence", "set"] = "sequence"
    cosine: float | None = None


def score(rows: Sequence[Scored], *, training_entities: frozenset[tuple[str, str]] | None = None) -> Figures:
    """All figures of a test set; percentages 0-100, None where a figure has no meaning for these rows.

    Keys: ``bleu`` (sacreBLEU, corpus), ``bleu_sentence`` (mean over examples, exp smoothing), ``bleu1``, ``bleu2``,
    ``bleu4`` (GEIA's, see ``metrics.text``), ``rouge1``, ``rouge2``, ``rougeL`` (F measure, mean over examples;
    ``rouge2`` over those of which either text has two words, or which share none),
    ``token_precision``, ``token_recall``, ``token_f1`` (over words, mean over examples), ``exact_match``,
    ``exact_match_no_punctuation``, ``edit_distance_mean``, ``edit_distance_median`` (characters), ``cosine`` (-1..1),
    ``entity_recovery`` and ``entity_recovery_unseen`` (share of all spans; the latter of those that are not in
    ``training_entities``), ``examples``.

    Args:
        rows: The examples, in any order; all of one kind.
        training_entities: All ``metrics.entities.entity_keys`` of the training split; None where it is unknown.

    Raises:
        ValueError: No rows; both kinds; a blank reference; a span outside its reference; a cosine in some rows only, or
            outside -1..1. The message names the row by its place in ``rows``, counted from 0.
    """
    _check(rows)
    ordered = rows[0].kind == "sequence"
    tokens = [(rouge_words(row.reference), rouge_words(row.prediction)) for row in rows]
    figures: Figures = {}
    figures.update(_bleu(rows) if ordered else dict.fromkeys(_BLEU))
    figures["rouge1"] = _mean(overlap(*pair).f1 for pair in tokens)
    figures["rouge2"] = _mean(text.rouge_n(*pair, order=2) for pair in tokens) if ordered else None
    figures["rougeL"] = _mean(text.rouge_l(*pair) for pair in tokens) if ordered else None
    figures.update(_words([token_overlap(row.reference, row.prediction) for row in rows]))
    figures.update(_matches(rows) if ordered else dict.fromkeys(_MATCHES))
    figures["cosine"] = _mean(row.cosine for row in rows)
    figures.update(_entities(rows, training_entities))
    figures["examples"] = len(rows)
    return figures


_BLEU = ("bleu", "bleu_sentence", "bleu1", "bleu2", "bleu4")
_MATCHES = ("exact_match", "exact_match_no_punctuation", "edit_distance_mean", "edit_distance_median")


def _check(rows: Sequence[Scored]) -> None:
    if not rows:
        raise ValueError("there is nothing to score: no rows")
    for place, row in enumerate(rows):
        if not row.reference.strip():
            raise ValueError(f"row {place}: the reference is empty")
        if row.kind != rows[0].kind:
            raise ValueError(f"row {place} is a {row.kind} and row 0 a {rows[0].kind}: they cannot be scored together")
        if (row.cosine is None) != (rows[0].cosine is None):
            without, has = (place, 0) if row.cosine is None else (0, place)
            raise ValueError(f"row {without} has no cosine and row {has} has one")
        if row.cosine is not None and not abs(row.cosine) <= 1 + 1e-6:
            raise ValueError(f"row {place}: cosine {row.cosine} is outside -1..1")
        for span in row.spans:
            try:
                span_text(row.reference, span)
            except ValueError as error:
                raise ValueError(f"row {place}: {error}") from error


def _bleu(rows: Sequence[Scored]) -> Figures:
    pairs = [(row.reference, row.prediction) for row in rows]
    standard, spaced = text.bleu_counts(pairs, "13a"), text.bleu_counts(pairs, "none")
    return {
        "bleu": text.corpus_bleu(standard),
        "bleu_sentence": _mean(counts.sentence for counts in standard),
        "bleu1": text.order_bleu(spaced, 1),
        "bleu2": text.order_bleu(spaced, 2),
        "bleu4": text.corpus_bleu(spaced, smoothing="none"),
    }


def _words(overlaps: Sequence[Overlap]) -> Figures:
    return {
        "token_precision": _mean(o.precision for o in overlaps),
        "token_recall": _mean(o.recall for o in overlaps),
        "token_f1": _mean(o.f1 for o in overlaps),
    }


def _matches(rows: Sequence[Scored]) -> Figures:
    distances = [text.edit_distance(row.reference, row.prediction) for row in rows]
    bare = sum(text.exact_match_no_punctuation(row.reference, row.prediction) for row in rows)
    return {
        "exact_match": 100 * sum(text.exact_match(row.reference, row.prediction) for row in rows) / len(rows),
        "exact_match_no_punctuation": 100 * bare / len(rows),
        "edit_distance_mean": sum(distances) / len(rows),
        "edit_distance_median": float(statistics.median(distances)),
    }


def _entities(rows: Sequence[Scored], training: frozenset[tuple[str, str]] | None) -> Figures:
    found = total = found_unseen = total_unseen = 0
    for row in rows:
        labelled = [(span.label, span_text(row.reference, span)) for span in row.spans]
        values = [value for _, value in labelled]
        unseen = [
            value for label, value in labelled if training is not None and entity_key(label, value) not in training
        ]
        ordered = row.kind == "sequence"
        found += recovered_entities(values, row.prediction, ordered=ordered)
        found_unseen += recovered_entities(unseen, row.prediction, ordered=ordered)
        total += len(values)
        total_unseen += len(unseen)
    return {
        "entity_recovery": 100 * found / total if total else None,
        "entity_recovery_unseen": 100 * found_unseen / total_unseen if total_unseen else None,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that exist, rounded once, so that it does not depend on their order; None of none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
