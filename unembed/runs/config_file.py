"""A run's ``config.yaml``, plain values that are safe to read from an untrusted run directory.

    write_config(run, {"seed": 0, "attack": {"_target_": "unembed.attacks.geia.GEIA"}})
    read_config(run).attack

It has the values that the run was last trained with. What a resumption changed is also noted in resumed.json:

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
UNSET = "(unset)"
# Arguments of data modules that name text files.
TEXTS = {"path", "train", "valid", "test", "documents", "queries", "qrels"}


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.yaml``."""
    write_file(directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def record_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write the config.yaml of a new run.

    In that of a resumed run, budget, number of processes and data paths are replaced, and noted in resumed.json; so is
    what the access table says of the run, on which nothing depends.
    """
    path = directory / CONFIG
    if not path.is_file():
        write_config(directory, config)
        return
    from omegaconf import OmegaConf

    stored = files.read_config(path)[1]
    changed = {
        key: {"before": before, "now": now}
        for key, before, now in differences(stored, config)
        if (key in (*BUDGET, *BATCHES_A_STEP) or names_data(key)) and now != UNSET
    }
    if not changed and stored.get("access") == config.get("access"):
        return
    updated = OmegaConf.create({**stored, "access": config.get("access")})
    for key, values in changed.items():
        log.info("resumed with %s: %s -> %s", key, shown_value(values["before"]), shown_value(values["now"]))
        OmegaConf.update(updated, key, values["now"], merge=False)
    if changed:
        (directory / REPORT).unlink(missing_ok=True)  # it is of the run before these changes
        session = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "changed": changed}
        write_json(directory / RESUMED, {"sessions": [*sessions(directory), session]})
    write_config(directory, OmegaConf.to_container(updated))  # type: ignore[arg-type]


def sessions(directory: Path) -> list[Any]:
    """The sessions of resumed.json, in which a run was resumed with other values."""
    path = directory / RESUMED
    found = read_json(path).get("sessions") if path.is_file() else []
    return found if isinstance(found, list) else []


def read_config(directory: Path) -> DictConfig:
    """The configuration of a run as plain values."""
    from omegaconf import DictConfig, OmegaConf

    path = directory / CONFIG
    values = files.read_config(path)[1]
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
    pairs = [(key, old.get(key, UNSET), new.get(key, UNSET)) for key in dict.fromkeys([*old, *new])]
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
