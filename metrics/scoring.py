"""The one place where predictions are scored.

    score([Scored("Ada lives in Paris.", "Ada lives in Rome.")])  ->  {"bleu": 42.7..., "token_f1": 75.0, ...}

Values do not depend on the order of the rows: counts are whole numbers, and means are sums rounded once.
docs/metrics.md says what each metric is, and where it differs from the papers' of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchmetrics import MetricCollection

from metrics.base import ExampleMetric
from metrics.bleu import SentenceBleu, bleu, geia_bleu
from metrics.cosine import Cosine, CosineSecond, CosineUndefended
from metrics.entities import span_text
from metrics.entity_recovery import EntityRecovery, NameRecovery, UnseenEntityRecovery
from metrics.fluency import ContentWordRecovery, Perplexity, StopWordDifference, StopWordRate
from metrics.matches import EditDistanceMean, EditDistanceMedian, ExactMatch, ExactMatchNoPunctuation
from metrics.rouge import ClippedBleu1, ClippedRouge1, RougeL, RougeN
from metrics.scored import Figures, Scored
from metrics.statistics import Floats
from metrics.word_overlap import PARTS, TokenOverlap, micro_subwords, micro_tokens, micro_words

TextMetric = ExampleMetric[Scored]
# Of each language, and of translated predictions.
CHIEF = ("exact_match", "token_f1", "bleu", "rougeL", "cosine")
TRANSLATED = "translated/"
_WHERE_ASKED = ("cosine", "cosine_clean", "cosine_second", "pieces", "tokens", "likelihood")


def text_metrics(training: frozenset[tuple[str, str]] | None = None, **settings: Any) -> list[TextMetric]:
    """All metrics of texts, in the order of metrics.json and of tables.

    Args:
        training: All ``metrics.entities.entity_keys`` of the training split; None where it is unknown.
        settings: Of torchmetrics.Metric, such as ``sync_on_compute``.
    """
    return [
        ExactMatch(**settings),
        ExactMatchNoPunctuation(**settings),
        *(TokenOverlap(part, **settings) for part in PARTS),
        *(micro_words(part, **settings) for part in PARTS),
        *(micro_subwords(part, **settings) for part in PARTS),
        *(micro_tokens(part, **settings) for part in PARTS),
        bleu(**settings),
        SentenceBleu(**settings),
        *(geia_bleu(order, **settings) for order in (1, 2, 4)),
        *(RougeN(order, **settings) for order in (1, 2)),
        RougeL(**settings),
        ClippedBleu1(**settings),
        ClippedRouge1(**settings),
        EditDistanceMean(**settings),
        EditDistanceMedian(**settings),
        Cosine(**settings),
        CosineUndefended(**settings),
        CosineSecond(**settings),
        Perplexity(**settings),
        ContentWordRecovery(**settings),
        StopWordDifference(**settings),
        StopWordRate("prediction", **settings),
        StopWordRate("reference", **settings),
        EntityRecovery(**settings),
        UnseenEntityRecovery(training, **settings),
        *(NameRecovery(part, **settings) for part in ("first", "last", "full")),
    ]


def metric_of(key: str) -> TextMetric | None:
    """The metric with that key of metrics.json, those of one label included; None where there is none."""
    family, _, label = key.partition("/")
    if family == "entity_recovery" and label:
        return EntityRecovery(label)
    return next((metric for metric in text_metrics() if metric.description.key == key), None)


def score(rows: Sequence[Scored], *, training_entities: frozenset[tuple[str, str]] | None = None) -> Figures:
    """All metrics of a test set; percentages 0-100, None where a metric is undefined for these rows.

    Keys, in the order of the result: those of ``text_metrics``; one ``entity_recovery/<label>`` for each label of the
    spans; ``examples``; ``<name>/<language>`` of the chief ones for each language, where the rows are of several; and
    ``translated/<name>`` where predictions were translated. A translation counts in the place of the prediction (ad hoc
    translation, Chen et al. 2024, section 4): an attack that was trained on German writes German, whatever language
    its target is in, and shares few words with it.

    Args:
        rows: The examples, in any order; all of one kind.
        training_entities: All ``metrics.entities.entity_keys`` of the training split; None where it is unknown.

    Raises:
        ValueError: No rows; both kinds; a blank reference; a span outside its reference; a cosine, pieces, tokens or a
            likelihood in some rows only; a cosine outside -1..1. The message names the row by its place in ``rows``,
            counted from 0.
    """
    check(rows)
    # Predictions have been gathered over ranks already.
    metrics = text_metrics(training_entities, sync_on_compute=False)
    collection(metrics).update(rows)
    values = _values(metrics, rows)
    labels = sorted({span.label for row in rows for span in row.spans})
    by_label: list[TextMetric] = [EntityRecovery(label, sync_on_compute=False) for label in labels]
    for metric in by_label:
        metric.update(rows)
    values.update(_values(by_label, rows))
    values["examples"] = len(rows)
    values.update(_of_languages(metrics, rows))
    values.update(_of_translations(rows))
    return values


def check(rows: Sequence[Scored]) -> None:
    """Whether rows can be scored together.

    Raises:
        ValueError: As ``score``.
    """
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


def collection(metrics: Sequence[TextMetric]) -> MetricCollection:
    """Metrics that share their statistics where these are the same.

    torchmetrics would find such groups by comparing the states after the first batch, where two metrics can agree by
    chance.
    """
    groups: dict[object, list[str]] = {}
    for metric in metrics:
        groups.setdefault(metric.shares, []).append(metric.description.key)
    by_key = {metric.description.key: metric for metric in metrics}
    return MetricCollection(dict(by_key), compute_groups=list(groups.values()))


def _values(metrics: Sequence[TextMetric], rows: Sequence[Scored], where: Sequence[int] | None = None) -> Figures:
    """The values of all rows, or of those at the places ``where``."""
    sequences = all(row.kind == "sequence" for row in rows)
    found: Figures = {}
    for metric in metrics:
        parts: Floats = metric.parts_so_far()
        value = metric.value(parts if where is None else parts[list(where)])
        undefined = math.isnan(value) or (metric.ordered and not sequences)
        found[metric.description.key] = None if undefined else value
    return found


def _of_languages(metrics: Sequence[TextMetric], rows: Sequence[Scored]) -> Figures:
    """``<name>/<language>`` of the chief metrics, by name; nothing where fewer than two languages are known."""
    languages = sorted({row.language for row in rows if row.language is not None})
    if len(languages) < 2:
        return {}
    chosen = [metric for key in CHIEF for metric in metrics if metric.description.key == key]
    found: Figures = {}
    for language in languages:
        where = [place for place, row in enumerate(rows) if row.language == language]
        found.update({f"{name}/{language}": value for name, value in _values(chosen, rows, where).items()})
        found[f"examples/{language}"] = len(where)
    return found


def _of_translations(rows: Sequence[Scored]) -> Figures:
    """``translated/<name>`` and, of several languages, ``translated/<name>/<language>``; nothing without translations.

    Rows without a translation are left out, so ``translated/examples`` says how many there are.
    """
    there = [replace(row, prediction=row.translation, cosine=None) for row in rows if row.translation is not None]
    if not there:
        return {}
    chosen = [metric for metric in text_metrics(sync_on_compute=False) if metric.description.key in CHIEF]
    collection(chosen).update(there)
    ordered = sorted(chosen, key=lambda metric: CHIEF.index(metric.description.key))
    found = {**_values(ordered, there), "examples": len(there), **_of_languages(chosen, there)}
    return {f"{TRANSLATED}{name}": value for name, value in found.items() if not name.startswith("cosine")}
