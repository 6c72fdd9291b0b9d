"""The configuration of a run that exists: for commands on it, for training that resumes it, or that begins with it.

    settings, config = on_run("evaluate", ["run=runs/x", "attack.decoding.beams=1"])
    defense_points(config, ["defense=none", "defense=noise defense.level=0.01"], "tradeoff.points")

    python train.py run_dir=runs/x ckpt_path=last                             # the run's own settings
    python train.py run_dir=runs/x ckpt_path=last trainer.max_steps=4000      # with another budget
    python train.py run_dir=runs/x ckpt_path=last attack.backbone.layers=6    # refused: the run has 2
    python train.py init_from=minilm datamodule=files datamodule.path=mine.jsonl    # train an attacker further

A resumed run keeps the settings of its config.yaml, even where today's defaults differ. Of what is typed, the keys in
``MAY_CHANGE`` take effect; all others must have the run's value, so that the whole old command can be repeated.

A training that begins with another run, its origin, takes these settings unless the command line sets them: attack,
embedder, datamodule.max_tokens and tokenizer as in the origin; lower learning rates and a short warm-up; four passes
over the texts; and callbacks.blending, which mixes the trained weights with the origin's.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict

from unembed.core.commands import quoted, shown_value
from unembed.core.errors import InputError, listed
from unembed.launch.checking import check
from unembed.launch.composing import settle, survey, survey_amended, tree
from unembed.launch.locations import (
    attacker_for,
    cache_of,
    chooses_data,
    find_run,
    make_absolute,
    move,
    outside,
)
from unembed.launch.overrides import (
    CONFIGS,
    Overrides,
    as_list,
    as_text,
    default_groups,
    key_of,
    options,
    raise_all,
    root_of,
    search_path_of,
    without,
)
from unembed.runs import layout
from unembed.runs.config_file import BATCHES_A_STEP, BUDGET, UNSET, differences, names_data, read_config
from unembed.runs.files import absent_data

if TYPE_CHECKING:
    from torch import Tensor

# What may change when a run is resumed: its budget, and what changes neither weights nor metrics.
MAY_CHANGE = (
    *BUDGET, "run_dir", "ckpt_path", "cache_dir", "trust", "objective", "access", "defense.recall", "logger",
    "attack.gradient_checkpointing", "trainer.accelerator", "trainer.strategy", "trainer.enable_progress_bar",
    "trainer.log_every_n_steps", "embedder.device", "embedder.batch_size", "embedder.concurrency", "embedder.timeout",
    "embedder.retries",
)  # fmt: skip
_OF_COMMAND = ("run_dir", "ckpt_path", "trust")  # always those of the command that resumes
_SLOWER = 0.5  # of an origin's learning rates: the weights are trained already
_WARMUP, _PASSES = 10, 4  # steps, and passes over the texts: more learn by heart (measured in docs/audit.md)
_SAMPLE = 200  # vectors that tell which embedder made them
_BLENDING = "unembed.callbacks.blending.Blending"


def on_run(
    command: str, overrides: Sequence[str], first: Callable[[DictConfig], None] | None = None
) -> tuple[DictConfig, DictConfig]:
    """The settings of a command such as ``invert`` and the amended configuration of the run that they name, checked.

    The run's own logger is dropped; name a logger in ``overrides`` to use one. ``first`` checks what it can of the
    settings before anything heavy is imported.
    """
    known = [*map(str, OmegaConf.load(CONFIGS / f"{command}.yaml")), *default_groups(command)]
    overrides = [as_text(word) for word in _with_vectors(overrides)] if "vectors" in known else [*overrides]
    given = next((line.partition("=")[2].strip("'\"") for line in overrides if root_of(line) == "config_dir"), None)
    search = search_path_of(None if given in ("", "null") else given)
    others = without(overrides, *known)
    composed, errors = survey(command, [*(line for line in overrides if line not in others), *search])
    raise_all(errors or check(composed[0]))  # no constructor receives the settings
    settings = composed[0]
    run, of_store = _run_of(settings, first, any(key_of(line) == "embedder.prefix" for line in others))
    others += of_store
    stored = stored_config(run, settings.trust, {key_of(line) for line in others})
    stored.logger, stored.choices.logger = {}, "none"  # its curves are of the training
    config, misspelt = survey_amended(stored, [*others, *search], known)
    raise_all(misspelt)
    if first is not None:
        first(settings)
    raise_all(check(config))
    OmegaConf.resolve(config)
    if command == "evaluate":  # the other commands read no texts of the run
        with open_dict(settings):
            settings.other_data = any(map(chooses_data, others))  # the run's files may have changed then
        if not settings.other_data and (names := absent_data(run)):
            raise InputError(
                f"run={run}: the text that it was made with ({listed(names)}) is not part of it; name what to test on: "
                "datamodule=files datamodule.test=<file>, or datamodule=synthetic, the built-in corpus"
            )
    make_absolute(config)
    return settings, config


def stored_config(
    directory: Path, trust: str | Sequence[str], given: Collection[str], cache_dir: str | None = None
) -> DictConfig:
    """A run's config.yaml, checked; its directories are updated if the run was moved.

    ``trust`` is what it may name besides our own; the keys in ``given`` are set on the command line. Without
    ``cache_dir``, the cache is the run's own, if it exists.
    """
    from unembed.runs.trust import check_trusted, trusting

    layout.check_links(directory)
    config = read_config(directory)
    if not isinstance(config.get("choices"), DictConfig):
        raise InputError(f"{directory / layout.CONFIG}: not the configuration of a run")
    with trusting(trust):
        check_trusted(config, directory, given)
    was, cache = str(config.get("run_dir", "")), str(config.get("cache_dir", ""))
    config.run_dir, config.cache_dir = str(directory), cache_dir or cache_of(cache, directory)
    move(config, {was: str(directory), cache: str(config.cache_dir)})
    return config


def _with_vectors(words: Sequence[str]) -> Sequence[str]:
    """The words, with ``vectors=`` before a path that stands alone and may have spaces: ``unembed audit mine.npy``."""
    alone = [word for word in words if "=" not in word and not word.startswith(("~", "+"))]
    others = [word for word in words if word not in alone]
    if not alone or any(root_of(word) == "vectors" for word in others):
        return words
    return [*others, f"vectors={' '.join(alone)}"]


def _run_of(
    settings: DictConfig, first: Callable[[DictConfig], None] | None, prefix_chosen: bool
) -> tuple[Path, list[str]]:
    """The run directory that ``run`` names, which becomes its value; by default the attacker for the vectors.

    And what the vectors say of the run's embedder: of several prefixes theirs, unless the command line chose it.
    """
    if settings.run is None and "vectors" not in settings:
        raise InputError("run: missing, give it as run=<value>")
    named = str(settings.run)
    overrides: list[str] = []
    if settings.get("vectors") is not None and not (prefix_chosen and settings.run is not None):
        named, overrides = _attacker_for(settings, first)
    directory = find_run(named, "run")
    if not (directory / layout.CONFIG).is_file():
        inner = sorted(str(found.parent) for found in directory.glob(f"**/{layout.CONFIG}"))
        hint = f"did you mean {inner[-1]}?" if inner else "a run writes it when its training begins"
        raise InputError(f"run={directory}: holds no {layout.CONFIG}, {hint}")
    settings.run = str(directory)
    with open_dict(settings):
        settings.run_as = named  # in reports and the commands that they print
    return directory, [] if prefix_chosen else overrides


def _attacker_for(settings: DictConfig, first: Callable[[DictConfig], None] | None) -> tuple[str, list[str]]:
    from unembed.datamodules.vector_stores.vector_files import dimension_of

    vectors = str(settings.vectors)
    dimension = dimension_of(vectors)

    def sample() -> Tensor:
        if first is not None:
            first(settings)
        if dimension is not None:
            from unembed.datamodules.vector_stores.vector_files import read_vectors

            return read_vectors(Path(vectors).expanduser(), dimension, _SAMPLE)
        from unembed.datamodules.vector_stores.sampling import sample_of

        return sample_of(vectors, None, settings.get("collection"), _SAMPLE)

    return attacker_for(vectors, settings.run, dimension, sample)


# -- defenses on a run ------------------------------------------------------------------------------------------------


class DefensePoint(NamedTuple):
    """One defense at one strength: its name in tables, its overrides, and the resolved configuration with it."""

    name: str
    overrides: tuple[str, ...]
    config: DictConfig


def defense_points(
    config: DictConfig, lines: Sequence[str], key: str, config_dir: str | None = None
) -> list[DefensePoint]:
    """The configuration of a run under each defense of ``lines``; ``key`` names the list in messages.

    ``config_dir`` is a directory with the user's own configurations, or None.
    """
    points: list[DefensePoint] = []
    errors: list[str] = []
    for number, line in enumerate(lines):
        where = f"{key}[{number}]={line}"
        try:
            words = shlex.split(line)
        except ValueError as error:
            errors.append(f"{where}: {error}")
            continue
        options = [word.partition("=")[2] for word in words if word.startswith("defense=")]
        if not options or any(word.partition("=")[0].partition(".")[0] != "defense" for word in words):
            errors.append(f"{where}: write it as for evaluate.py, such as 'defense=noise defense.level=0.01'")
            continue
        amended, found = survey_amended(config, [*words, *search_path_of(config_dir)])
        found = found or check(amended)
        errors += [f"{where}: {message}" for message in found]
        if not found:
            OmegaConf.resolve(amended)
            rest = [word.removeprefix("defense.") for word in words if not word.startswith("defense=")]
            name = " ".join([*(option.strip("[]").replace(",", " + ") for option in options), *rest])
            points.append(DefensePoint(name, tuple(words), amended))
    names = [point.name for point in points]
    errors += [f"{key}: {name} is listed twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    raise_all(errors)
    return points


# -- resuming ---------------------------------------------------------------------------------------------------------


def resumed(config: DictConfig, overrides: Sequence[str]) -> DictConfig | None:
    """The configuration for resuming a run; None if the command, composed as ``config``, starts a new run.

    The run's own config must name nothing untrusted, and must not write outside the run directory.
    """
    directory = Path(str(config.run_dir))
    if config.get("ckpt_path") is None or not (directory / layout.CONFIG).is_file():
        return None
    from unembed.runs.trust import foreign

    given = Overrides(overrides)
    keys = {key_of(line) for line in given.lines}
    saved = stored_config(
        directory,
        [*as_list(config.trust), *foreign(config)],  # names on the command line itself are trusted
        {key for key in keys if "." in key},  # a whole group may be the run's own
        str(config.cache_dir) if "cache_dir" in keys else None,
    )
    make_absolute(saved)
    amended, refused = _with_changes(saved, given) if keys - {*_OF_COMMAND} else (saved.copy(), [])
    if refused:
        lines = "\n".join(f"  {line}" for line in dict.fromkeys(refused))
        raise InputError(
            f"run_dir={directory}: a resumed run keeps its settings, and these are others (the run's -> yours):\n"
            f"{lines}\nLeave them out, or choose a new run_dir for them."
        )
    amended.run_dir, amended.ckpt_path, amended.trust = str(directory), config.ckpt_path, config.trust
    away = {key: path for key, path in outside(amended).items() if OmegaConf.select(config, key) != path}
    raise_all([
        f"{directory / layout.CONFIG}: {key}={path} would write outside of the run's directory; where that is meant, "
        f"give {key}=<directory> yourself" for key, path in away.items()
    ])  # fmt: skip
    return amended


def _with_changes(saved: DictConfig, given: Overrides) -> tuple[DictConfig, list[str]]:
    """A run's configuration with what is typed and may change, and a line for each other value that is not the run's.

    What is typed is composed with the options that the run chose, and compared with the run where it is typed.
    """
    groups = {o.key_or_group for o in given.groups if o.package is None and "/" not in o.key_or_group}
    chosen = _chosen(saved, [name for name in map(str, saved.choices) if name not in groups], given.search)
    configs, errors = survey("train", [*chosen, *given.words])
    raise_all(errors)
    typed, amended = configs[0], saved.copy()
    make_absolute(typed)
    refused = [
        f"{group}: {shown_value(saved.choices.get(group))} -> {shown_value(typed.choices.get(group))}"
        for group in sorted(groups - {"logger"})
        if saved.choices.get(group) != typed.choices.get(group)
    ]
    if "logger" in groups:
        amended.logger, amended.choices.logger = typed.logger, typed.choices.logger
    steps = {o.input_line for o in given.groups if o.package is not None}  # of a chain, which the choice names
    keys = {key_of(line).partition("[")[0] for line in given.lines if line not in steps} - groups
    if "experiment" in groups or any(key.startswith("access") for key in keys):  # how a table describes the run
        amended.access = typed.access
    left_out = ("choices", "access", *_OF_COMMAND, *(["logger"] if "logger" in groups else []))
    noted = (Path(str(saved.run_dir)) / layout.DATA).is_file()
    for key, before, now in differences(tree(saved), tree(typed), left_out):
        if not f"{key}.".startswith(tuple(f"{name}." for name in keys)):
            continue
        free = f"{key}.".startswith(tuple(f"{name}." for name in (*MAY_CHANGE, *BATCHES_A_STEP)))
        if not free and not (noted and names_data(key)):
            refused.append(f"{key}: {shown_value(before)} -> {shown_value(now)}")
        elif now != UNSET:
            OmegaConf.update(amended, key, now, force_add=True)
    trained = any((Path(str(saved.run_dir)) / name).exists() for name in (layout.CHECKPOINT, layout.PREVIOUS))
    if trained and not _batches_a_step(saved) == _batches_a_step(amended) is not None:
        changed = differences(tree(saved), tree(amended))
        refused += [f"{key}: {before} -> {now}" for key, before, now in changed if key in BATCHES_A_STEP]
    return amended, refused


def _chosen(run: DictConfig, groups: Sequence[str], search: tuple[str, ...]) -> list[str]:
    """Overrides that choose the options of a run, as far as they are still there."""
    chosen = {group: str(run.choices.get(group)).split("+") for group in groups}
    valid = {group: names for group, names in chosen.items() if {*names} <= {*options(group, search)}}
    return [
        f"{group}={names[0]}" if len(names) == 1 else f"{group}=[{','.join(names)}]" for group, names in valid.items()
    ]


def is_finished(config: DictConfig) -> bool:
    """Whether the run that ``config`` resumes from its last checkpoint has ended with exactly these settings; its cell
    of the access table may be described otherwise."""
    directory = Path(str(config.run_dir))
    results = (layout.METRICS, layout.PREDICTIONS, layout.REPORT)  # the report is written last
    if config.ckpt_path != "last" or not all((directory / name).is_file() for name in results):
        return False
    changed = {key.partition(".")[0] for key, _, _ in differences(tree(read_config(directory)), tree(config))}
    return changed <= {*_OF_COMMAND, "cache_dir", "objective", "access"}


def _batches_a_step(config: DictConfig) -> int | None:
    """Batches per optimizer step over all processes; None if the number of processes depends on the machine."""
    factors = [OmegaConf.select(config, key, default=1) for key in BATCHES_A_STEP]
    return math.prod(factors) if all(isinstance(factor, int) and factor > 0 for factor in factors) else None


# -- training that begins with another run ----------------------------------------------------------------------------


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
    given = Overrides(overrides)
    if (origin := _origin(given)) is None:
        return [*overrides]
    chosen = _chosen(origin, _groups_of_origin(given), given.search)
    if "model" in origin.embedder and any(line.startswith("embedder=") for line in chosen):
        chosen.append(f"embedder.model={quoted(origin.embedder.model)}")
    return [*chosen, *overrides]


def fine_tuned(config: DictConfig, overrides: Sequence[str], of_job: Sequence[str] | None = None) -> DictConfig:
    """The configuration with the origin's attack, changed by ``overrides``; unchanged where there is no origin.

    ``config`` is composed from the result of ``with_origin``; ``of_job`` are the overrides of one job of a multirun.
    """
    given = Overrides(overrides)
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


def _groups_of_origin(given: Overrides) -> list[str]:
    """The groups that are the origin's."""
    return ["attack"] if any(key_of(line) == "embedder" for line in given.lines) else ["attack", "embedder"]


def _origin(given: Overrides) -> DictConfig | None:
    """The configuration of the run that ``init_from`` names; None where it is not typed, or an attack is chosen.

    A directory that is no run is reported when training begins (stored_attack.check_origin).
    """
    named = [o.value() for o in given.overrides if o.key_or_group == "init_from" and not o.is_sweep_override()]
    chooses_attack = any(o.key_or_group in ("attack", "experiment", "stage") for o in given.groups)
    if not named or chooses_attack or not isinstance(named[-1], str):
        return None
    directory = find_run(named[-1], "init_from")
    config = read_config(directory) if (directory / layout.CONFIG).is_file() else OmegaConf.create()
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
