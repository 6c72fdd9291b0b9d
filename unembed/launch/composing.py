"""Compose a command line with Hydra, or amend a finished run's configuration, reporting all misspelt names at once.

    configs, errors = survey("train", ["attack=geia", "embedder=simcse", "attack.decoding.beams=1"])
    amend(config, ["datamodule=files", "datamodule.path=mine.jsonl"])     # a run's, with other data

Hydra composes the groups; values are set here, as Hydra does, so that each wrong key is told and not the first alone.

An experiment may be a grid: its values under ``hydra.sweeper.params`` become overrides of a multirun.

    python train.py -m experiment=geia/table3                        # all cells of the grid
    python train.py -m experiment=geia/table3 embedder=sroberta      # the cells with this embedder
    python train.py experiment=geia/table3                           # one cell: the preset's own values
    python train.py -m experiment=access                             # a grid over experiments: all that it lists
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from unembed.core.errors import InputError, did_you_mean
from unembed.launch.named_runs import find_run, is_named
from unembed.launch.overrides import Given, elements, key_error, key_of, one_line, parsed, root_of, without
from unembed.launch.sources import loading, root_keys

OPTIONAL = ("denoiser",)  # groups that a run need not have chosen
_PARAMS = "hydra.sweeper.params"


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


def survey(command: str, words: Sequence[str], *, multirun: bool = False) -> tuple[list[DictConfig], list[str]]:
    """Compose the valid overrides; return the configurations, and a message for each misspelt name.

    Values are not checked. A multirun returns one configuration for each combination of groups, and within it the
    values of other sweeps one at a time.
    """
    given = Given(words)
    if not multirun:
        given.refuse("several values need --multirun (-m)", Override.is_sweep_override)
    wrong = given.wrong_options()
    errors = [*given.errors, *itertools.chain.from_iterable(wrong.values())]
    groups = [o for o in given.groups if o.key_or_group not in wrong]
    values = [o for o in given.values if root_of(o.key_or_group) not in wrong]
    configs: list[DictConfig] = []
    with loading() as loader:
        for chosen in _combinations(groups):
            try:
                base = loader.load_configuration(command, [*given.search, *chosen], RunMode.RUN, from_shell=False)
            except (HydraException, OmegaConfBaseException) as error:
                errors.append(one_line(error))
                continue
            for lines in _one_at_a_time(values):
                config = copy.deepcopy(base)
                errors += _apply_all(config, map(parsed, lines), _group_names(config))
                if multirun:
                    config.hydra.job.num = len(configs)
                errors += _settled(command, config, wrong)
                configs.append(config)
    if len(configs) > 1 and not errors and len({config.run_dir for config in configs}) == 1:
        errors.append(f"run_dir={configs[0].run_dir}: the runs of a multirun would share it; append ${{job_suffix:}}")
    return configs, list(dict.fromkeys(errors))


def _combinations(groups: Sequence[Override]) -> Iterator[Sequence[str]]:
    """Every combination of the groups' options, as a multirun runs them."""
    return itertools.product(*map(elements, groups))


def _one_at_a_time(values: Sequence[Override]) -> Iterator[list[str]]:
    """Overrides without sweeps: the first value of each, and each other value beside the first ones."""
    every = [elements(o) for o in values]
    first = [lines[0] for lines in every]
    yield first
    for place, lines in enumerate(every):
        for line in lines[1:]:
            yield [*first[:place], line, *first[place + 1 :]]


def _group_names(config: DictConfig) -> list[str]:
    return [str(name) for name in config.hydra.runtime.choices if "/" not in str(name)]


def _settled(command: str, config: DictConfig, wrong: Any) -> list[str]:
    """Compare the root keys with those that the commands know, and resolve interpolations."""
    HydraConfig.instance().set_config(config)
    known, present = root_keys(command), {str(key) for key in config} - {"hydra"}
    errors = [f"{key}: unknown key, {did_you_mean(key, known)}" for key in sorted(present - known)]
    errors += [f"{key}: missing, it cannot be left out" for key in sorted(known - present - set(wrong))]
    settle(config)
    with open_dict(config):
        for key in (*(present - known), *wrong, "hydra"):
            config.pop(key, None)
    return errors


def settle(node: DictConfig | ListConfig, *, measure: bool = False) -> None:
    """Replace interpolations by their values; those that cannot be resolved stay, to be reported by the checks.

    Without ``measure``, the precision is left to the checks, which import torch anyway.
    """
    names: Any = list(node) if isinstance(node, DictConfig) else range(len(node))
    for name in (name for name in names if name != "hydra" and not OmegaConf.is_missing(node, name)):
        if not measure and OmegaConf.is_interpolation(node, name) and "${precision:" in str(node._get_node(name)):
            continue
        try:
            child = node[name]
        except OmegaConfBaseException:
            continue
        if OmegaConf.is_interpolation(node, name):
            node[name] = child
        elif isinstance(child, DictConfig | ListConfig):
            settle(child, measure=measure)


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


# -- grids ------------------------------------------------------------------------------------------------------------


def grid_of(command: str, words: Sequence[str]) -> dict[str, str]:
    """The swept values of the chosen experiment by key; empty if it is no grid or cannot be composed."""
    given = Given(words)
    chosen = [str(o.input_line) for o in given.groups if o.key_or_group == "experiment" and not o.is_sweep_override()]
    if not chosen or given.wrong_options():
        return {}
    with loading() as loader:
        try:
            composed = loader.load_configuration(command, [*given.search, *chosen], RunMode.RUN, from_shell=False)
            params = OmegaConf.select(composed, _PARAMS)
            return {str(key): str(value) for key, value in (params or {}).items()}
        except (HydraException, OmegaConfBaseException):  # reported by survey
            return {}


