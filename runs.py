"""What a run directory is, and how an attack is rebuilt from it.

    config.yaml        the resolved config, plain values
    checkpoints/       last.ckpt
    artifacts/         tokenizer, the decoder's architecture, neighbour index: what the model needs besides its weights
    predictions.jsonl  one object an example
    metrics.json       flat; baseline.json has the same keys for the nearest neighbour
    analyses.json      what the training text has to do with the result
    finished_batches/  of a test that goes on, or was killed; gone once the figures stand
    history.jsonl      the training curve
    report.html, log

Everything is written to a temporary name in the same directory and renamed.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from errors import InputError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG, METRICS, BASELINE = "config.yaml", "metrics.json", "baseline.json"
ANALYSES = "analyses.json"
PREDICTIONS, HISTORY, RECORD = "predictions.jsonl", "history.jsonl", "record.json"
ARTIFACTS, CHECKPOINT = "artifacts", "checkpoints/last.ckpt"
FINISHED = "finished_batches"


def write(path: Path, content: str | Callable[[BinaryIO], object]) -> None:
    """Write a file so that a reader sees the old content or the new one, never half of it.

    Args:
        path: Final name; its directory is made where it is missing.
        content: Text, or a function that writes to the open binary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            if isinstance(content, str):
                file.write(content.encode())
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON."""
    write(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read what write_json wrote."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""

    def lines(file: BinaryIO) -> None:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    write(path, lines)


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.yaml``."""
    write(directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def start(directory: Path, *, resuming: bool) -> None:
    """Make the directory of a new run.

    Raises:
        InputError: It already holds a run, and this is not a resumption: nothing is overwritten.
    """
    if (directory / CONFIG).exists() and not resuming:
        raise InputError(
            f"run_dir={directory}: already holds a run; add ckpt_path=last to go on with it, "
            "or choose another directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for part in directory.rglob(".*.part"):  # of a session that was killed while writing
        if part.is_file():
            part.unlink()


def resume_from(directory: Path, ckpt_path: str | None) -> Path | None:
    """The checkpoint that ``ckpt_path`` (null, ``last`` or a path) names; None where training starts afresh.

    ``last`` in a directory without a checkpoint starts afresh: the run was killed before its first one.

    Raises:
        InputError: A path that does not exist, or a damaged file.
    """
    if ckpt_path is None:
        return None
    if ckpt_path == "last":
        last = directory / CHECKPOINT
        return _whole(last) if last.exists() else None
    if not Path(ckpt_path).is_file():
        raise InputError(f"ckpt_path={ckpt_path}: no such file; ckpt_path=last goes on from {directory / CHECKPOINT}")
    return _whole(Path(ckpt_path))


def read_config(directory: Path) -> DictConfig:
    """The config of a run, plain values.

    Raises:
        InputError: There is none, or it is no YAML mapping.
    """
    from omegaconf import DictConfig, OmegaConf

    path = directory / CONFIG
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"run={directory}: not a run directory ({CONFIG} is missing)") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    config = OmegaConf.create(values)
    if not isinstance(config, DictConfig):
        raise InputError(f"{path}: holds no mapping")
    return config


def finished_checkpoint(directory: Path, ckpt_path: str | None = None) -> Path:
    """The checkpoint of a trained run: ``checkpoints/last.ckpt``, or another file that ``ckpt_path`` names.

    Raises:
        InputError: There is none, or it is damaged.
    """
    if ckpt_path not in (None, "last"):
        named = resume_from(directory, ckpt_path)
        assert named is not None
        return named
    checkpoint = directory / CHECKPOINT
    if not checkpoint.is_file():
        raise InputError(
            f"run={directory}: no finished checkpoint ({CHECKPOINT} is missing): training was stopped before its first "
            f"one; go on with python train.py run_dir={directory} ckpt_path=last and the overrides of that run"
        )
    return _whole(checkpoint)


def _whole(checkpoint: Path) -> Path:
    # The directory of a zip archive stands at its end: a truncated file has none.
    if not zipfile.is_zipfile(checkpoint):
        raise InputError(f"{checkpoint}: not a checkpoint, or a damaged one")
    return checkpoint
