"""The sources of configurations: configs/, and directories added by ``hydra.searchpath``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from unembed import configs

CONFIGS = Path(configs.__file__).parent
SEARCH_PATH = "hydra.searchpath"
FOLDERS = frozenset(["experiment"])  # groups whose folders sort their options: experiment=geia/table3
_MEASURED = "${precision:"  # imports torch and times two matrix products


@contextmanager
def application() -> Iterator[Any]:
    """Initialise Hydra for configs/ as ``hydra.main`` does; an outer initialisation is restored afterwards."""
    config, outer = HydraConfig.instance().cfg, GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS), job_name="train"):
            yield GlobalHydra.instance().hydra
    finally:
        HydraConfig.instance().cfg, GlobalHydra.instance().hydra = config, outer


@contextmanager
def loading() -> Iterator[ConfigLoader]:
    """Hydra's config loader for configs/."""
    with application():
        yield GlobalHydra.instance().config_loader()


@functools.cache
def options(group: str, search: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Options of a group; empty for an unknown group. ``search`` holds overrides of ``hydra.searchpath``."""
    if "." in group or "[" in group:
        return ()
    with loading() as loader:

        def found(kind: ObjectType, of: str) -> list[str]:
            return loader.get_group_options(of, kind, config_name="train", overrides=list(search))

        folders = found(ObjectType.GROUP, group) if group in FOLDERS else []
        inner = [f"{folder}/{name}" for folder in folders for name in found(ObjectType.CONFIG, f"{group}/{folder}")]
        return (*found(ObjectType.CONFIG, group), *inner)


@functools.cache
def root_keys(config_name: str, search: tuple[str, ...] = ()) -> frozenset[str]:
    """Root keys of a configuration composed without overrides: those that the scripts know."""
    with loading() as loader:
        composed = loader.load_configuration(config_name, list(search), RunMode.RUN, from_shell=False)
        return frozenset(str(key) for key in composed)


def own_names(config_name: str) -> list[str]:
    """The keys of a root configuration, and the groups in its defaults list."""
    content = OmegaConf.load(CONFIGS / f"{config_name}.yaml")
    chosen = [entry for entry in content.defaults if isinstance(entry, DictConfig)] if "defaults" in content else []
    return [str(key) for key in content] + [str(next(iter(entry))).split()[-1] for entry in chosen]


def groups() -> dict[str, tuple[str, ...]]:
    """The groups in the defaults list of train.yaml, in order, with their options."""
    entries = OmegaConf.load(CONFIGS / "train.yaml").defaults
    names = [str(next(iter(entry))).split()[-1] for entry in entries if isinstance(entry, DictConfig)]
    return {name: options(name) for name in names}


def parts() -> dict[str, tuple[str, ...]]:
    """The groups inside those groups, such as ``attack/decoding``, with their options."""
    names_of_groups = (name for name in groups() if name not in FOLDERS)
    folders = (folder for name in names_of_groups for folder in sorted((CONFIGS / name).iterdir()) if folder.is_dir())
    names = [folder.relative_to(CONFIGS).as_posix() for folder in folders]
    return {name: options(name) for name in names}


def is_measured(node: DictConfig | ListConfig, name: str | int) -> bool:
    """Whether the value at ``name`` needs a measurement of this machine, which is postponed until all else is valid."""
    if not OmegaConf.is_interpolation(node, name):
        return False
    return _MEASURED in str(OmegaConf.to_container(node, resolve=False)[name])  # type: ignore[index]
