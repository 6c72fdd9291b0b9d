"""A run's ``config.yaml``, plain values that are safe to read from an untrusted run directory, and ``resumed.json``.

    write_config(run, {"seed": 0, "attack": {"_target_": "unembed.attacks.geia.GEIA"}})
    read_config(run).attack        # with the training budget of the last resumption

config.yaml is written once. What changed when a run was resumed is in resumed.json:

    {"sessions": [{"time": "2026-11-22T05:54:45+00:00", "changed": {"trainer.max_steps": {"before": 300, "now": 600}}}]}
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, TypeAdapter

from unembed.core.atomic_files import read_json, write_file, write_json
from unembed.core.commands import shown_value
from unembed.core.errors import InputError
from unembed.runs import files
from unembed.runs.layout import CONFIG, REPORT, RESUMED

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("train")

# Changes that are recorded, since they describe the training; launch/finished_run.py lists all that may change.
BUDGET = ("trainer.max_steps", "trainer.max_epochs", "trainer.min_steps", "trainer.min_epochs", "trainer.max_time",
          "embedder.max_queries")  # fmt: skip
BATCHES_A_STEP = ("trainer.devices", "trainer.num_nodes", "trainer.accumulate_grad_batches")
_DESCRIPTION = "access"  # what the access table says of a run: nothing that the run does depends on it
_UNSET = "(unset)"
# Arguments of data modules that name text files.
TEXTS = {"path", "train", "valid", "test", "documents", "queries", "qrels"}


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.yaml``."""
    write_file(directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def keep_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write the config.yaml of a new run; in that of a resumed run, the description of its cell alone is replaced."""
    path = directory / CONFIG
    if not path.is_file():
        write_config(directory, config)
        return
    stored, described = files.read_config(path)[1], config.get(_DESCRIPTION)
    if stored.get(_DESCRIPTION) != described:
        write_config(directory, {**stored, _DESCRIPTION: described})


def read_config(directory: Path) -> DictConfig:
    """The configuration of a run as plain values."""
    from omegaconf import DictConfig, OmegaConf

    path = directory / CONFIG
    values = with_changes(files.read_config(path)[1], directory)
    _check_plain(values, path)
    config = OmegaConf.create(values)
    assert isinstance(config, DictConfig)
    return config


def _check_plain(values: dict[Any, Any], path: Path) -> None:
    """Check that all values are plain, without interpolations, which could read environment variables."""
    for key, name, value in walk(values):
        if not isinstance(name, str | int):
            raise InputError(f"{path}: the key {key} is neither text nor number")
        if isinstance(value, str) and "${" in value:
            raise InputError(f"{path}: {key}={value}: a run's configuration holds plain values, no interpolations")
        if value is not None and not isinstance(value, str | int | float | dict | list):
            raise InputError(f"{path}: {key}={value}: neither text nor number")


def walk(value: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Full key, name and value of everything below ``value``, in mappings and lists."""
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    for name, child in children:
        inner = f"{key}[{name}]" if isinstance(name, int) else f"{key}.{name}" if key else str(name)
        yield inner, name, child
        yield from walk(child, inner)


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], left_out: Collection[str] = ("choices",)
) -> list[tuple[str, Any, Any]]:
    """Keys of two configurations with both values, where these differ; names in ``left_out`` are not compared."""
    old, new = dict(_leaves(before, "", left_out)), dict(_leaves(now, "", left_out))
    pairs = [(key, old.get(key, _UNSET), new.get(key, _UNSET)) for key in dict.fromkeys([*old, *new])]
    return [(key, one, other) for key, one, other in pairs if one != other]


def _leaves(value: Any, key: str, left_out: Collection[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, child in value.items():
            if name not in left_out:
                yield from _leaves(child, f"{key}.{name}" if key else str(name), left_out)
    else:
        yield key, value


def names_data(key: str, *more: str) -> bool:
    """Whether a key names text files, which are compared by content, or is one of ``more`` of the data module's."""
    parts = [part for part in re.split(r"\.|\[\d+\]", key) if part not in ("source", "")]
    return len(parts) == 2 and parts[0] == "datamodule" and parts[1] in (*TEXTS, *more)


def note_changes(directory: Path, config: Mapping[str, Any]) -> None:
    """Record in resumed.json with which other budget, number of processes or data path a run is resumed."""
    from omegaconf import OmegaConf

    stored = OmegaConf.to_container(read_config(directory))
    assert isinstance(stored, dict)
    before, noted = {str(name): value for name, value in stored.items()}, (*BUDGET, *BATCHES_A_STEP)
    every = differences(before, config)
    changed = [(key, old, new) for key, old, new in every if (key in noted or names_data(key)) and new != _UNSET]
    for key, old, new in changed:
        log.info("resumed with %s: %s -> %s", key, shown_value(old), shown_value(new))
    if changed:
        (directory / REPORT).unlink(missing_ok=True)  # it is of the run before these changes
        changes = {key: _Change(before=old, now=new) for key, old, new in changed}
        session = _Session(time=datetime.now(UTC).isoformat(timespec="seconds"), changed=changes)
        write_json(directory / RESUMED, {"sessions": [one.model_dump() for one in (*_sessions(directory), session)]})


class _Change(BaseModel):
    before: Any = None
    now: Any


class _Session(BaseModel):
    time: str = ""
    changed: dict[str, _Change]


def changed_values(directory: Path) -> dict[str, Any]:
    """The values of the last resumption by key; empty if the run was never resumed with changes."""
    return {key: one.now for session in _sessions(directory) for key, one in session.changed.items()}


def with_changes(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The configuration of config.yaml with the values of the last resumption."""
    for key, value in changed_values(directory).items():
        *parents, name = key.split(".")
        node: Any = config
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise InputError(f"{directory / RESUMED}: {key} is not a key of the run's {CONFIG}")
        node[name] = value
    return config


def _sessions(directory: Path) -> list[_Session]:
    path = directory / RESUMED
    sessions = read_json(path).get("sessions") if path.is_file() else []
    return files.validated(TypeAdapter(list[_Session]), sessions, path, "sessions")
