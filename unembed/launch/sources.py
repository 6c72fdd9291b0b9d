"""The sources of configurations: configs/, those of installed packages, and directories of ``hydra.searchpath``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from unembed import configs

CONFIGS = Path(configs.__file__).parent
SEARCH_PATH = "hydra.searchpath"
FOLDERS = frozenset(["experiment"])  # groups whose folders sort their options: experiment=geia/table3


class InstalledPackages(SearchPathPlugin):
    """Puts the configurations of installed packages after ours, whose options they cannot replace."""

    def manipulate_search_path(self, search_path: Any) -> None:
        """Called by Hydra."""
        for folder in configs.folders()[1:]:
            search_path.append(configs.GROUP, f"file://{folder}")


Plugins.instance().register(InstalledPackages)


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
            return loader.get_group_options(of, kind, overrides=list(search))

        folders = found(ObjectType.GROUP, group) if group in FOLDERS else []
        inner = [f"{folder}/{name}" for folder in folders for name in found(ObjectType.CONFIG, f"{group}/{folder}")]
        return (*found(ObjectType.CONFIG, group), *inner)


def titles(group: str) -> dict[str, str]:
    """The options of a group, each with the comment that its file begins with; empty for a file without one."""
    found = {}
    with loading() as loader:
        for name in options(group):
            source = next(one for one in loader.get_sources() if one.is_config(f"{group}/{name}"))
            folder = files(source.path.replace("/", ".")) if source.scheme() == "pkg" else Path(source.path)
            first = folder.joinpath(group, f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
            found[name] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


@functools.cache
def root_keys(command: str) -> frozenset[str]:
    """Root keys of a configuration: those of its file, its groups, and what a group's default adds at the root."""
    keys = {str(key) for key in OmegaConf.load(CONFIGS / f"{command}.yaml")} - {"defaults"}
    for group, default in _defaults(command).items():
        if default is not None and group not in FOLDERS:
            text = (CONFIGS / group / f"{default}.yaml").read_text(encoding="utf-8")
            keys |= set(map(str, OmegaConf.create(text))) if "@package _global_" in text else {group}
    return frozenset(keys - {"hydra"})


def own_names(command: str) -> list[str]:
    """The keys of a root configuration, and the groups in its defaults list."""
    return [*map(str, OmegaConf.load(CONFIGS / f"{command}.yaml")), *_defaults(command)]


def groups() -> dict[str, tuple[str, ...]]:
    """The groups in the defaults list of train.yaml, in order, with their options."""
    return {name: options(name) for name in _defaults("train")}


def _defaults(command: str) -> dict[str, str | None]:
    """The groups in the defaults list of a root configuration, with the options chosen there."""
    content = OmegaConf.load(CONFIGS / f"{command}.yaml")
    entries = content.defaults if "defaults" in content else []
    chosen = [next(iter(entry.items())) for entry in entries if isinstance(entry, DictConfig)]
    return {str(group).split()[-1]: option for group, option in chosen if not str(group).startswith("override")}


def parts() -> dict[str, tuple[str, ...]]:
    """The groups inside those groups, such as ``attack/decoding``, with their options."""
    with loading() as loader:
        found = [
            f"{group}/{part}"
            for group in groups()
            for part in loader.get_group_options(group, ObjectType.GROUP)
            if group not in (*FOLDERS, "hydra")
        ]
    return {name: options(name) for name in found}
