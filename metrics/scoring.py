"""Score predictions: all metrics of a test set.

    score([Scored("Ada lives in Paris.", "Ada lives in Rome.")])  ->  {"bleu": 42.7..., "token_f1": 75.0, ...}

docs/metrics.md defines each metric, and lists differences from metrics of the same name in the papers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from unembed.metrics.base import ExampleMetric, Measured, Values
from unembed.metrics.bleu import SentenceBleu, bleu, geia_bleu
from unembed.metrics.entities import EntityRecovery, NameRecovery, UnseenEntityRecovery, lexicon_metrics, span_text
from unembed.metrics.fluency import ContentWordRecovery, Perplexity, StopWordDifference, StopWordRate
from unembed.metrics.matches import EditDistanceMean, EditDistanceMedian, ExactMatch
from unembed.metrics.rouge import ClippedBleu1, ClippedRouge1, RougeL, RougeN
from unembed.metrics.scored import Scored
from unembed.metrics.statistics import Floats
from unembed.metrics.vectors import Cosine
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
_OF_MODELS = (
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
    measured = _measured([*built_in, *map(EntityRecovery, labels), *own], rows)
    by_key = {one.metric.description.key: one for one in measured}
    by_length = [one for one in measured if one.metric.description.key in OF_LENGTH]
    chief = [by_key[key] for key in (*CHIEF, *(metric.description.key for metric in own))]
    return {
        **_values(measured, rows),
        "examples": len(rows),
        **_of_groups(chief, rows, lambda row: row.language),
        **_of_groups(by_length, rows, _length, BY_LENGTH, LENGTHS.index),
        **_of_translations(own, rows),
    }


def check(rows: Sequence[Scored]) -> None:
    """Check that rows can be scored together; raises as ``score`` does."""
    if not rows:
        raise ValueError("there is nothing to score: no rows")
    for place, row in enumerate(rows):
        if not row.reference.strip():
            raise ValueError(f"row {place}: the reference is empty")
        if row.kind != rows[0].kind:
            raise ValueError(f"row {place} is a {row.kind} and row 0 a {rows[0].kind}: they cannot be scored together")
        for name in _OF_MODELS:
            first, own = (getattr(one, name) for one in (rows[0], row))
            if (first is None) != (own is None):
                without, other = (0, place) if first is None else (place, 0)
                raise ValueError(f"row {without} has no {name} and row {other} has one")
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


def _measured(metrics: Sequence[TextMetric], rows: Sequence[Scored]) -> list[Measured[Scored]]:
    """The metrics with their statistics, which some of them share."""
    shared: dict[object, Floats] = {}
    for metric in metrics:
        if metric.shares not in shared:
            shared[metric.shares] = metric.statistics(rows)
    return [Measured(metric, shared[metric.shares]) for metric in metrics]


def _values(
    measured: Sequence[Measured[Scored]], rows: Sequence[Scored], where: Sequence[int] | slice = slice(None)
) -> Values:
    """The values of all rows, or of the rows ``where``."""
    values: Values = {}
    for one in measured:
        undefined = one.metric.ordered and rows[0].kind == "set"
        values[one.metric.description.key] = None if undefined else one.metric.written(one.parts[where])
    return values


def _of_groups(
    measured: Sequence[Measured[Scored]],
    rows: Sequence[Scored],
    group_of: Callable[[Scored], str | None],
    prefix: str = "",
    order: Callable[[str], Any] = str,
) -> Values:
    """``<prefix><name>/<group>`` for each group of rows in order; empty for fewer than two known groups."""
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if (group := group_of(row)) is not None:
            groups.setdefault(group, []).append(place)
    values: Values = {}
    for group in sorted(groups, key=order) if len(groups) > 1 else ():
        own = {**_values(measured, rows, groups[group]), "examples": len(groups[group])}
        values.update({f"{prefix}{name}/{group}": value for name, value in own.items()})
    return values


def _length(row: Scored) -> str | None:
    """Which of ``LENGTHS`` the reference has."""
    lengths = row.subwords and row.subwords.lengths
    return LENGTHS[bisect_left(BOUNDS, lengths[0])] if lengths else None


def _of_translations(own: Sequence[TextMetric], rows: Sequence[Scored]) -> Values:
    """``translated/<name>`` and, for several languages, ``translated/<name>/<language>``; empty without translations.

    Rows without a translation are left out; ``translated/examples`` is the number of rows.
    """
    translated = [
        replace(row, reference=row.translation_reference or row.reference, prediction=row.translation, cosine=None)
        for row in rows
        if row.translation is not None
    ]
    if not translated:
        return {}
    by_key = {metric.description.key: metric for metric in text_metrics()}
    measured = _measured([*(by_key[key] for key in CHIEF if not key.startswith(_NOT_TRANSLATED)), *own], translated)
    values = {
        **_values(measured, translated),
        "examples": len(translated),
        **_of_groups(measured, translated, lambda row: row.language),
    }
    return {f"{TRANSLATED}{name}": value for name, value in values.items()}
