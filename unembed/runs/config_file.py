"""Reading and writing a run's ``config.yaml``: plain values, safe to read from an untrusted run directory.

write_config(run, {"seed": 0, "attack": {"_target_": "unembed.attacks.geia.GEIA"}})
read_config(run).attack        # with current class names, and the training budget of the last resumption
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from unembed.core import limits
from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.runs.layout import CONFIG
from unembed.runs.resumption import with_changes

if TYPE_CHECKING:
    from omegaconf import DictConfig


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.yaml``."""
    write_file(directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def read_config(directory: Path) -> DictConfig:
    """The configuration of a run as plain values.

    Raises:
        InputError: The file is missing, or is not a YAML mapping of plain values.
    """
    from omegaconf import DictConfig, OmegaConf

    path = directory / CONFIG
    try:
        values = yaml.safe_load(limits.text(path, limits.LARGEST_CONFIG))
    except FileNotFoundError as error:
        raise InputError(f"run={directory}: not a run directory ({CONFIG} is missing)") from error
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: holds no mapping")
    values = with_changes(values, directory)
    _check_plain(values, "", path)
    config = OmegaConf.create(values)
    assert isinstance(config, DictConfig)
    return config


def _check_plain(value: Any, key: str, path: Path) -> None:
    """Check that ``value`` is plain, without interpolations, which could read environment variables.

    Raises:
        InputError: It is not; names the key and the value.
    """
    if isinstance(value, dict):
        for name, child in value.items():
            if not isinstance(name, str | int):
                raise InputError(f"{path}: {key or 'the root'} has the key {name!r}, neither text nor number")
            _check_plain(child, f"{key}.{name}" if key else str(name), path)
    elif isinstance(value, list):
        for number, child in enumerate(value):
            _check_plain(child, f"{key}[{number}]", path)
    elif isinstance(value, str) and "${" in value:
        raise InputError(f"{path}: {key}={value}: a run's configuration holds plain values, no interpolations")
    elif value is not None and not isinstance(value, str | int | float):
        raise InputError(f"{path}: {key}={value}: neither text nor number")
