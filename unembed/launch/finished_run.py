"""The configuration of a run that exists: for commands on it, and for training that resumes it.

    settings, config = on_run("evaluate", ["run=runs/x", "attack.decoding.beams=1"])
    defense_points(config, ["defense=none", "defense=noise defense.level=0.01"], "tradeoff.points")

    python train.py run_dir=runs/x ckpt_path=last                             # the run's own settings
    python train.py run_dir=runs/x ckpt_path=last trainer.max_steps=4000      # with another budget
    python train.py run_dir=runs/x ckpt_path=last attack.backbone.layers=6    # refused: the run has 2

A resumed run keeps the settings of its config.yaml, even where today's defaults differ. Of what is typed, the keys in
``MAY_CHANGE`` take effect; all others must have the run's value, so that the whole old command can be repeated.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from unembed.core.commands import shown_value
from unembed.core.errors import InputError, listed
from unembed.launch.checking import check
from unembed.launch.composing import survey, survey_amended, tree
from unembed.launch.locations import (
    cache_of,
    chooses_data,
    find_run,
    fitting_attacker,
    make_absolute,
    move,
    outside,
)
from unembed.launch.overrides import (
    CONFIGS,
    Given,
    as_text,
    default_groups,
    key_of,
    one_line,
    raise_all,
    root_of,
    search_path_of,
    without,
)
from unembed.runs import layout
from unembed.runs.config_file import BATCHES_A_STEP, BUDGET, differences, names_data, read_config
from unembed.runs.files import absent_data

# What may change when a run is resumed: its budget, and what changes neither weights nor metrics.
MAY_CHANGE = (
    *BUDGET, "run_dir", "ckpt_path", "cache_dir", "trust", "objective", "access", "logger",
    "attack.gradient_checkpointing", "trainer.accelerator", "trainer.strategy", "trainer.enable_progress_bar",
    "trainer.log_every_n_steps", "embedder.device", "embedder.batch_size", "embedder.concurrency", "embedder.timeout",
    "embedder.retries",
)  # fmt: skip
_OF_COMMAND = ("run_dir", "ckpt_path", "trust")  # always those of the command that resumes


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
    run = _run_of(settings)
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


def _run_of(settings: DictConfig) -> Path:
    """The run directory that ``run`` names, which becomes its value; by default the attacker for the vectors."""
    if settings.run is None and "vectors" not in settings:
        raise InputError("run: missing, give it as run=<value>")
    named = fitting_attacker(str(settings.vectors)) if settings.run is None else str(settings.run)
    directory = find_run(named, "run")
    if not (directory / layout.CONFIG).is_file():
        inner = sorted(str(found.parent) for found in directory.glob(f"**/{layout.CONFIG}"))
        hint = f"did you mean {inner[-1]}?" if inner else "a run writes it when its training begins"
        raise InputError(f"run={directory}: holds no {layout.CONFIG}, {hint}")
    settings.run = str(directory)
    with open_dict(settings):
        settings.run_as = named  # in reports and the commands that they print
    return directory


# -- defenses on a run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DefensePoint:
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
    unamended = set(check(config))
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
        found = found or [message for message in check(amended) if message not in unamended]
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

    given = Given(overrides)
    keys = {key_of(line) for line in given.lines}
    trust = [config.trust] if isinstance(config.trust, str) else list(config.trust)
    saved = stored_config(
        directory,
        [*trust, *foreign(config)],  # names on the command line itself are trusted
        {key for key in keys if "." in key},  # a whole group may be the run's own
        str(config.cache_dir) if "cache_dir" in keys else None,
    )
    amended, different = _amend_resumed(saved, given)
    make_absolute(saved)
    make_absolute(amended)
    amended.run_dir, amended.ckpt_path, amended.trust = str(directory), config.ckpt_path, config.trust
    if {"access", "experiment"} & set(map(root_of, given.lines)):  # how a table describes the run
        amended.access = config.access
    noted = (directory / layout.DATA).is_file()
    trained = any((directory / name).exists() for name in (layout.CHECKPOINT, layout.PREVIOUS))
    same_batches = not trained or _batches_a_step(saved) == _batches_a_step(amended) is not None
    free = (*MAY_CHANGE, *(BATCHES_A_STEP if same_batches else ()))
    different += [
        f"{key}: {shown_value(before)} -> {shown_value(now)}"
        for key, before, now in differences(tree(saved), tree(amended))
        if not (f"{key}.".startswith(tuple(f"{name}." for name in free)) or (noted and names_data(key)))
    ]
    if different:
        lines = "\n".join(f"  {line}" for line in dict.fromkeys(different))
        raise InputError(
            f"run_dir={directory}: a resumed run keeps its settings, and these are others (the run's -> yours):\n"
            f"{lines}\nLeave them out, or choose a new run_dir for them."
        )
    away = {key: path for key, path in outside(amended).items() if OmegaConf.select(config, key) != path}
    raise_all([
        f"{directory / layout.CONFIG}: {key}={path} would write outside of the run's directory; where that is meant, "
        f"give {key}=<directory> yourself" for key, path in away.items()
    ])  # fmt: skip
    return amended


def is_finished(config: DictConfig) -> bool:
    """Whether the run that ``config`` resumes from its last checkpoint has ended with exactly these settings; its cell
    of the access table may be described otherwise."""
    directory = Path(str(config.run_dir))
    results = (layout.METRICS, layout.PREDICTIONS, layout.REPORT)  # the report is written last
    if config.ckpt_path != "last" or not all((directory / name).is_file() for name in results):
        return False
    changed = {key.partition(".")[0] for key, _, _ in differences(tree(read_config(directory)), tree(config))}
    return changed <= {*_OF_COMMAND, "cache_dir", "objective", "access"}


def _amend_resumed(config: DictConfig, given: Given) -> tuple[DictConfig, list[str]]:
    """A run's configuration with what is typed, and a line for each option that is not the run's."""
    raise_all(given.errors)
    lines, options = [*given.search], dict[str, Any]()
    for o in (o for o in given.overrides if root_of(o.key_or_group) not in ("hydra", *_OF_COMMAND)):
        key, is_option = o.key_or_group, o in given.groups
        if key.startswith("choices.") or (is_option and "/" not in key and o.package is None and key != "logger"):
            options[key.removeprefix("choices.")] = o.value()
        elif o.package is None or root_of(str(o.input_line)) != key:  # no step of a chain of defenses
            lines += [str(o.input_line)] if is_option else _again(o, config)
    other = {group: name for group, name in options.items() if config.choices.get(group) != name}
    amended, errors = survey_amended(config, without(lines, *other), ("cache_dir",))
    raise_all(errors)
    try:
        OmegaConf.resolve(amended)
    except OmegaConfBaseException as error:
        raise InputError(one_line(error)) from error
    changed = [(group, config.choices.get(group), name) for group, name in other.items()]
    return amended, [f"{group}: {shown_value(before)} -> {shown_value(name)}" for group, before, name in changed]


def _again(override: Override, config: DictConfig) -> list[str]:
    """An override in a form that can be applied to a configuration that already contains it."""
    line, unset = str(override.input_line), object()
    present = OmegaConf.select(config, override.key_or_group, default=unset) is not unset
    if override.is_delete():
        return [line] if present else []
    return [f"+{line}" if override.is_add() and not override.is_force_add() and present else line]


def _batches_a_step(config: DictConfig) -> int | None:
    """Batches per optimizer step over all processes; None if the number of processes depends on the machine."""
    product = 1
    for key in BATCHES_A_STEP:
        value = OmegaConf.select(config, key, default=1)
        if not isinstance(value, int) or value < 1:
            return None
        product *= value
    return product
