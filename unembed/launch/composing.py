"""Compose a command line with Hydra, reporting all misspelt names at once.

configs, errors = survey("train", ["attack=geia", "embedder=simcse", "attack.decoding.beams=1"])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from unembed.core.errors import InputError, did_you_mean
from unembed.launch.named_runs import find_run, is_named
from unembed.launch.overrides import Given, elements, key_error, key_of, one_line
from unembed.launch.sources import SEARCH_PATH, is_measured, loading, root_keys


def _job_suffix() -> str:
    """``-<number>`` in a multirun, so that each job has its own directory."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return ""
    return f"-{HydraConfig.get().job.num}"


def _precision(accelerator: str) -> str:
    """Training precision on an accelerator, by measurement; decoding always uses the precision of the weights."""
    from unembed.attacks.parts.precision import training_precision  # imports torch

    return training_precision(accelerator)


def _joined(values: Sequence[Any] | None, separator: str = "-") -> str:
    """The values of a list in one word, as in the name of a run: ``${joined:${datamodule.languages}}``."""
    return separator.join(map(str, values or ()))


def _results(run: str | None, kind: str) -> str:
    """Where results on a run go: into it, or into the working directory if the run is not the user's own."""
    return kind if run is None or is_named(str(run)) else f"{run}/{kind}"


def _named_run(run: str) -> str:
    """The directory of a run that has a name, such as a shipped attacker: ``${named_run:minilm}``."""
    return str(find_run(run, "named_run"))


OmegaConf.register_new_resolver("joined", _joined, replace=True)
OmegaConf.register_new_resolver("precision", _precision, replace=True)
OmegaConf.register_new_resolver("named_run", _named_run, replace=True)
OmegaConf.register_new_resolver("results", _results, replace=True)
OmegaConf.register_new_resolver("job_suffix", _job_suffix, replace=True)
OmegaConf.register_new_resolver("absolute", lambda path: str(Path(path).expanduser().absolute()), replace=True)


def survey(config_name: str, overrides: Sequence[str], *, multirun: bool = False) -> tuple[list[DictConfig], list[str]]:
    """Compose the valid overrides; return the configurations and a message for each mistake.

    Nothing heavy is imported, so values that need a measurement stay interpolations. A multirun returns one
    configuration for each combination of groups, and within it the values of other sweeps one at a time.
    """
    configs: list[DictConfig] = []
    given = Given(overrides)
    if not multirun:
        given.refuse("several values need --multirun (-m)", Override.is_sweep_override)
    with loading() as loader:
        # Hydra silently ignores an unknown option of an optional group (experiment, debug).
        if not given.errors and not multirun and not given.wrong_options():
            config, errors = _load(loader, config_name, given.lines, None)
            if config is not None and not errors:
                return [config], []  # otherwise report Hydra's message, which names the first mistake only
        kept, wrong, errors = _spelling(loader, config_name, given)
        for number, lines in enumerate(_jobs(kept, given.groups)):
            config, found = _load(loader, config_name, lines, number if multirun else None)
            errors += found
            if config is not None:
                with open_dict(config):
                    for group in wrong:  # the composed node is not the requested one
                        config.pop(group, None)
                configs.append(config)
    try:
        directories = {config.get("run_dir") for config in configs}
    except OmegaConfBaseException:  # check_written names the value
        directories = set()
    if len(configs) > 1 and len(directories) == 1:
        errors.append(f"run_dir={directories.pop()}: the runs of a multirun would share it; append ${{job_suffix:}}")
    return configs, list(dict.fromkeys(given.errors + errors))


def plain(config: DictConfig) -> dict[str, Any]:
    """``config`` as plain containers with all interpolations resolved, the form of a run's config.yaml.

    Raises:
        InputError: A value is missing or refers to nothing.
    """
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise InputError(one_line(error)) from error


