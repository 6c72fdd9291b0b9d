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
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from unembed.core.errors import InputError, did_you_mean
from unembed.launch.locations import is_named
from unembed.launch.overrides import (
    Overrides,
    application,
    elements,
    key_error,
    key_of,
    one_line,
    options,
    parsed,
    raise_all,
    root_of,
    without,
)
from unembed.runs import layout

PRESETS = ("experiment", "stage", "debug")  # groups that set values in other groups
OPTIONAL = ("denoiser",)  # groups that a run need not have chosen
_SEARCHES = ("sentences", "lexicon")  # better ones first
_PARAMS = "hydra.sweeper.params"
_ERRORS = (HydraException, OmegaConfBaseException)


def _job_suffix() -> str:
    """``-<number>`` in a multirun, so that each job has its own directory."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return ""
    return f"-{HydraConfig.get().job.num}"


def _precision(accelerator: str) -> str:
    """Training precision on an accelerator, by measurement; decoding always uses the precision of the weights."""
    from unembed.attacks.parts.precision import training_precision  # imports torch

    return training_precision(accelerator)


def _results(run: str | None, kind: str) -> str:
    """Where results on a run go: into it, or into the working directory if the run is not the user's own."""
    return kind if run is None or is_named(str(run)) else f"{run}/{kind}"


def _stage() -> str:
    """The stage of an experiment that trains several models, without its folder: ``${stage:}``."""
    return str(HydraConfig.get().runtime.choices.get("stage")).rpartition("/")[2]


def _run_of(stage: str, _root_: Any) -> str:
    """The directory of another stage's run: ``${run_of:inverter}``."""
    return str(_root_.run_dir).replace(f"/{_stage()}-", f"/{stage}-")


_RESOLVERS: dict[str, Callable[..., Any]] = {
    "joined": lambda values, separator="-": separator.join(map(str, values or ())),  # ${joined:${datamodule.languages}}
    "stage": _stage,
    "run_of": _run_of,
    "precision": _precision,
    "results": _results,
    "job_suffix": _job_suffix,
    "absolute": lambda path: str(Path(path).expanduser().absolute()),
}
for _name, _resolver in _RESOLVERS.items():
    OmegaConf.register_new_resolver(_name, _resolver, replace=True)


def survey(command: str, words: Sequence[str], *, multirun: bool = False) -> tuple[list[DictConfig], list[str]]:
    """Compose the valid overrides; return the configurations, and a message for each misspelt name.

    Values are not checked. A multirun returns the configuration of the first values of all sweeps, and one for each
    other value beside the first ones.
    """
    given = Overrides(words)
    if not multirun:
        given.refuse("several values need --multirun (-m)", Override.is_sweep_override)
    wrong = given.refuse_unknown_options()
    groups, errors = given.groups, given.errors
    configs: list[DictConfig] = []
    with application():  # restores Hydra's configuration, which interpolations read
        for lines in _one_at_a_time([*groups, *given.values]):
            try:
                config = copy.deepcopy(_loaded(command, (*given.search, *lines[: len(groups)])))
            except _ERRORS as error:
                errors.append(one_line(error))
                continue
            names = [str(name) for name in config.hydra.runtime.choices if "/" not in str(name)]
            errors += _set_all(config, map(parsed, lines[len(groups) :]), names)
            if multirun:
                config.hydra.job.num = len(configs)
            errors += _finish(command, config, wrong)
            configs.append(config)
    if len(configs) > 1 and not errors and len({config.run_dir for config in configs}) == 1:
        errors.append(f"run_dir={configs[0].run_dir}: the runs of a multirun would share it; append ${{job_suffix:}}")
    return configs, list(dict.fromkeys(errors))


@functools.lru_cache(maxsize=64)
def _loaded(command: str, lines: tuple[str, ...]) -> DictConfig:
    """What Hydra composes of a command and its groups; not to be changed."""
    with application() as hydra:
        return hydra.config_loader.load_configuration(command, list(lines), RunMode.RUN, from_shell=False)


def _one_at_a_time(overrides: Sequence[Override]) -> Iterator[list[str]]:
    """Overrides without sweeps: the first value of each, and each other value beside the first ones."""
    every = [elements(o) for o in overrides]
    first = [lines[0] for lines in every]
    yield first
    for place, lines in enumerate(every):
        for line in lines[1:]:
            yield [*first[:place], line, *first[place + 1 :]]


def _finish(command: str, config: DictConfig, wrong: Iterable[str]) -> list[str]:
    """Compare the root keys with those of the command, resolve interpolations, and leave out Hydra's own settings."""
    HydraConfig.instance().set_config(config)
    known, present = ({str(key) for key in one} - {"hydra"} for one in (_loaded(command, ()), config))
    errors = [f"{key}: unknown key, {did_you_mean(key, known)}" for key in sorted(present - known)]
    errors += [f"{key}: missing, it cannot be left out" for key in sorted(known - present - set(wrong))]
    choices = config.hydra.runtime.choices
    if "run_dir" in config and "${stage:}" in str(config._get_node("run_dir")) and choices.get("stage") is None:
        folder = str(choices.experiment).partition("/")[0]
        stages = [f"stage={option}" for option in options("stage") if option.startswith(f"{folder}/")]
        errors.append(f"experiment={choices.experiment}: has several stages, add one of {', '.join(stages)}")
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
        interpolated = OmegaConf.is_interpolation(node, name)
        if interpolated and not measure and "${precision:" in str(node._get_node(name)):
            continue
        try:
            child = node[name]
        except OmegaConfBaseException:
            continue
        if interpolated:
            node[name] = child
        elif isinstance(child, DictConfig | ListConfig):
            settle(child, measure=measure)


