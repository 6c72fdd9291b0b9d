"""Apply overrides to a finished run's configuration: other data, decoding or devices.

amend(config, ["datamodule=files", "datamodule.path=mine.jsonl", "attack.decoding.beams=1"])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from unembed.launch.composing import raise_all, tree
from unembed.launch.overrides import Given, key_error, one_line
from unembed.launch.sources import loading

OPTIONAL = ("denoiser",)  # groups that a run need not have chosen


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

    ``settings`` are the script's own keys. They cannot be overridden in the run, but are suggested for unknown keys.
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
    for o in (o for o in given.values if o.key_or_group.partition(".")[0] not in wrong):
        error = key_error(tree(amended), o, [*choices, *settings]) or _apply(amended, o)
        errors += [error] if error is not None else []
    return amended, list(dict.fromkeys(errors))


def _choose(config: DictConfig, groups: Sequence[Override], search: Sequence[str]) -> list[str]:
    """Replace the nodes of ``groups`` by newly composed ones.

    A part such as ``attack/decoding`` is composed inside the run's attack, or the one chosen beside it.
    """
    for o in filter(_is_left_out, groups):
        config[o.key_or_group] = config.choices[o.key_or_group] = None
    groups = [o for o in groups if not _is_left_out(o)]
    if not groups:  # composing takes a tenth of a second
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