def tree(config: DictConfig) -> dict[str, Any]:
    """``config`` as plain containers with interpolations unresolved."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))


def raise_all(errors: Sequence[str]) -> None:
    """Raise all messages as one InputError, if there are any."""
    if errors:
        raise InputError("\n".join(dict.fromkeys(errors)))


def check(config: DictConfig) -> list[str]:
    """One line for each value that its constructor would refuse; empty if there are none."""
    from unembed.launch import checking  # imports pydantic and, with the constructors, torch

    return checking.check(config)


def raise_written(errors: Sequence[str], configs: Sequence[DictConfig]) -> None:
    """Raise ``errors`` together with those found by ``check_written``, before anything heavy is imported."""
    from unembed.launch.checking import check_written  # pydantic

    raise_all([*errors, *(message for config in configs for message in check_written(config))])


def _spelling(loader: ConfigLoader, config_name: str, given: Given) -> tuple[list[Override], list[str], list[str]]:
    """The overrides that name existing keys, the groups with an unknown option, and all messages."""
    wrong = given.wrong_options()
    errors = list(itertools.chain.from_iterable(wrong.values()))
    valid = [elements(o)[0] for o in given.groups if o.key_or_group not in wrong]
    try:
        composed = loader.load_configuration(config_name, [*given.search, *valid], RunMode.RUN, from_shell=False)
    except (HydraException, OmegaConfBaseException) as error:
        return [], list(wrong), [*errors, one_line(error)]
    names = [str(name) for name in composed.hydra.runtime.choices if "/" not in str(name)]
    values = given.values
    kept: list[Override] = []
    for o in (o for o in given.overrides if o.key_or_group.partition(".")[0] not in wrong):
        found = key_error(tree(composed), o, names) if o in values else None
        if found is None:
            kept.append(o)
        else:
            errors.append(found)
    return kept, list(wrong), errors


def _jobs(kept: Sequence[Override], groups: Sequence[Override]) -> list[tuple[str, ...]]:
    """Overrides without sweeps: all combinations of groups, and for each the values of other sweeps one at a time."""
    every = [elements(o) for o in kept]
    values = [place for place, o in enumerate(kept) if o not in groups]
    jobs: dict[tuple[str, ...], None] = {}
    for first in itertools.product(*(lines[:1] if place in values else lines for place, lines in enumerate(every))):
        jobs[first] = None
        for place in values:
            jobs.update({(*first[:place], line, *first[place + 1 :]): None for line in every[place]})
    return list(jobs)


def _load(
    loader: ConfigLoader, config_name: str, lines: Sequence[str], job: int | None
) -> tuple[DictConfig | None, list[str]]:
    """Compose with Hydra, resolve, and compare the root keys with those that the scripts know."""
    try:
        known = root_keys(config_name, tuple(line for line in lines if key_of(line) == SEARCH_PATH))
        config = loader.load_configuration(config_name, list(lines), RunMode.RUN, from_shell=False)
    except (HydraException, OmegaConfBaseException) as error:
        return None, [one_line(error)]
    if job is not None:
        config.hydra.job.num = job
    HydraConfig.instance().set_config(config)
    settle(config, measure=False)
    present = {str(key) for key in config}
    errors = [f"{key}: unknown key, {did_you_mean(key, known - {'hydra'})}" for key in sorted(present - known)]
    errors += [f"{key}: missing, it cannot be left out" for key in sorted(known - present)]
    with open_dict(config):
        for key in (*(present - known), "hydra"):
            del config[key]
    return config, errors


def settle(node: DictConfig | ListConfig, *, measure: bool) -> None:
    """Replace interpolations by their values; those that cannot be resolved stay, to be reported by the checks."""
    names: Any = list(node) if isinstance(node, DictConfig) else range(len(node))
    for name in (name for name in names if name != "hydra" and not OmegaConf.is_missing(node, name)):
        if not measure and is_measured(node, name):
            continue
        try:
            child = node[name]
        except OmegaConfBaseException:
            continue
        if OmegaConf.is_interpolation(node, name):
            node[name] = child
        elif isinstance(child, DictConfig | ListConfig):
            settle(child, measure=measure)
