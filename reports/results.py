"""What a finished run directory says, read and checked, and which of its predictions are worth showing.

    config.yaml        attack, embedder, datamodule, defense, trainer, seed, name, choices
    metrics.json       {"bleu": 91.2, "cosine": 0.981, "entity_recovery": null, "examples": 2000, ...}
    baseline.json      the nearest neighbour's, same keys; absent where none was computed
    analyses.json      what callbacks.analyses counted; absent where it did not
    predictions.jsonl  {"index": 3, "reference": "...", "prediction": "...", "kind": "sequence", "cosine": 0.93, ...}
    record.json        {"training": {"steps": 1800, "planned_steps": 1800, "cut_short": false}, ...}; may be absent
    history.jsonl      {"step": 120, "train_loss": 3.1, "val_loss": null, ...}; absent where nothing was trained

Keys that are not named here are left alone, apart from those of metrics.json, which are all shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

import limits
from errors import InputError
from metrics.description import Description
from metrics.text import exact_match, sentence_bleu
from metrics.tokens import recovered_words, token_overlap, words
from run_directory import layout
from run_directory.config_file import parse_config
from run_directory.record import training_of
from run_directory.resumption import changed_values, with_changes

Line = TypeVar("Line", bound=BaseModel)


class Searched(BaseModel):
    """What the search for a language model's input came to; see attacks.base.SearchRecord."""

    verified: bool
    passes: int


class Row(BaseModel):
    """A line of predictions.jsonl; ``spans`` are (start, end, label) in characters of the reference. ``given`` is what
    a baseline without vectors was told. Ids are there where a language model's input was attacked."""

    index: int
    reference: str
    prediction: str
    kind: Literal["sequence", "set"]
    spans: list[tuple[int, int, str]] = []
    cosine: float | None = None
    language: str | None = None
    given: str | None = None
    reference_tokens: tuple[int, ...] | None = None
    prediction_tokens: tuple[int, ...] | None = None
    search: Searched | None = None


def _drawable(value: float | None) -> float | None:
    """A number that a chart has a place for: the loss of a training that diverges is NaN."""
    return value if value is not None and abs(value) < 1e150 else None


_Drawn = Annotated[float | None, AfterValidator(_drawable)]


class Moment(BaseModel):
    """A line of history.jsonl; ``seconds`` since the start of training."""

    step: Annotated[int, Field(ge=0, le=2**53)]
    epoch: _Drawn = None
    seconds: _Drawn = None
    train_loss: _Drawn = None
    val_loss: _Drawn = None
    learning_rate: _Drawn = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """A prediction with its score.

    Attributes:
        row: The line of predictions.jsonl.
        quality: 0 to 100: sentence BLEU for a sequence, the share of the reference's words for a set.
        words: Number of words in the reference.
    """

    row: Row
    quality: float
    words: int

    @property
    def exact(self) -> bool:
        return self.row.kind == "sequence" and exact_match(self.row.reference, self.row.prediction)

    @property
    def cosine(self) -> float | None:
        value = self.row.cosine
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Results:
    """All that a report shows.

    ``baseline`` and ``analyses`` are None, ``history``, ``training`` (of record.json) and ``described`` (the user's own
    metrics) are empty where there is none.
    """

    directory: Path
    config: dict[str, Any]
    config_text: str
    metrics: dict[str, Any]
    baseline: dict[str, Any] | None
    recovered: list[Recovered]
    history: list[Moment]
    analyses: dict[str, Any] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    described: list[Description] = field(default_factory=list)

    @property
    def ordered_words(self) -> bool:
        """Whether the attack predicts texts, not sets of words: BLEU means nothing for a set."""
        return all(one.row.kind == "sequence" for one in self.recovered)

    def choice(self, group: str) -> str | None:
        """The name that was chosen in a config group, such as ``geia`` for ``attack``; None where it is not known."""
        choices = self.config.get("choices")
        name = choices.get(group) if isinstance(choices, dict) else None
        return None if name is None else str(name)


def read_results(run_dir: Path) -> Results:
    """Read a run directory.

    Raises:
        InputError: A file is missing (baseline.json, analyses.json and history.jsonl may be) or broken; names it, and
            the line.
    """
    config_text = _text(run_dir / layout.CONFIG, limits.LARGEST_CONFIG)
    try:
        config = parse_config(config_text)
    except yaml.YAMLError as error:
        raise InputError(f"{run_dir / layout.CONFIG}: not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise InputError(f"{run_dir / layout.CONFIG}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{run_dir / layout.CONFIG}: expected keys and values, found {type(config).__name__}")
    if changed := changed_values(run_dir):
        config = with_changes(config, run_dir)
        config_text += "\n# Resumed with:\n" + yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)
    baseline, history, analyses = (run_dir / name for name in (layout.BASELINE, layout.HISTORY, layout.ANALYSES))
    rows = read_rows(run_dir / layout.PREDICTIONS)
    return Results(
        directory=run_dir,
        config=config,
        config_text=config_text,
        metrics=_object(run_dir / layout.METRICS),
        baseline=_object(baseline) if baseline.exists() else None,
        recovered=_score(rows),
        history=read_lines(history, Moment) if history.exists() else [],
        analyses=_object(analyses) if analyses.exists() else None,
        training=training_of(run_dir) or {},
        described=_descriptions(run_dir / layout.DESCRIPTIONS),
    )


