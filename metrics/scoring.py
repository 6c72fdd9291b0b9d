"""The one place where predictions are scored.

    score([Scored("Ada lives in Paris.", "Ada lives in Rome.")])  ->  {"bleu": 42.7..., "token_f1": 75.0, ...}

Figures do not depend on the order of the rows: counts are whole numbers, and means are sums rounded once.
docs/metrics.md says what each is, and where it differs from the papers' of the same name.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metrics import text
from metrics.by_language import of_languages, of_translations
from metrics.clipped import clipped_bleu1, clipped_rouge1
from metrics.entities import Recovery, entity_key, span_text
from metrics.micro import Sets, micro
from metrics.names import names
from metrics.perplexity import perplexity
from metrics.scored import Figures, Scored
from metrics.stop_words import LANGUAGE, content_words, stop_words
from metrics.tokens import Overlap, overlap, rouge_words, words


@dataclass(frozen=True, slots=True)
class _Cut:
    """The words of both texts of a row, cut once for all figures."""

    reference: list[str]
    prediction: list[str]


def score(rows: Sequence[Scored], *, training_entities: frozenset[tuple[str, str]] | None = None) -> Figures:
    """All figures of a test set; percentages 0-100, None where a figure has no meaning for these rows.

    Keys, in the order of the result: ``bleu`` (sacreBLEU, corpus), ``bleu_sentence`` (mean over examples, exp
    smoothing), ``bleu1``, ``bleu2``, ``bleu4`` (GEIA's, see ``metrics.text``), ``rouge1``, ``rouge2``, ``rougeL`` (F
    measure, mean over examples; ``rouge2`` over those of which either text has two words, or which share none),
    ``clipped_bleu1``, ``clipped_rouge1`` (``metrics.clipped``, mean over examples), ``token_precision``,
    ``token_recall``, ``token_f1`` (over words, mean over examples), ``micro_*`` (over sets of words),
    ``micro_piece_*`` and ``micro_token_*`` (over sets of ids; ``metrics.micro``), ``exact_match``,
    ``exact_match_no_punctuation``, ``edit_distance_mean``, ``edit_distance_median`` (characters), ``cosine``,
    ``cosine_clean`` and ``cosine_second`` (-1..1), ``perplexity``, ``stop_word_rate``, ``stop_word_rate_reference``,
    ``stop_word_rate_difference`` (percentage points), ``content_word_recovery``, ``entity_recovery`` and
    ``entity_recovery_unseen`` (share of all spans; the latter of those that are not in ``training_entities``),
    ``name_first_recovery``, ``name_last_recovery``, ``name_full_recovery`` (``metrics.names``), one
    ``entity_recovery/<label>`` for each label of the spans, and ``examples``; then those of ``metrics.by_language``:
    the chief ones of each language where the rows are of several, and ``translated/*`` where predictions were
    translated.

    Args:
        rows: The examples, in any order; all of one kind.
        training_entities: All ``metrics.entities.entity_keys`` of the training split; None where it is unknown.

    Raises:
        ValueError: No rows; both kinds; a blank reference; a span outside its reference; a cosine, pieces, tokens or a
            likelihood in some rows only; a cosine outside -1..1. The message names the row by its place in ``rows``,
            counted from 0.
    """
    _check(rows)
    ordered = rows[0].kind == "sequence"
    cut = [_Cut(words(row.reference), words(row.prediction)) for row in rows]
    figures: Figures = {}
    figures.update(_bleu(rows) if ordered else dict.fromkeys(_BLEU))
    figures.update(_rouge(rows, ordered))
    figures.update(_clipped(rows) if ordered else dict.fromkeys(_CLIPPED))
    figures.update(_words([overlap(one.reference, one.prediction) for one in cut]))
    figures.update(_micro("micro", [Sets(frozenset(one.reference), frozenset(one.prediction)) for one in cut]))
    figures.update(_micro("micro_piece", [row.pieces for row in rows if row.pieces is not None]))
    figures.update(_micro("micro_token", [row.tokens for row in rows if row.tokens is not None]))
    figures.update(_matches(rows) if ordered else dict.fromkeys(_MATCHES))
    figures["cosine"] = _mean(row.cosine for row in rows)
    figures["cosine_clean"] = _mean(row.cosine_clean for row in rows)
    figures["cosine_second"] = _mean(row.cosine_second for row in rows)
    figures["perplexity"] = perplexity(row.likelihood for row in rows if row.likelihood is not None)
    figures.update(_stop_words([one for one, row in zip(cut, rows, strict=True) if row.language in (None, LANGUAGE)]))
    figures.update(_entities(rows, training_entities))
    figures["examples"] = len(rows)
    figures.update(of_languages(rows))
    figures.update(of_translations(rows))
    return figures


_BLEU = ("bleu", "bleu_sentence", "bleu1", "bleu2", "bleu4")
_CLIPPED = ("clipped_bleu1", "clipped_rouge1")
_MATCHES = ("exact_match", "exact_match_no_punctuation", "edit_distance_mean", "edit_distance_median")
_WHERE_ASKED = ("cosine", "cosine_clean", "cosine_second", "pieces", "tokens", "likelihood")


def _check(rows: Sequence[Scored]) -> None:
    if not rows:
        raise ValueError("there is nothing to score: no rows")
    has = {name: getattr(rows[0], name) is not None for name in _WHERE_ASKED}
    for place, row in enumerate(rows):
        if not row.reference.strip():
            raise ValueError(f"row {place}: the reference is empty")
        if row.kind != rows[0].kind:
            raise ValueError(f"row {place} is a {row.kind} and row 0 a {rows[0].kind}: they cannot be scored together")
        for name in _WHERE_ASKED:
            if (getattr(row, name) is not None) != has[name]:
                without, one = (place, 0) if has[name] else (0, place)
                raise ValueError(f"row {without} has no {name} and row {one} has one")
        for cosine in (row.cosine, row.cosine_clean, row.cosine_second):
            if cosine is not None and not abs(cosine) <= 1 + 1e-6:
                raise ValueError(f"row {place}: cosine {cosine} is outside -1..1")
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


def _rouge(rows: Sequence[Scored], ordered: bool) -> Figures:
    tokens = [(rouge_words(row.reference), rouge_words(row.prediction)) for row in rows]
    return {
        "rouge1": _mean(overlap(*pair).f1 for pair in tokens),
        "rouge2": _mean(text.rouge_n(*pair, order=2) for pair in tokens) if ordered else None,
        "rougeL": _mean(text.rouge_l(*pair) for pair in tokens) if ordered else None,
    }


def _clipped(rows: Sequence[Scored]) -> Figures:
    pairs = [(row.reference.split(), row.prediction.split()) for row in rows]
    return {
        "clipped_bleu1": _mean(clipped_bleu1(*pair) for pair in pairs),
        "clipped_rouge1": _mean(clipped_rouge1(*pair) for pair in pairs),
    }


def _words(overlaps: Sequence[Overlap]) -> Figures:
    return {
        "token_precision": _mean(o.precision for o in overlaps),
        "token_recall": _mean(o.recall for o in overlaps),
        "token_f1": _mean(o.f1 for o in overlaps),
    }


def _micro(name: str, examples: Sequence[Sets]) -> Figures:
    found = micro(examples)
    precision, recall, f1 = found if found is not None else (None, None, None)
    return {f"{name}_precision": precision, f"{name}_recall": recall, f"{name}_f1": f1}


def _matches(rows: Sequence[Scored]) -> Figures:
    distances = [text.edit_distance(row.reference, row.prediction) for row in rows]
    bare = sum(text.exact_match_no_punctuation(row.reference, row.prediction) for row in rows)
    return {
        "exact_match": 100 * sum(text.exact_match(row.reference, row.prediction) for row in rows) / len(rows),
        "exact_match_no_punctuation": 100 * bare / len(rows),
        "edit_distance_mean": sum(distances) / len(rows),
        "edit_distance_median": float(statistics.median(distances)),
    }


def _stop_words(cut: Sequence[_Cut]) -> Figures:
    rate = stop_words(one.prediction for one in cut).rate
    usual = stop_words(one.reference for one in cut).rate
    found = total = 0
    for one in cut:
        wanted = content_words(one.reference)
        found += len(wanted.intersection(one.prediction))
        total += len(wanted)
    return {
        "stop_word_rate": rate,
        "stop_word_rate_reference": usual,
        "stop_word_rate_difference": None if rate is None or usual is None else rate - usual,
        "content_word_recovery": 100 * found / total if total else None,
    }


def _entities(rows: Sequence[Scored], training: frozenset[tuple[str, str]] | None) -> Figures:
    every, unseen, first, last, full = (Recovery() for _ in range(5))
    by_label: defaultdict[str, Recovery] = defaultdict(Recovery)
    for row in rows:
        ordered = row.kind == "sequence"
        values: defaultdict[str, list[str]] = defaultdict(list)
        new = []
        for span in row.spans:
            value = span_text(row.reference, span)
            values[span.label].append(value)
            if training is not None and entity_key(span.label, value) not in training:
                new.append(value)
        every.add([value for found in values.values() for value in found], row.prediction, ordered=ordered)
        unseen.add(new, row.prediction, ordered=ordered)
        for label, found in values.items():
            by_label[label].add(found, row.prediction, ordered=ordered)
        for recovery, found in zip((first, last, full), names(row.reference, row.spans), strict=True):
            recovery.add(found, row.prediction, ordered=ordered)
    return {
        "entity_recovery": every.rate,
        "entity_recovery_unseen": unseen.rate,
        "name_first_recovery": first.rate,
        "name_last_recovery": last.rate,
        "name_full_recovery": full.rate,
        **{f"entity_recovery/{label}": by_label[label].rate for label in sorted(by_label)},
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that exist, rounded once, so that it does not depend on their order; None of none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
