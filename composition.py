"""From a command line to one plain configuration, with all that is misspelt reported at once.

    compose("train", ["attack=geia", "embedder=simcse", "attack.decoding.beams=1"])

Hydra stops at the first unknown name. Here the overrides are parsed with Hydra's own parser and held against the config
search path first, so that every misspelt group, option and key is named together with the nearest valid one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import Container, DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from errors import InputError, did_you_mean

CONFIGS = Path(__file__).resolve().parent / "configs"
_SEARCH_PATH = "hydra.searchpath"


def _job_suffix() -> str:
    """``-<number>`` in a multirun, whose runs would else share one directory."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return ""
    return f"-{HydraConfig.get().job.num}"


OmegaConf.register_new_resolver("job_suffix", _job_suffix, replace=True)
OmegaConf.register_new_resolver("absolute", lambda path: str(Path(path).expanduser().absolute()), replace=True)


def compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration that ``python <config_name>.py <overrides>`` would run with, interpolations resolved.

    Raises:
        InputError: Misspelt groups, options or keys; one line each.
    """
    return compose_jobs(config_name, overrides, multirun=False)[0]


def compose_jobs(config_name: str, overrides: Sequence[str], *, multirun: bool) -> list[DictConfig]:
    """The configurations of a multirun: each choice of groups in full, and in each the other sweeps one at a time.

    Raises:
        InputError: Misspelt groups, options or keys; a sweep without ``--multirun``; runs that share a directory.
    """
    with _loader() as loader:
        parsed, errors = _parse(loader, overrides)
        if not multirun:
            errors += [f"{o.input_line}: several values need --multirun (-m)" for o in parsed if o.is_sweep_override()]
        errors += _misspelt(loader, config_name, parsed)
        _raise(errors)
        configs = []
        for number, lines in enumerate(_jobs(loader, parsed)):
            try:
                configs.append(_load(loader, config_name, lines, number if multirun else None))
            except InputError as error:
                errors += str(error).splitlines()
    if len(configs) > 1 and len({config.run_dir for config in configs}) == 1:
        errors.append(f"run_dir={configs[0].run_dir}: all runs of a multirun would share it; append '${{job_suffix:}}'")
    _raise(errors)
    return configs


def amend(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A copy of a run's configuration with some values changed, or whole groups chosen anew.

    ``datamodule=files`` replaces the node ``datamodule`` by that option's file, ``datamodule.path=x.jsonl`` then sets a
    key in it, whatever their order. ``+key=value`` adds and ``~key`` removes, as in Hydra.

    Raises:
        InputError: Misspelt groups, options or keys; one line each.
    """
    amended = OmegaConf.create(_tree(config))
    assert isinstance(amended, DictConfig)
    choices = [str(name) for name in amended.get("choices", {})]
    with _loader() as loader:
        parsed, errors = _parse(loader, overrides)
        errors += [f"{o.input_line}: give one value" for o in parsed if o.is_sweep_override()]
        groups = [o for o in parsed if o.key_or_group in choices and not isinstance(o.value(), dict)]
        values = [o for o in parsed if o not in groups and o.key_or_group != _SEARCH_PATH]
        wrong = {o.key_or_group: found for o in groups if (found := _option_errors(loader, o, _search(parsed)))}
        errors += itertools.chain.from_iterable(wrong.values())
        valid = [str(o.input_line) for o in groups if o.key_or_group not in wrong] if not errors else []
        if valid:
            chosen = loader.load_configuration("train", [*_search(parsed), *valid], RunMode.RUN, from_shell=False)
            for group in (o for o in groups if o.key_or_group not in wrong):
                amended[group.key_or_group] = OmegaConf.create(_tree(chosen)[group.key_or_group])
                amended.choices[group.key_or_group] = group.value()
    OmegaConf.set_struct(amended, True)
    errors += [
        found
        for o in values
        if _root(o) not in wrong and (found := _key_error(_tree(amended), o, choices)) is not None
    ]
    _raise(errors)
    for o in values:
        _apply(amended, o)
    return amended


def plain(config: DictConfig) -> dict[str, Any]:
    """``config`` as plain containers with all interpolations resolved, as a run's config.yaml keeps it.

    Raises:
        InputError: A value is missing or refers to nothing.
    """
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise InputError(_one_line(error)) from error