def read_rows(path: Path) -> list[Row]:
    """The lines of predictions.jsonl; at least one.

    Raises:
        InputError: The file is missing, broken or empty; names it, and the line.
    """
    rows = read_lines(path, Row)
    if not rows:
        raise InputError(f"{path}: holds no prediction")
    return rows


def by_quality(recovered: Sequence[Recovered]) -> list[Recovered]:
    """Best first; among equals the longer text first, then the lower index, so that the order is always the same."""
    return sorted(recovered, key=lambda one: (-one.quality, -one.words, one.row.index))


def evenly(recovered: Sequence[Recovered], count: int) -> list[Recovered]:
    """The middle one of each of ``count`` equal parts of ``recovered``; all where there are not more than ``count``."""
    size = len(recovered)
    return [recovered[(2 * part + 1) * size // (2 * count)] for part in range(count)] if size > count else [*recovered]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of characters of a text: whether it is recovered, the label of the entity that it is in, if it ends it."""

    text: str
    recovered: bool
    label: str | None
    ends: bool


def pieces(text: str, other: str, spans: Sequence[tuple[int, int, str]] = (), limit: int = 1000) -> list[Piece]:
    """Cut ``text`` (its first ``limit`` characters) where a word found in ``other`` or one of ``spans`` starts or ends.

    Space between two recovered words counts as recovered, so that a recovered phrase is one piece.
    """
    marks: list[bool] = []
    parts = recovered_words(text, other)
    for position, (part, found) in enumerate(parts):
        bridge = part.isspace() and 0 < position < len(parts) - 1 and parts[position - 1][1] and parts[position + 1][1]
        marks += [found or bridge] * len(part)
    labels: list[tuple[int, str] | None] = [None] * len(text)
    for number, (start, end, label) in enumerate(spans):
        for position in range(max(0, start), min(end, len(text))):
            labels[position] = labels[position] or (number, label)
    cut: list[Piece] = []
    start = 0
    size = min(len(text), limit)
    for position in range(1, size + 1):
        if position == size or (marks[position], labels[position]) != (marks[start], labels[start]):
            entity = labels[start]
            ends = position == size or labels[position] != entity
            cut.append(Piece(text[start:position], marks[start], entity and entity[1], ends))
            start = position
    return cut


def _score(rows: Sequence[Row]) -> list[Recovered]:
    scores = []
    for row in rows:
        size = len(words(row.reference))
        # A blank reference has no word to recover, so its recall is not defined: nothing of it came back.
        recall = token_overlap(row.reference, row.prediction).recall if size else 0.0
        quality = sentence_bleu(row.reference, row.prediction) if row.kind == "sequence" else recall
        scores.append(Recovered(row, quality, size))
    return scores


def _text(path: Path, most: int = limits.LARGEST_JSON) -> str:
    try:
        return limits.text(path, most)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start})") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: a directory, where a run has a file") from error


def _descriptions(path: Path) -> list[Description]:
    if not path.exists():
        return []
    try:
        return [*TypeAdapter(dict[str, Description]).validate_json(_text(path)).values()]
    except ValidationError as error:
        raise InputError(
            f"{path}: {'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
        ) from error


def _missing(path: Path) -> InputError:
    return InputError(f"{path}: missing; is {path.parent} the directory of a finished run?")


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object of figures, found {type(value).__name__}")
    return value


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """The lines of a file of JSON objects, blank ones left out.

    Raises:
        InputError: The file is missing, or a line is broken; names it.
    """
    lines = []
    for number, line in _numbered(path):
        if line.strip():
            try:
                lines.append(kind.model_validate(json.loads(line.decode())))
            except json.JSONDecodeError as error:
                raise InputError(f"{path}:{number}: not JSON: {error.msg}") from error
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{number}: not UTF-8 (byte {error.start} of the line)") from error
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "the line"
                raise InputError(f"{path}:{number}: {where}: {first['msg']}") from error
            except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
                raise InputError(f"{path}:{number}: not JSON that can be read: {error}") from error
    return lines


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a run's file with their numbers."""
    try:
        yield from limits.lines(path)
    except FileNotFoundError as error:
        raise _missing(path) from error
