"""The chief figures of some rows, of each language, and of predictions that were translated.

    short(rows)                ->  {"bleu": 41.2, "rougeL": 60.0, "token_f1": 63.5, "exact_match": 11.0, ...}
    of_languages(rows)         ->  {"bleu/de": 38.0, ..., "examples/fr": 500}
    of_translations(rows)      ->  {"translated/bleu": 12.4, ..., "translated/bleu/fr": 12.4}

A translation counts in the place of the prediction (ad hoc translation, Chen et al. 2024, section 4): an attack that
was trained on German writes German, whatever language its target is in, and shares few words with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from metrics import text
from metrics.scored import Figures, Scored
from metrics.tokens import rouge_words, token_overlap

NAMES = ("exact_match", "token_f1", "bleu", "rougeL", "cosine", "examples")
TRANSLATED = "translated/"


def short(rows: Sequence[Scored]) -> Figures:
    """The figures of ``NAMES`` as ``metrics.scoring.score`` has them; those of order are None for sets of words."""
    pairs = [(row.reference, row.prediction) for row in rows]
    known = [row.cosine for row in rows if row.cosine is not None]
    figures: Figures = dict.fromkeys(NAMES)
    if all(row.kind == "sequence" for row in rows):
        figures["exact_match"] = 100 * sum(text.exact_match(*pair) for pair in pairs) / len(rows)
        figures["bleu"] = text.corpus_bleu(text.bleu_counts(pairs, "13a"))
        figures["rougeL"] = _mean([text.rouge_l(*map(rouge_words, pair)) for pair in pairs])
    figures["token_f1"] = _mean([token_overlap(*pair).f1 for pair in pairs])
    figures["cosine"] = _mean(known) if known else None
    figures["examples"] = len(rows)
    return figures


def of_languages(rows: Sequence[Scored]) -> Figures:
    """``<name>/<language>`` for each language, by name; nothing where fewer than two are known."""
    languages = sorted({row.language for row in rows if row.language is not None})
    if len(languages) < 2:
        return {}
    return {
        f"{name}/{language}": value
        for language in languages
        for name, value in short([row for row in rows if row.language == language]).items()
    }


def of_translations(rows: Sequence[Scored]) -> Figures:
    """``translated/<name>`` and, of several languages, ``translated/<name>/<language>``; nothing without translations.

    Rows without a translation are left out, so ``translated/examples`` says how many there are.
    """
    there = [replace(row, prediction=row.translation, cosine=None) for row in rows if row.translation is not None]
    if not there:
        return {}
    found = {**short(there), **of_languages(there)}
    return {f"{TRANSLATED}{name}": value for name, value in found.items() if not name.startswith("cosine")}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
