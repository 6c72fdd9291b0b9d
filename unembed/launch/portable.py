"""The configuration of a run without the paths of the machine that it was made on, to be shipped.

    datamodule.path: /home/ada/chat.jsonl                  ->  chat.jsonl, a name that says what it was
    callbacks.checkpoint.dirpath: /home/ada/runs/x/...     ->  left out: callbacks and loggers are of the training

Where the run lies and which cache it uses is found out when it is opened (finished_run.stored_config).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from unembed.core.errors import InputError
from unembed.launch.composing import plain
from unembed.launch.locations import data_paths
from unembed.runs import layout

_CACHE = "<cache>"  # no path; replaced when the run is opened


def portable(config: DictConfig) -> dict[str, Any]:
    """Plain values of a run's configuration, for another machine.

    Raises:
        InputError: A value is a path of this machine (one line each).
    """
    shipped = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    assert isinstance(shipped, DictConfig)
    shipped.run_dir, shipped.cache_dir, shipped.ckpt_path, shipped.init_from = layout.EXPORTED, _CACHE, None, None
    shipped.logger, shipped.choices.logger = {}, "none"
    shipped.callbacks = {name: node for name, node in shipped.callbacks.items() if _is_of_tests(node)}
    for node in shipped.callbacks.values():
        if "cache_dir" in node:
            node.cache_dir = _CACHE
    for text in data_paths(shipped):
        if Path(text.value).is_absolute():
            text.node[text.place] = Path(text.value).name
    values = plain(shipped)
    found = [f"{key}={value}: {_why(key)}" for key, value in _paths(values, "")]
    if found:
        raise InputError("\n".join(found))
    return values


def _why(key: str) -> str:
    if key.startswith("attack.") and key.endswith("_run"):
        return (
            "the attack is built on another run, which is no part of an export; export that run, and train this attack "
            "where it is used"
        )
    return "a path of this machine, which nobody else has"


def _is_of_tests(node: Any) -> bool:
    from hydra.utils import get_object

    from unembed.callbacks.testing import Testing  # imports torch

    kind = get_object(node._target_) if node is not None else None
    return isinstance(kind, type) and issubclass(kind, Testing)


def _paths(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        places = value.items() if isinstance(value, dict) else enumerate(value)
        for place, child in places:
            yield from _paths(child, f"{key}.{place}" if key else str(place))
    elif isinstance(value, str) and Path(value).expanduser().is_absolute():
        yield key, value