def plain(config: DictConfig) -> dict[str, Any]:
    """``config`` as plain containers with all interpolations resolved, the form of a run's config.yaml."""
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise InputError(one_line(error)) from error


def tree(config: DictConfig) -> dict[str, Any]:
    """``config`` as plain containers with interpolations unresolved."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))


# -- grids ------------------------------------------------------------------------------------------------------------


def grid_of(command: str, words: Sequence[str]) -> dict[str, str]:
    """The swept values of the chosen experiment by key; empty if it is no grid or cannot be composed."""
    given = Overrides(words)
    chosen = [str(o.input_line) for o in given.groups if o.key_or_group == "experiment" and not o.is_sweep_override()]
    if not chosen or given.refuse_unknown_options():
        return {}
    try:
        params = OmegaConf.select(_loaded(command, (*given.search, *chosen)), _PARAMS)
        return {str(key): str(value) for key, value in (params or {}).items()}
    except _ERRORS:  # reported by survey
        return {}


def expand_grid(command: str, words: Sequence[str]) -> list[str]:
    """The overrides of a multirun with the grid of its experiment; a key on the command line replaces the grid's."""
    given = Overrides(words)
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
    """
    amended, errors = survey_amended(config, overrides)
    raise_all(errors)
    return amended


def search_of(config: DictConfig, run: Path) -> str:
    """The search that a run is read with: the one that it has, or has what it needs for, or lexicon search."""
    own = [name for name in _SEARCHES if name in (config.attack.get("refine") or {})]
    prepared = [name for name in _SEARCHES if (run / layout.ARTIFACTS / "refine" / name).is_dir()]
    return [*own, *prepared, "lexicon"][0]


def with_queries(config: DictConfig, run: Path, max_queries: int | None) -> DictConfig:
    """The configuration of a run whose attack has at most so many texts embedded for a vector; None: as it is.

    0 leaves the decoder alone; above, the run's search has them.
    """
    if max_queries is None:
        return config
    if max_queries < 0:
        raise InputError(f"max_queries={max_queries}: must be at least 0, or None")
    attack: Any = get_class(config.attack["_target_"])
    if attack.asks_embedder:
        raise InputError(
            f"max_queries={max_queries}: {attack.__name__} corrects its texts with the embedder; "
            "max_queries=None inverts as the run is configured, and its own settings limit the queries"
        )
    limited = copy.deepcopy(config)
    with open_dict(limited):
        if "rerank" in (limited.attack.get("decoding") or {}):
            limited.attack.decoding.rerank = 0
        own, name = limited.attack.pop("refine", None) or {}, search_of(config, run)
        if max_queries:
            limited = amend(limited, [f"attack/refine=[{name}]"])
            limited.attack.refine[name].update({**(own.get(name) or {}), "max_queries": max_queries, "required": True})
            OmegaConf.resolve(limited)
    return limited


def survey_amended(
    config: DictConfig, overrides: Sequence[str], settings: Sequence[str] = ()
) -> tuple[DictConfig, list[str]]:
    """Apply the valid overrides; return the configuration and a message for each mistake.

    ``settings`` are the command's own keys. They cannot be overridden in the run, but are suggested for unknown keys.
    """
    amended = OmegaConf.create(tree(config))
    choices = [name for name in map(str, amended.get("choices", {})) if name not in PRESETS]
    choices = [*dict.fromkeys([*choices, *OPTIONAL])]
    given = Overrides(overrides)
    given.refuse("a run is amended with one value", Override.is_sweep_override)
    foreign = [o for o in given.groups if root_of(str(o.input_line)) not in choices]
    given.refuse(f"a run is amended in {', '.join(choices)}", foreign.__contains__)
    given.refuse_unknown_options(OPTIONAL)
    errors = [*given.errors, *_choose(amended, given.groups, given.search)]
    OmegaConf.set_struct(amended, True)
    errors += _set_all(amended, given.values, [*choices, *settings])
    return amended, list(dict.fromkeys(errors))


def _choose(config: DictConfig, groups: Sequence[Override], search: Sequence[str]) -> list[str]:
    """Replace the nodes of ``groups`` by newly composed ones.

    A part such as ``attack/decoding`` is composed inside the run's attack, or the one chosen beside it.
    """
    for o in (o for o in groups if o.value() is None):  # denoiser=null
        config[o.key_or_group] = config.choices[o.key_or_group] = None
    placed = [(key_of(str(o.input_line)), o) for o in groups if o.value() is not None]
    placed.sort(key=lambda item: item[0].count("."))
    if not placed:  # composing takes a fifth of a second
        return []
    parents = {root_of(key) for key, _ in placed} - {key for key, _ in placed}
    lines = [*search, *(f"{name}={config.choices[name]}" for name in sorted(parents))]
    try:
        composed = OmegaConf.create(tree(_loaded("train", (*lines, *(str(o.input_line) for _, o in placed)))))
    except _ERRORS as error:
        return [one_line(error)]
    errors = []
    for key, o in placed:
        node = {} if o.value() == [] else OmegaConf.select(composed, key)  # attack/refine=[]
        if node is None:
            errors.append(f"{o.input_line}: it cannot be left out")
            continue
        OmegaConf.update(config, key, node, merge=False)
        if key in config.choices or key in OPTIONAL:
            config.choices[key] = o.value()
    return errors


def _set_all(config: DictConfig, values: Iterable[Override], names: Sequence[str]) -> list[str]:
    """Set, add and remove values as Hydra does; return a message for each that names no key, or that is refused."""
    found = (key_error(tree(config), o, names) or _set(config, o) for o in values)
    return [error for error in found if error is not None]


def _set(config: DictConfig, override: Override) -> str | None:
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
