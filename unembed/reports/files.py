"""Read and validate the files of a run; errors name the file, the line and the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from unembed.core import limits
from unembed.core.errors import InputError
from unembed.runs.config_file import parse_config

Content = TypeVar("Content")
Line = TypeVar("Line", bound=BaseModel)


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
        config = parse_config(content)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
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
    return [one for _, one in numbered_lines(path, kind)]


def numbered_lines(path: Path, kind: type[Line]) -> Iterator[tuple[int, Line]]:
    """The same one by one, each with its 1-based line number."""
    adapter = TypeAdapter(kind)
    try:
        for number, line in limits.lines(path):
            if line.strip():
                where = f"{path}:{number}"
                try:
                    yield number, validated(adapter, json.loads(line.decode()), where, "the line")
                except json.JSONDecodeError as error:
                    raise InputError(f"{where}: not JSON: {error.msg}") from error
                except UnicodeDecodeError as error:
                    raise InputError(f"{where}: not UTF-8 (byte {error.start} of the line)") from error
                except (ValueError, RecursionError) as error:  # such as huge numbers or deeply nested lists
                    raise InputError(f"{where}: not JSON that can be read: {error}") from error
    except FileNotFoundError as error:
        raise _missing(path) from error


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