def spread_out(command: str, words: Sequence[str]) -> list[str]:
    """The overrides of a multirun with the grid of its experiment; a key on the command line replaces the grid's.

    Raises:
        InputError: Several experiments are swept, and one of them is a grid.
    """
    given = Given(words)
    swept = [o for o in given.groups if o.key_or_group == "experiment" and o.is_sweep_override()]
    for line in (line for o in swept for line in elements(o)):
        if grid_of(command, [line, *given.search]):
            raise InputError(f"{line}: a grid of its own, so it cannot be swept; run one such experiment at a time")
    grid = grid_of(command, words)
    if "experiment" in grid:  # its cells are experiments themselves, in the place of the one that lists them
        words = without(words, "experiment")
    typed = {key_of(word) for word in words}
    cells = [f"{key}={value}" for key, value in grid.items() if key_of(f"{key}=") not in typed]
    # Hydra's sweeper would add the values of the preset again.
    return [*words, *cells, f"{_PARAMS}=null"] if grid else list(words)


# -- a finished run's configuration -----------------------------------------------------------------------------------


def amend(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A copy of a run's configuration with overridden values and groups.

    ``datamodule=files`` replaces the node ``datamodule`` by that option's file, ``datamodule.path=x.jsonl`` then sets a
    key in it, in whatever order they are given. ``+key=value`` adds and ``~key`` removes, as in Hydra.

    Raises:
        InputError: Misspelt groups, options or keys; one line each.
    """
    amended, errors = survey_amended(config, overrides)
    raise_all(errors)
    return amended


def survey_amended(
    config: DictConfig, overrides: Sequence[str], settings: Sequence[str] = ()
) -> tuple[DictConfig, list[str]]:
    """Apply the valid overrides; return the configuration and a message for each mistake.

    ``settings`` are the command's own keys. They cannot be overridden in the run, but are suggested for unknown keys.
    """
    amended = OmegaConf.create(tree(config))
    choices = [*dict.fromkeys([*map(str, amended.get("choices", {})), *OPTIONAL])]
    given = Given(overrides)
    given.refuse("a run is amended with one value", Override.is_sweep_override)
    foreign = [o for o in given.groups if o.key_or_group.partition("/")[0] not in choices]
    given.refuse(f"a run is amended in {', '.join(choices)}", foreign.__contains__)
    wrong = given.wrong_options()
    for o in filter(_is_left_out, given.groups):
        wrong.pop(o.key_or_group, None)
    errors = [*given.errors, *itertools.chain.from_iterable(wrong.values())]
    errors += _choose(amended, [o for o in given.groups if o.key_or_group not in wrong], given.search)
    OmegaConf.set_struct(amended, True)
    values = (o for o in given.values if root_of(o.key_or_group) not in wrong)
    errors += _apply_all(amended, values, [*choices, *settings])
    return amended, list(dict.fromkeys(errors))


def _choose(config: DictConfig, groups: Sequence[Override], search: Sequence[str]) -> list[str]:
    """Replace the nodes of ``groups`` by newly composed ones.

    A part such as ``attack/decoding`` is composed inside the run's attack, or the one chosen beside it.
    """
    for o in filter(_is_left_out, groups):
        config[o.key_or_group] = config.choices[o.key_or_group] = None
    groups = [o for o in groups if not _is_left_out(o)]
    if not groups:  # composing takes a fifth of a second
        return []
    whole = {o.key_or_group for o in groups}
    parents = {o.key_or_group.partition("/")[0] for o in groups} - whole
    lines = [*search, *(f"{name}={config.choices[name]}" for name in sorted(parents))]
    lines += [str(o.input_line) for o in groups]
    try:
        with loading() as loader:
            chosen = tree(loader.load_configuration("train", lines, RunMode.RUN, from_shell=False))
    except (HydraException, OmegaConfBaseException) as error:
        return [one_line(error)]
    composed = OmegaConf.create(chosen)
    nodes = {o.key_or_group: OmegaConf.select(composed, o.key_or_group.replace("/", ".")) for o in groups}
    nodes |= {o.key_or_group: {} for o in groups if o.value() == []}  # attack/refine=[]
    missing = [o for o in groups if nodes[o.key_or_group] is None]
    for o in sorted((o for o in groups if o not in missing), key=lambda o: o.key_or_group.count("/")):
        OmegaConf.update(config, o.key_or_group.replace("/", "."), nodes[o.key_or_group], merge=False)
        if o.key_or_group in config.choices or o.key_or_group in OPTIONAL:
            config.choices[o.key_or_group] = o.value()
    return [f"{o.input_line}: it cannot be left out" for o in missing]


def _is_left_out(override: Override) -> bool:
    """Whether it is ``denoiser=null``."""
    return override.key_or_group in OPTIONAL and not override.is_sweep_override() and override.value() is None


def _apply_all(config: DictConfig, values: Any, names: Sequence[str]) -> list[str]:
    """Set, add and remove values as Hydra does; return a message for each that names no key, or that is refused."""
    found = (key_error(tree(config), o, names) or _apply(config, o) for o in values)
    return [error for error in found if error is not None]


def _apply(config: DictConfig, override: Override) -> str | None:
    """Change one value; return a message if OmegaConf refuses it."""
    key = override.key_or_group
    try:
        if override.is_delete():
            parent, _, name = key.rpartition(".")
            with open_dict(config):
                del (OmegaConf.select(config, parent) if parent else config)[name]
        else:
            added = override.is_add() or override.is_force_add()
            OmegaConf.update(config, key, override.value(), merge=True, force_add=added)
    except OmegaConfBaseException as error:
        return f"{override.input_line}: {one_line(error)}"
    return None
