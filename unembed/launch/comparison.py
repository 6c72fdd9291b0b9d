"""The command line of compare.py: directories and ``key=value`` in any order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean
from unembed.launch.named_runs import find_run, is_named
from unembed.launch.sources import CONFIGS
from unembed.launch.spacing import joined

_LISTS = ("metrics", "trust", "rows")


class Settings(BaseModel):
    """Settings from the command line; values arrive as text and are converted."""

    directories: Annotated[list[Path], Field(min_length=1)]
    output: Path = Path("comparison")
    metrics: Annotated[list[str], Field(min_length=1)] = ["bleu", "token_f1", "exact_match", "cosine"]
    reference: Path | None = None
    x: Literal["training_texts", "parameters", "embedded_words", "corpus_similarity"] | None = None
    columns: Literal["data", "access"] | None = None
    rows: list[Path] = []
    layout: Path | None = None
    resamples: Annotated[int, Field(ge=1000)] = 2000
    seed: NonNegativeInt = 0
    trust: list[str] = []


def read_settings(words: Sequence[str]) -> Settings:
    """Directories and ``key=value`` in any order; a directory may have ``=`` in its name.

    Raises:
        InputError: An unknown key, an invalid value, or no directory.
    """
    known = sorted(set(Settings.model_fields) - {"directories"})
    words, spaced = joined(words)
    if spaced:
        raise InputError("\n".join(spaced))
    values: dict[str, object] = {}
    directories = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in known:
            values[key] = [name for name in value.split(",") if name] if key in _LISTS else value
            if key == "layout":
                values[key] = _layout(value)
        elif equals and re.fullmatch(r"\w+", key) and not Path(word).exists():
            raise InputError(f"{word}: unknown key {key}, {did_you_mean(key, known)}")
        else:
            directories.append(word)
    directories = [_directory(word) for word in directories]
    if "reference" in values:
        values["reference"] = _directory(str(values["reference"]))
    if "layout" in values and (beside := sorted({"metrics", "reference", "x", "columns"} & set(values))):
        raise InputError(f"layout: a layout has rows, columns and metrics of its own; leave out {', '.join(beside)}")
    if "rows" in values and values.get("columns") != "access":
        raise InputError("rows: files of rows belong to the access table; add columns=access")
    if values.get("columns") == "access" and (beside := sorted({"metrics", "reference", "x"} & set(values))):
        raise InputError(f"columns=access: its metrics and their places are fixed; leave out {', '.join(beside)}")
    try:
        return Settings.model_validate({"directories": directories, **values})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if key == "directories":
            raise InputError(f"give the directories to compare: {command('compare', '<dir>', '<dir>')}") from error
        raise InputError(f"{key}={first['input']}: {first['msg']}") from error


def _directory(word: str) -> str:
    """The directory that a word names: that of a shipped attacker, or of one of the hub, or else the word."""
    return str(find_run(word, "compare")) if is_named(word) else word


def _layout(value: str) -> Path:
    """The file of a layout: one of configs/layout by its name, or the user's own, which ends in .yaml."""
    path = Path(value) if value.endswith(".yaml") else CONFIGS / "layout" / f"{value}.yaml"
    if not path.is_file():
        names = [known.stem for known in sorted((CONFIGS / "layout").glob("*.yaml"))]
        raise InputError(f"layout={value}: no such layout, {did_you_mean(value, names)}; or name a .yaml file")
    return path
