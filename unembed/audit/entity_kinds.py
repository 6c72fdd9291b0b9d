"""Leaked entities by kind, where the true texts are known; part_estimates.py estimates them where they are not.

An entity of a true text leaks if it occurs in the recovered text as whole words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from unembed.audit.findings import AuditedShare, Kind, Reading, Truth, most
from unembed.core.examples import Span
from unembed.metrics.entities import recovered_entities, span_text


def leaked(truths: Sequence[Truth], by_attacker: Sequence[Sequence[Reading]], *, ordered: bool) -> list[Kind]:
    """For each kind of entity in the true texts, the share that the attacker who recovers most of it recovers.

    The most frequent kinds come first. Intervals count texts: entities of one text are recovered or missed together.
    """
    each = [leaks(truths, readings, ordered=ordered) for readings in by_attacker]
    kinds = []
    for label in dict.fromkeys(label for counts in each[0] for label in counts):
        of_label = [[counts[label] for counts in texts if label in counts] for texts in each]
        share = most(AuditedShare.grouped(counts) for counts in of_label)
        kinds.append(Kind(label, sum(total for _, total in of_label[0]), share))
    return sorted(kinds, key=lambda kind: (-kind.total, kind.label))


def leaked_entities(truths: Sequence[Truth], readings: Sequence[Reading], *, ordered: bool) -> AuditedShare | None:
    """The share of the entities of any kind that was recovered; its interval counts texts. None without entities."""
    each = leaks(truths, readings, ordered=ordered)
    return AuditedShare.grouped(
        [(sum(read for read, _ in one.values()), sum(total for _, total in one.values())) for one in each]
    )


def leaks(truths: Sequence[Truth], readings: Sequence[Reading], *, ordered: bool) -> list[dict[str, tuple[int, int]]]:
    """Of each text, by kind, how many entities were recovered, of how many; one that occurs twice must be so twice."""
    found = []
    for truth, reading in zip(truths, readings, strict=True):
        values: dict[str, list[str]] = defaultdict(list)
        for span in truth.spans:
            values[span.label].append(span_text(truth.text, span))
        found.append(
            {
                label: (recovered_entities(texts, reading.text, ordered=ordered), len(texts))
                for label, texts in values.items()
            }
        )
    return found


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
