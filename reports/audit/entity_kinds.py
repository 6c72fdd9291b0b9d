"""Leaked entities by kind: measured if the true texts are known, else estimated from the recovered texts.

Measured: an entity of a true text leaks if it occurs in the recovered text as whole words. Estimated: an entity found
in recovered texts by its form or by a tagger is assumed correct as often as in the run's own test texts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from examples import Span
from metrics.entities import recovered_entities, span_text
from reports.audit.findings import AuditedShare, Kind, Reading, Truth
from reports.audit.reading import Known
from scoring.taggers import Tagger


def leaked(truths: Sequence[Truth], readings: Sequence[Reading], *, ordered: bool) -> list[Kind]:
    """For each kind of entity in the true texts, the share that was recovered; the most frequent kinds first."""
    hits = leaks(truths, readings, ordered=ordered)
    kinds = [Kind(label, len(found), AuditedShare.of(found)) for label, found in hits.items()]
    return sorted(kinds, key=lambda kind: (-kind.total, kind.label))


def leaks(truths: Sequence[Truth], readings: Sequence[Reading], *, ordered: bool) -> dict[str, list[bool]]:
    """For each kind, whether each of its entities was recovered; one that occurs twice must be recovered twice."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for truth, reading in zip(truths, readings, strict=True):
        values: dict[str, list[str]] = defaultdict(list)
        for span in truth.spans:
            values[span.label].append(span_text(truth.text, span))
        for label, texts in values.items():
            found = recovered_entities(texts, reading.text, ordered=ordered)
            hits[label] += [True] * found + [False] * (len(texts) - found)
    return hits


def suspected(readings: Sequence[Reading], known: Known, tagger: Tagger, *, ordered: bool) -> list[Kind]:
    """Entities in the recovered texts, with the share that was correct in the test texts."""
    right: dict[str, list[bool]] = defaultdict(list)
    for truth, value in _values(known.readings, tagger, known.truths):
        right[value[0]].append(recovered_entities([value[1]], truth.text if truth else "", ordered=ordered) > 0)
    totals: dict[str, int] = defaultdict(int)
    for _, value in _values(readings, tagger, [None] * len(readings)):
        totals[value[0]] += 1
    kinds = [Kind(label, total, _estimated(AuditedShare.of(right[label]))) for label, total in totals.items()]
    return sorted(kinds, key=lambda kind: (-kind.total, kind.label))


def _estimated(share: AuditedShare | None) -> AuditedShare | None:
    """A share of the test texts, as an estimate for the store."""
    return None if share is None else replace(share, measured=False)


def _values(
    readings: Sequence[Reading], tagger: Tagger, truths: Sequence[Truth | None]
) -> list[tuple[Truth | None, tuple[str, str]]]:
    """Label and text of each entity in the recovered texts, with the true text of its row."""
    tagged = tagger.tag([reading.text for reading in readings])
    return [
        (truth, (span.label, reading.text[span.start : span.end]))
        for reading, spans, truth in zip(readings, tagged, truths, strict=True)
        for span in spans
    ]


def places(text: str, truth: Truth | None, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Entities of a recovered text: those found by the tagger, and those of the true text that occur in it."""
    found = list(spans)
    for span in () if truth is None else truth.spans:
        value = r"\s+".join(map(re.escape, span_text(truth.text, span).split())) if truth else ""
        pattern = re.compile(rf"(?<!\w){value}(?!\w)", re.IGNORECASE)
        found += [Span(match.start(), match.end(), span.label) for match in pattern.finditer(text)]
    # Of two overlapping entities the longer one determines the label.
    chosen: list[Span] = []
    for one in sorted(found, key=lambda span: (span.start - span.end, span.start, span.label)):
        if all(one.end <= other.start or other.end <= one.start for other in chosen):
            chosen.append(one)
    return tuple(sorted(chosen, key=lambda span: span.start))
