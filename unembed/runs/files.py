"""Read and validate the files of a run; errors name the file, the line and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from unembed.core import limits
from unembed.core.errors import InputError

Content = TypeVar("Content")
Line = TypeVar("Line", bound=BaseModel)


class Searched(BaseModel):
    """The search record of a language model's input; see unembed.attacks.base.SearchRecord."""

    verified: bool
    passes: int


class Row(BaseModel):
    """A line of predictions.jsonl; ``spans`` are (start, end, label) in characters of the reference. ``given`` is the
    start of a baseline without vectors. Token ids are set if a language model's input was attacked. ``unseen`` and
    ``in_lexicon`` are of each span (see unembed.metrics.scored.Scored)."""

    index: int
    reference: str
    prediction: str
    kind: Literal["sequence", "set"]
    spans: list[tuple[int, int, str]] = []
    cosine: float | None = None
    language: str | None = None
    attributes: dict[str, str] = {}
    given: str | None = None
    reference_tokens: tuple[int, ...] | None = None
    prediction_tokens: tuple[int, ...] | None = None
    search: Searched | None = None
    unseen: list[bool] | None = None
    in_lexicon: list[bool] | None = None

    @model_validator(mode="after")
    def _of_each_span(self) -> Row:
        for known in (self.unseen, self.in_lexicon):
            if known is not None and len(known) != len(self.spans):
                raise ValueError(f"{len(known)} values of unseen or in_lexicon for {len(self.spans)} spans")
        return self


def read_text(path: Path, most: int = limits.LARGEST_JSON) -> str:
    """The text of a file of at most ``most`` bytes.

    Raises:
        InputError: It is missing, not a regular file, too large or not UTF-8.
    """
    try:
        return limits.text(path, most)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start})") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: a directory, where a run has a file") from error


def read_config(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a configuration and its values, interpolations unresolved.

    Raises:
        InputError: The file is missing or has another form.
    """
    content = read_text(path, limits.LARGEST_CONFIG)
    try:
        config = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected keys and values, found {type(config).__name__}")
    return content, config


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; numbers may be infinite or NaN, as in a diverged run.

    Raises:
        InputError: The file is missing or has another form.
    """
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object of metrics, found {type(value).__name__}")
    return value


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """The JSON objects of a file with one per line; blank lines are skipped.

    Raises:
        InputError: The file is missing, or a line is invalid; names it.
    """
    adapter, read = TypeAdapter(kind), []
    try:
        for number, line in limits.lines(path):
            if line.strip():
                where = f"{path}:{number}"
                try:
                    read.append(validated(adapter, json.loads(line.decode()), where, "the line"))
                except json.JSONDecodeError as error:
                    raise InputError(f"{where}: not JSON: {error.msg}") from error
                except UnicodeDecodeError as error:
                    raise InputError(f"{where}: not UTF-8 (byte {error.start} of the line)") from error
                except (ValueError, RecursionError) as error:  # such as huge numbers or deeply nested lists
                    raise InputError(f"{where}: not JSON that can be read: {error}") from error
    except FileNotFoundError as error:
        raise _missing(path) from error
    return read


def read_rows(path: Path) -> list[Row]:
    """The lines of predictions.jsonl; at least one.

    Raises:
        InputError: The file is missing, invalid or empty; names it, and the line.
    """
    rows = read_lines(path, Row)
    if not rows:
        raise InputError(f"{path}: holds no prediction")
    return rows


def validated(kind: TypeAdapter[Content], value: Any, where: Path | str, whole: str = "") -> Content:
    """Validate ``value`` as ``kind``.

    Raises:
        InputError: It is invalid; names ``where`` it was read, and the field (or ``whole``).
    """
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or whole
        raise InputError(": ".join(part for part in (str(where), field, first["msg"]) if part)) from error


def _missing(path: Path) -> InputError:
    return InputError(f"{path}: missing; is {path.parent} the directory of a finished run?")
