"""calibration.jsonl: how well an attacker reads held-out texts, without the texts, which may not be passed on.

{"source": "goemotions", "words": 13, "cosine": 0.81, "f1": 64.2, "exact": false,
 "classes": {"names": [2, 1, 3], "free text": [5, 3, 6]}, "kinds": {"DATE": [1, 0, 0]}}

``words`` are those of the recovered text, ``cosine`` is of the re-embedded recovered text with the vector, ``f1`` is
the word F1 in percent, ``exact`` whether all words came back in their order. An attacker knows words and cosine of any
row, so a store's rows can be compared with these. ``classes`` and ``kinds`` count parts found by form (part_counts.py):
in the true text, of these recovered, and in the recovered text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from unembed.audit.part_counts import Parts, counted
from unembed.core.errors import InputError
from unembed.metrics.tokens import same_words, token_overlap, words
from unembed.reports.results import Row, read_rows
from unembed.runs import layout

SOURCE = "source"  # the attribute of a text that tells where it comes from
_NAME = re.compile(r"[\w.+ -]{1,60}")  # anything longer could be a text


class Scores(NamedTuple):
    """A line of calibration.jsonl."""

    source: str
    words: int
    cosine: float
    f1: float
    exact: bool
    classes: Mapping[str, tuple[int, int, int]]
    kinds: Mapping[str, tuple[int, int, int]]


def calibration(evaluations: Sequence[Path]) -> list[Scores]:
    """The scores of all predictions of some evaluations, in their order; those without a cosine are left out.

    The source of a text is its attribute ``source`` (``datamodule.attributes=[source]``), else the name of the
    evaluation's directory.

    Raises:
        InputError: predictions.jsonl cannot be read, or a source is no short name.
    """
    return [scores for directory in evaluations for scores in _of(directory)]


def _of(directory: Path) -> Iterator[Scores]:
    path = directory / layout.PREDICTIONS
    rows = [row for row in read_rows(path) if row.cosine is not None]
    ordered = all(row.kind == "sequence" for row in rows)
    parts = counted([row.reference for row in rows], [row.prediction for row in rows], None, ordered=ordered)
    for row, own in zip(rows, parts, strict=True):
        source = row.attributes.get(SOURCE, directory.resolve().name)
        if not _NAME.fullmatch(source):
            raise InputError(f"{path}: attributes.{SOURCE}={source:.40}...: should be a short name, and no text")
        yield _scores(row, source, own)


def _scores(row: Row, source: str, parts: Parts) -> Scores:
    exact = row.kind == "sequence" and same_words(row.reference, row.prediction)
    f1 = token_overlap(row.reference, row.prediction).f1
    cosine = round(row.cosine or 0.0, 4)
    return Scores(source, len(words(row.prediction)), cosine, round(f1, 2), exact, parts.classes, parts.kinds)