def options() -> dict[str, list[str]]:
    """The options of each group that train.yaml chooses from, in its order."""
    with _loader() as loader:
        entries = OmegaConf.load(CONFIGS / "train.yaml").defaults
        names = [str(next(iter(entry))).split()[-1] for entry in entries if isinstance(entry, DictConfig)]
        return {name: loader.get_group_options(name, ObjectType.CONFIG) for name in names}


@contextmanager
def _loader() -> Iterator[ConfigLoader]:
    """Hydra's loader for configs/; what Hydra itself has set up stays as it was."""
    previous = HydraConfig.instance().cfg
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS), job_name="unembed"):
        try:
            yield GlobalHydra.instance().config_loader()
        finally:
            HydraConfig.instance().cfg = previous


def _parse(loader: ConfigLoader, lines: Sequence[str]) -> tuple[list[Override], list[str]]:
    """Overrides that can be parsed, and a message for each that cannot."""
    parser = OverridesParser.create(config_loader=loader)
    parsed: list[Override] = []
    errors: list[str] = []
    for line in lines:
        try:
            parsed.append(parser.parse_override(line))
        except HydraException as error:
            reason = _one_line(error) if "=" in line else "write key=value, or group=option"
            errors.append(f"{line}: {reason}")
    return parsed, errors


def _misspelt(loader: ConfigLoader, config_name: str, parsed: Sequence[Override]) -> list[str]:
    """A message for each group, option or key that does not exist."""
    search = _search(parsed)
    groups = [o for o in parsed if _is_group(loader, o, search)]
    wrong = {o.key_or_group: found for o in groups if (found := _option_errors(loader, o, search))}
    errors = list(itertools.chain.from_iterable(wrong.values()))
    valid = [_lines(o)[0] for o in groups if o.key_or_group not in wrong]
    try:
        composed = loader.load_configuration(config_name, [*search, *valid], RunMode.RUN, from_shell=False)
    except (HydraException, OmegaConfBaseException) as error:
        return [*errors, _one_line(error)]
    names = [str(name) for name in composed.hydra.runtime.choices if "/" not in str(name)]
    values = [o for o in parsed if o not in groups and o.key_or_group != _SEARCH_PATH]
    for o in values:
        found = _key_error(_tree(composed), o, names) if _root(o) not in wrong else None
        errors += [found] if found is not None else []
    return errors


def _option_errors(loader: ConfigLoader, override: Override, search: Sequence[str]) -> list[str]:
    if override.is_delete() or override.value() is None:
        return []  # an empty place is reported by _load, where it matters
    valid = _options(loader, override.key_or_group, search)
    chosen = [line.partition("=")[2] for line in _lines(override)]
    if isinstance(override.value(), list):
        chosen = [str(option) for option in cast(list[Any], override.value())]
    names = [option.strip("'\"") for option in chosen]
    return [f"{override.key_or_group}={name}: {did_you_mean(name, valid)}" for name in names if name not in valid]


def _key_error(tree: Any, override: Override, groups: Sequence[str]) -> str | None:
    """What is wrong with the key of an override of a value, given the configuration that it changes."""
    key = override.key_or_group
    if override.package is not None or "/" in key:
        return f"{override.get_key_element()}: unknown group, {did_you_mean(key, groups)}"
    parts = re.findall(r"[^.\[\]]+", key)
    for position, part in enumerate(parts):
        prefix = ".".join(parts[:position])
        if isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        elif override.is_add() or override.is_force_add():
            return None
        elif not isinstance(tree, dict):
            return f"{key}: unknown key, {prefix} holds a value, not keys"
        else:
            return f"{'.'.join(parts[: position + 1])}: {_unknown(tree, part, override, [] if prefix else groups)}"
    if override.is_add() and not isinstance(override.value(), dict | list):
        return f"{override.input_line}: stands there already, leave out the +"
    return None


def _unknown(siblings: dict[str, Any], name: str, override: Override, groups: Sequence[str]) -> str:
    from checking import parameters  # may import torch

    if "_target_" in siblings and name in parameters(str(siblings["_target_"])):
        return f"not set by the chosen option; to set it, write +{override.input_line}"
    names = {key for key in siblings if not key.startswith("_") and key != "hydra"} | set(groups)
    deeper = [path for path in _leaves(siblings, "") if path.endswith(f".{name}") and not path.startswith("hydra.")]
    return f"unknown key, did you mean {deeper[0]}?" if len(deeper) == 1 else f"unknown key, {did_you_mean(name, names)}"


