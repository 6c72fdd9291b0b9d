"""Training that begins with another run takes that run's settings of the attack, unless the command line chooses some.

python train.py init_from=minilm datamodule=files datamodule.path=mine.jsonl

embedder=...  attack=...         the origin's, with the origin's values; attack.<key>=<value> changes one of them
attack.optimizer.*lr             half the origin's, unless attack.optimizer... is given; smaller batches lower them
                                 further, by the square root of the ratio; warmup_steps becomes 10
callbacks.blending               the share of the trained weights that reads validation texts best is kept, and else
                                 the origin's; callbacks.blending=null keeps the trained ones
trainer.max_epochs               4 passes over the texts, unless trainer.max_... is given: more learn by heart
datamodule.max_tokens, tokenizer the origin's
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from unembed.core.commands import quoted
from unembed.core.errors import InputError
from unembed.launch.composing import settle, survey, survey_amended, tree
from unembed.launch.locations import find_run, make_absolute
from unembed.launch.overrides import Given, key_of, options, raise_all
from unembed.runs import layout
from unembed.runs.config_file import read_config

_SLOWER = 0.5  # of the learning rates: the weights are trained already
_WARMUP, _PASSES = 10, 4  # measured in docs/audit.md
_BLENDING = "unembed.callbacks.blending.Blending"


def compose(command: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration of ``unembed <command> <overrides>``; values are not checked, see :func:`checking.check`."""
    configs, errors = survey(command, with_origin(overrides))
    raise_all(errors)
    config = fine_tuned(configs[0], overrides)
    settle(config, measure=True)
    make_absolute(config)
    return config


def with_origin(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the choices of attack and embedder that the run of ``init_from`` was trained with."""
    given = Given(overrides)
    if (origin := _origin(given)) is None:
        return [*overrides]
    names = {group: origin.choices.get(group) for group in _groups_of_origin(given)}
    chosen = {group: name for group, name in names.items() if name in options(group, given.search)}
    if "embedder" in chosen and "model" in origin.embedder:  # which some options leave open
        chosen["embedder.model"] = quoted(origin.embedder.model)
    return [*(f"{key}={value}" for key, value in chosen.items()), *overrides]


def fine_tuned(config: DictConfig, overrides: Sequence[str], of_job: Sequence[str] | None = None) -> DictConfig:
    """The configuration with the origin's attack, changed by ``overrides``; unchanged where there is no origin.

    ``config`` is composed from the result of ``with_origin``; ``of_job`` are the overrides of one job of a multirun.
    """
    given = Given(overrides)
    if (origin := _origin(given)) is None:
        return config
    from unembed.runs.trust import check_trusted, trusting

    typed = overrides if of_job is None else of_job
    keys, groups = {key_of(line) for line in typed}, _groups_of_origin(given)
    with trusting(config.trust):
        check_trusted(origin, Path(str(origin.run_dir)), built=groups)
    tuned = OmegaConf.create(tree(config))
    for group in groups:
        tuned[group], tuned.choices[group] = origin[group], origin.choices[group]
    if origin.get("init_from") is None and not any(key.startswith("attack.optimizer") for key in keys):
        new, old = (one.datamodule.get("batch_size") for one in (tuned, origin))
        known = all(isinstance(size, int) and size > 0 for size in (new, old))  # a wrong one is reported by the checks
        _slow_down(tuned.attack, new / old if known else 1.0)
    if not any(key.startswith("trainer.max_") for key in keys):
        tuned.trainer.max_steps, tuned.trainer.max_epochs = -1, _PASSES
    with open_dict(tuned):
        blending = tuned.callbacks.get("blending")
        if "blending" in tuned.callbacks and (isinstance(blending, DictConfig) or "callbacks.blending" not in keys):
            tuned.callbacks.blending = {"_target_": _BLENDING, **(blending or {})}
        for name in ("max_tokens", "tokenizer"):
            if f"datamodule.{name}" not in keys and name in origin.datamodule and name in tuned.datamodule:
                tuned.datamodule[name] = origin.datamodule[name]
    lines = [line for line in typed if key_of(line).startswith(("attack.", "embedder."))]
    tuned, errors = survey_amended(tuned, [*given.search, *lines])
    raise_all(errors)
    return tuned


def _groups_of_origin(given: Given) -> list[str]:
    """The groups that are the origin's."""
    return ["attack"] if any(key_of(line) == "embedder" for line in given.lines) else ["attack", "embedder"]


def _origin(given: Given) -> DictConfig | None:
    """The configuration of the run that ``init_from`` names; None where it is not typed, or an attack is chosen.

    A run that cannot be read is reported when training begins (stored_attack.check_origin).
    """
    named = [o.value() for o in given.overrides if o.key_or_group == "init_from" and not o.is_sweep_override()]
    chooses_attack = any(o.key_or_group in ("attack", "experiment", "stage") for o in given.groups)
    if not named or chooses_attack or not isinstance(named[-1], str):
        return None
    try:
        directory = find_run(named[-1], "init_from")
        config = read_config(directory) if (directory / layout.CONFIG).is_file() else OmegaConf.create()
    except InputError:
        return None
    if not all(isinstance(config.get(name), DictConfig) for name in ("attack", "choices", "datamodule", "embedder")):
        return None
    config.run_dir = str(directory)
    return config


def _slow_down(attack: DictConfig, batches: float) -> None:
    """Lower the learning rates of an attack's optimizer; ``batches`` is the ratio of new to old batch size.

    The length of a step of Adam or Muon does not depend on the gradient's, so the rates follow the square root of the
    batch size (Malladi et al. 2022, "On the SDEs and scaling rules for adaptive gradient algorithms").
    """
    for name, value in (attack.get("optimizer") or {}).items():
        if str(name) == "lr" or str(name).endswith("_lr"):
            attack.optimizer[name] = value * _SLOWER * batches**0.5
        if str(name) == "warmup_steps":
            attack.optimizer[name] = min(value, _WARMUP)
