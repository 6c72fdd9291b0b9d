"""Score predictions: all metrics of a test set.

    score([Scored("Ada lives in Paris.", "Ada lives in Rome.")])  ->  {"bleu": 42.7..., "token_f1": 75.0, ...}

docs/metrics.md defines each metric, and lists differences from metrics of the same name in the papers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Literal

from torchmetrics import MetricCollection

from unembed.metrics.base import ExampleMetric, Values
from unembed.metrics.bleu import SentenceBleu, bleu, geia_bleu
from unembed.metrics.cosine import Cosine
from unembed.metrics.entities import span_text
from unembed.metrics.entity_recovery import EntityRecovery, NameRecovery, UnseenEntityRecovery, lexicon_metrics
from unembed.metrics.fluency import ContentWordRecovery, Perplexity, StopWordDifference, StopWordRate
from unembed.metrics.matches import (
    EditDistanceMean,
    EditDistanceMedian,
    ExactMatch,
)
from unembed.metrics.rouge import ClippedBleu1, ClippedRouge1, RougeL, RougeN
from unembed.metrics.scored import Scored
from unembed.metrics.word_overlap import PARTS, MicroOverlap, TokenCount, TokenOverlap, TokenSetF1

TextMetric = ExampleMetric[Scored]
# Of each language, and of translated predictions.
CHIEF = (
    *("exact_match", "token_f1", "token_set_f1", "bleu", "bleu_sentence", "rouge1", "rougeL", "cosine"),
    *("tokens_reference", "tokens_prediction"),
)
_COSINES: tuple[Literal["received", "clean", "second"], ...] = ("received", "clean", "second")
# Of the attack's own text: not computed for its translation.
_NOT_TRANSLATED = ("cosine", "tokens_")
TRANSLATED = "translated/"
_WHERE_ASKED = (
    *("cosine", "cosine_clean", "cosine_second", "subwords", "tokens", "likelihood", "unseen", "in_lexicon"),
    "entity_words",
)
# Groups of texts by the length of the reference, in tokens of the tokenizer that cut the texts.
BOUNDS = (8, 16, 32, 64, 128, 256)  # most tokens of each group
LONGER = "longer"  # than the last of them
LENGTHS = (*map(str, BOUNDS), LONGER)
BY_LENGTH = "length/"
OF_LENGTH = ("token_f1", "bleu", "exact_match", "content_word_recovery", "entity_recovery")


def text_metrics(*, lexicon: bool = False) -> list[TextMetric]:
    """All built-in metrics of texts, in the order of metrics.json and of tables.

    Args:
        lexicon: Include those of an attack with a lexicon.
    """
    return [
        ExactMatch(),
        ExactMatch("no_punctuation"),
        ExactMatch("no_punctuation_cased"),
        *(TokenOverlap(part) for part in PARTS),
        TokenSetF1(),
        *(MicroOverlap(part, "words") for part in PARTS),
        *(MicroOverlap(part, "subwords") for part in PARTS),
        *(MicroOverlap(part, "tokens") for part in PARTS),
        bleu(),
        SentenceBleu(),
        *(geia_bleu(order) for order in (1, 2, 4)),
        *(RougeN(order) for order in (1, 2)),
        RougeL(),
        ClippedBleu1(),
        ClippedRouge1(),
        EditDistanceMean(),
        EditDistanceMedian(),
        TokenCount("reference"),
        TokenCount("prediction"),
        *map(Cosine, _COSINES),
        Perplexity(),
        ContentWordRecovery(),
        StopWordDifference(),
        StopWordRate("prediction"),
        StopWordRate("reference"),
        EntityRecovery(),
        UnseenEntityRecovery(),
        *(lexicon_metrics() if lexicon else ()),
        *(NameRecovery(part) for part in ("first", "last", "full")),
    ]


def metric_of(key: str) -> TextMetric | None:
    """The metric with a key of metrics.json, including metrics of one label; None if there is none."""
    family, _, label = key.partition("/")
    if family == "entity_recovery" and label:
        return EntityRecovery(label)
    return next((metric for metric in text_metrics(lexicon=True) if metric.description.key == key), None)


def score(rows: Sequence[Scored], *, own: Sequence[TextMetric] = ()) -> Values:
    """All metrics of a test set; percentages 0-100, None if a metric is undefined for these rows.

    Keys, in the order of the result: those of ``text_metrics``, with those of a lexicon if rows have
    ``Scored.in_lexicon``; one ``entity_recovery/<label>`` for each label of the spans; those of ``own``; ``examples``;
    ``<name>/<language>`` of the main metrics and of ``own`` for each language, if there are several;
    ``length/<name>/<most tokens>`` of ``OF_LENGTH`` for each length, if there are several; and
    ``translated/<name>`` of the main metrics if predictions were translated. There the translation replaces the
    prediction (ad hoc translation, Chen et al. 2024, section 4), because an attack trained on German predicts German
    texts even for a target in another language.

    Args:
        rows: The examples, in any order; all of one kind.
        own: The user's metrics, with unique keys.

    Raises:
        ValueError: No rows; rows of both kinds; a blank reference; a span outside its reference; a cosine, subwords,
            tokens, a likelihood, or what is known of spans, in some rows only; a cosine outside -1..1. The message
            gives the row's index.
    """
    check(rows)
    labels = sorted({span.label for row in rows for span in row.spans})
    built_in = text_metrics(lexicon=rows[0].in_lexicon is not None)
    metrics: list[TextMetric] = [*built_in, *map(EntityRecovery, labels), *map(deepcopy, own)]
    collection(metrics).update(rows)
    chief = _chief(metrics, metrics[len(metrics) - len(own) :])
    return {
        **_values(metrics, rows),
        "examples": len(rows),
        **_of_languages(chief, rows),
        **_of_lengths(metrics, rows),
        **_of_translations(own, rows),
    }


def check(rows: Sequence[Scored]) -> None:
    """Check that rows can be scored together; raises as ``score`` does."""
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
        for known in (row.unseen, row.in_lexicon):
            if known is not None and len(known) != len(row.spans):
                raise ValueError(f"row {place}: {len(known)} values for {len(row.spans)} spans")
        for span in row.spans:
            try:
                span_text(row.reference, span)
            except ValueError as error:
                raise ValueError(f"row {place}: {error}") from error


def collection(metrics: Sequence[TextMetric]) -> MetricCollection:
    """A collection in which metrics with the same statistics share them.

    torchmetrics would find such groups by comparing the states after the first batch, where two metrics can agree by
    chance.
    """
    groups: dict[object, list[str]] = {}
    for metric in metrics:
        groups.setdefault(metric.shares, []).append(metric.description.key)
    by_key = {metric.description.key: metric for metric in metrics}
    return MetricCollection(dict(by_key), compute_groups=list(groups.values()))


def _chief(metrics: Sequence[TextMetric], own: Sequence[TextMetric]) -> list[TextMetric]:
    """The metrics that are also computed per language and for translations."""
    return [*(metric for key in CHIEF for metric in metrics if metric.description.key == key), *own]


def _values(metrics: Sequence[TextMetric], rows: Sequence[Scored], where: Sequence[int] | None = None) -> Values:
    """The values of all rows that the metrics have seen, or of the rows ``where``."""
    sequences = all(row.kind == "sequence" for row in rows)
    found: Values = {}
    for metric in metrics:
        parts = metric.parts_so_far()
        undefined = metric.ordered and not sequences
        found[metric.description.key] = None if undefined else metric.written(parts if where is None else parts[where])
    return found


def _of_languages(chief: Sequence[TextMetric], rows: Sequence[Scored]) -> Values:
    """``<name>/<language>``, by name; empty for fewer than two known languages."""
    languages = sorted({row.language for row in rows if row.language is not None})
    found: Values = {}
    for language in languages if len(languages) > 1 else ():
        where = [place for place, row in enumerate(rows) if row.language == language]
        found.update({f"{name}/{language}": value for name, value in _values(chief, rows, where).items()})
        found[f"examples/{language}"] = len(where)
    return found


def _of_lengths(metrics: Sequence[TextMetric], rows: Sequence[Scored]) -> Values:
    """``length/<name>/<most tokens>``, by length; empty for texts of one length, or of unknown ones."""
    groups = by_length(rows)
    chosen = [metric for metric in metrics if metric.description.key in OF_LENGTH]
    found: Values = {}
    for length, where in groups.items() if len(groups) > 1 else ():
        values = {**_values(chosen, rows, where), "examples": len(where)}
        found.update({f"{BY_LENGTH}{name}/{length}": value for name, value in values.items()})
    return found


def by_length(rows: Sequence[Scored]) -> dict[str, list[int]]:
    """The places of the rows of each group that has any, by name in order; rows of unknown length are left out."""
    found: dict[str, list[int]] = {name: [] for name in LENGTHS}
    for place, row in enumerate(rows):
        if row.subwords is not None and row.subwords.lengths is not None:
            found[LENGTHS[bisect_left(BOUNDS, row.subwords.lengths[0])]].append(place)
    return {name: places for name, places in found.items() if places}


def _of_translations(own: Sequence[TextMetric], rows: Sequence[Scored]) -> Values:
    """``translated/<name>`` and, for several languages, ``translated/<name>/<language>``; empty without translations.

    Rows without a translation are left out; ``translated/examples`` is the number of rows.
    """
    there = [
        replace(row, reference=row.translation_reference or row.reference, prediction=row.translation, cosine=None)
        for row in rows
        if row.translation is not None
    ]
    if not there:
        return {}
    chief = _chief(text_metrics(), [*map(deepcopy, own)])
    for metric in chief:
        metric.update(there)
    found = {**_values(chief, there), "examples": len(there), **_of_languages(chief, there)}
    return {f"{TRANSLATED}{name}": value for name, value in found.items() if not name.startswith(_NOT_TRANSLATED)}
