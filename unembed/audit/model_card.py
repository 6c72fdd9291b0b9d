"""What an exported attacker says of how well it reads: its model card, and the scores of held-out texts.

write_card(folder, "minilm", config, {"built-in corpus": metrics}, scores)            # README.md, from a template
calibration([Path("evaluation")])   # the lines of calibration.jsonl, without the texts, which may not be passed on

estimates.py says what a line holds. Parts are found by form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unembed.audit.estimates import Scored, counted
from unembed.core.atomic_files import read_json, write_file
from unembed.core.errors import InputError
from unembed.metrics.tokens import same_words, token_overlap, words
from unembed.reports.output import environment
from unembed.runs import layout
from unembed.runs.files import read_rows

_METRICS = {"token_f1": "word F1", "exact_match": "exact", "bleu": "BLEU", "entity_recovery": "entities"}
_LENGTHS = ((1, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, None))  # words of the recovered text
_FEWEST = 20  # texts from which a mean is shown
SOURCE = "source"  # the attribute of a text that tells where it comes from
_NAME = re.compile(r"[\w.+ -]{1,60}")  # anything longer could be a text


def write_card(
    folder: Path,
    name: str,
    config: Mapping[str, Any],
    tested: Mapping[str, Mapping[str, Any]],
    scores: Sequence[Scored],
) -> None:
    """Write README.md into the folder of an exported attacker, which has everything else in it.

    ``tested`` has metrics.json of each test, by what the texts were; ``scores`` are lines of calibration.jsonl.
    """
    record = read_json(folder / layout.RECORD)
    text = (
        environment()
        .get_template("audit/model_card.md.jinja")
        .render(
            name=name,
            config=config,
            record=record,
            training=record.get("training") or {},
            megabytes=(folder / layout.CHECKPOINT).stat().st_size / 1e6,
            files=read_json(folder / layout.DATA)["files"],
            metrics=list(_METRICS.values()),
            tested=[
                (title, own.get("examples"), ["" if own.get(key) is None else f"{own[key]:.1f}" for key in _METRICS])
                for title, own in tested.items()
            ],
            sources=_means(scores, lambda one: one.source, sorted({one.source for one in scores})),
            lengths=_means(scores, _length, [_range(*bounds) for bounds in _LENGTHS]),
        )
    )
    write_file(folder / layout.CARD, text)


def _means(
    scores: Sequence[Scored], group_of: Callable[[Scored], str], groups: Sequence[str]
) -> list[tuple[str, int, str, str]]:
    """Name, texts, mean word F1 and share of exact texts, in percent, of each group with enough texts."""
    rows = []
    for group in groups:
        own = [one for one in scores if group_of(one) == group]
        if len(own) >= _FEWEST:
            f1 = sum(one.f1 for one in own) / len(own)
            exact = 100 * sum(bool(one.exact) for one in own) / len(own)
            rows.append((group, len(own), f"{f1:.1f}", f"{exact:.1f}"))
    return rows


def _length(one: Scored) -> str:
    return next((_range(*bounds) for bounds in _LENGTHS if bounds[0] <= one.words <= (bounds[1] or one.words)), "0")


def _range(low: int, high: int | None) -> str:
    return f"{low} and more" if high is None else f"{low} to {high}"


def calibration(evaluations: Sequence[Path]) -> list[Scored]:
    """The scores of all predictions of some evaluations, in their order; those without a cosine are left out.

    The source of a text is its attribute ``source`` (``datamodule.attributes=[source]``), else the name of the
    evaluation's directory.
    """
    return [scores for directory in evaluations for scores in _of(directory)]


def _of(directory: Path) -> Iterator[Scored]:
    path = directory / layout.PREDICTIONS
    rows = [row for row in read_rows(path) if row.cosine is not None]
    ordered = all(row.kind == "sequence" for row in rows)
    parts = counted([row.reference for row in rows], [row.prediction for row in rows], None, ordered=ordered)
    for row, own in zip(rows, parts, strict=True):
        source = row.attributes.get(SOURCE, directory.resolve().name)
        if not _NAME.fullmatch(source):
            raise InputError(f"{path}: attributes.{SOURCE}={source:.40}...: should be a short name, and no text")
        yield Scored(
            source=source,
            words=len(words(row.prediction)),
            cosine=round(row.cosine or 0.0, 4),
            f1=round(token_overlap(row.reference, row.prediction).f1, 2),
            exact=row.kind == "sequence" and same_words(row.reference, row.prediction),
            classes=dict(own.classes),
            kinds=dict(own.kinds),
        )
