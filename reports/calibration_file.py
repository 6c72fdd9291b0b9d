"""calibration.jsonl: how well an attacker reads held-out texts, without the texts, which may not be passed on.

{"source": "goemotions", "words": 13, "cosine": 0.81, "f1": 64.2, "exact": false}

``words`` are those of the recovered text, ``cosine`` is of the re-embedded recovered text with the vector, ``f1`` is
the word F1 in percent. An attacker knows words and cosine of any row, so a store's rows can be compared with these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from errors import InputError
from metrics.text import exact_match
from metrics.tokens import token_overlap, words
from reports.results import Row, read_rows
from run_directory import layout

SOURCE = "source"  # the attribute of a text that tells where it comes from
_NAME = re.compile(r"[\w.+ -]{1,60}")  # anything longer could be a text


class Scores(NamedTuple):
    """A line of calibration.jsonl."""

    source: str
    words: int
    cosine: float
    f1: float
    exact: bool


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
    for row in read_rows(path):
        source = row.attributes.get(SOURCE, directory.resolve().name)
        if not _NAME.fullmatch(source):
            raise InputError(f"{path}: attributes.{SOURCE}={source:.40}...: should be a short name, and no text")
        if row.cosine is not None:
            yield _scores(row, source, row.cosine)


def _scores(row: Row, source: str, cosine: float) -> Scores:
    exact = row.kind == "sequence" and exact_match(row.reference, row.prediction)
    f1 = token_overlap(row.reference, row.prediction).f1
    return Scores(source, len(words(row.prediction)), round(cosine, 4), round(f1, 2), exact)