def _leaves(tree: Any, key: str) -> Iterator[str]:
    if isinstance(tree, dict):
        for name, child in tree.items():
            path = f"{key}.{name}" if key else str(name)
            yield path
            yield from _leaves(child, path)


def _jobs(loader: ConfigLoader, parsed: Sequence[Override]) -> list[tuple[str, ...]]:
    """Overrides without sweeps: the product over groups, and for each the elements of other sweeps one at a time."""
    search = _search(parsed)
    jobs: dict[tuple[str, ...], None] = {}
    every = [_lines(o) for o in parsed]
    grid = [lines if _is_group(loader, o, search) else lines[:1] for o, lines in zip(parsed, every, strict=True)]
    for first in itertools.product(*grid):
        jobs[first] = None
        for place, o in enumerate(parsed):
            if not _is_group(loader, o, search):
                jobs.update({(*first[:place], line, *first[place + 1 :]): None for line in every[place]})
    return list(jobs)


def _lines(override: Override) -> list[str]:
    """One override for each value of a sweep; the ends of an interval; the override itself otherwise."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    swept = override.value()
    if isinstance(swept, IntervalSweep):
        elements = [str(swept.start), str(swept.end)]
    else:
        elements = list(override.sweep_string_iterator())
    return [f"{override.get_key_element()}={element}" for element in elements]


def _load(loader: ConfigLoader, config_name: str, lines: Sequence[str], job: int | None) -> DictConfig:
    """Compose with Hydra, resolve, and compare the keys at the root with those that the scripts know."""
    search = _search(_parse(loader, lines)[0])
    try:
        known = {str(key) for key in loader.load_configuration(config_name, search, RunMode.RUN, from_shell=False)}
        config = loader.load_configuration(config_name, list(lines), RunMode.RUN, from_shell=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_one_line(error)) from error
    if job is not None:
        config.hydra.job.num = job
    HydraConfig.instance().set_config(config)
    present = {str(key) for key in config}
    _raise(
        [f"{key}: unknown key, {did_you_mean(key, known - {'hydra'})}" for key in sorted(present - known)]
        + [f"{key}: missing, it cannot be left out" for key in sorted(known - present)]
    )
    with open_dict(config):
        del config["hydra"]
    _settle(config)
    return config


def _settle(node: Container) -> None:
    """Put values in the place of interpolations, except of those that refer to nothing: checking reports them."""
    names: Any = list(node) if isinstance(node, DictConfig) else range(len(cast(ListConfig, node)))
    for name in names:
        if OmegaConf.is_missing(node, name):
            continue
        try:
            child = node[name]
        except OmegaConfBaseException:
            continue
        if OmegaConf.is_interpolation(node, name):
            node[name] = child
        elif isinstance(child, DictConfig | ListConfig):
            _settle(child)


def _apply(config: DictConfig, override: Override) -> None:
    key, value = override.key_or_group, override.value()
    try:
        if override.is_delete():
            parent, _, name = key.rpartition(".")
            node = OmegaConf.select(config, parent) if parent else config
            with open_dict(config):
                del node[name]
        else:
            force = override.is_add() or override.is_force_add()
            OmegaConf.update(config, key, value, merge=True, force_add=force)
    except OmegaConfBaseException as error:
        raise InputError(f"{override.input_line}: {_one_line(error)}") from error


def _is_group(loader: ConfigLoader, override: Override, search: Sequence[str]) -> bool:
    return bool(_options(loader, override.key_or_group, search)) and not isinstance(override.value(), dict)


def _options(loader: ConfigLoader, group: str, search: Sequence[str]) -> list[str]:
    if "." in group or "[" in group:
        return []
    return loader.get_group_options(group, ObjectType.CONFIG, config_name="train", overrides=list(search))


def _search(parsed: Sequence[Override]) -> list[str]:
    """Overrides that add directories of configurations, which change what groups and options exist."""
    return [str(o.input_line) for o in parsed if o.key_or_group == _SEARCH_PATH]


def _root(override: Override) -> str:
    return override.key_or_group.partition(".")[0]


def _tree(config: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))


def _raise(errors: Sequence[str]) -> None:
    if errors:
        raise InputError("\n".join(dict.fromkeys(errors)))


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = str(error.__cause__).splitlines()[:1] if isinstance(error.__cause__, OmegaConfBaseException) else []
    return "; ".join([*lines[:1], *cause])
