"""The configuration of a finished run, for scripts on that run and for resumed training.

settings, config = on_run("evaluate", ["run=runs/x", "attack.decoding.beams=1"])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from unembed.core.errors import InputError, listed
from unembed.launch.checking import check
from unembed.launch.composing import raise_all, survey, survey_amended
from unembed.launch.locations import cache_of, chooses_data, make_absolute, move
from unembed.launch.named_runs import find_run, fitting_attacker
from unembed.launch.overrides import as_text, key_of, root_of, search_path_of, without
from unembed.launch.sources import own_names
from unembed.runs import layout
from unembed.runs.config_file import read_config
from unembed.runs.record import absent_data


def on_run(
    command: str, overrides: Sequence[str], first: Callable[[DictConfig], None] | None = None
) -> tuple[DictConfig, DictConfig]:
    """The settings of a command such as ``invert`` and the amended configuration of the run that they name, checked.

    The run's own logger is dropped; name a logger in ``overrides`` to use one. ``first`` checks what it can of the
    settings before anything heavy is imported.

    Raises:
        InputError: The run does not exist; or one line for each mistake in either.
    """
    known = own_names(command)
    overrides = [as_text(word) for word in _with_vectors(overrides)] if "vectors" in known else [*overrides]
    given = next((line.partition("=")[2].strip("'\"") for line in overrides if root_of(line) == "config_dir"), None)
    search = search_path_of(None if given in ("", "null") else given)
    own = [line for line in overrides if root_of(line) in known]
    others = without(overrides, *known)
    composed, errors = survey(command, [*own, *search])
    if not errors:
        errors = check(composed[0])  # no constructor receives them
    raise_all(errors)
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
        if not settings.other_data:
            _check_data_here(run)
    make_absolute(config)
    return settings, config


def stored_config(
    directory: Path, trust: str | Sequence[str], given: Collection[str], cache_dir: str | None = None
) -> DictConfig:
    """A run's config.yaml, checked; its directories are updated if the run was moved.

    Args:
        directory: The run directory.
        trust: Modules, models, hosts and variables that it may name besides our own.
        given: Keys set on the command line, which replace the run's.
        cache_dir: A cache given on the command line; by default the run's own, if it exists.

    Raises:
        InputError: It names something untrusted, a link leads out of the run, or it is not a run's configuration.
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
    _check_is_run(directory)
    settings.run = str(directory)
    with open_dict(settings):
        settings.run_as = named  # in reports and the commands that they print
    return directory


def _check_data_here(run: Path) -> None:
    """Refuse a test on the data of an exported run."""
    if names := absent_data(run):
        raise InputError(
            f"run={run}: the text that it was made with ({listed(names)}) is not part of it; name what to test on: "
            "datamodule=files datamodule.test=<file>, or datamodule=synthetic, the built-in corpus"
        )


def _check_is_run(directory: Path) -> None:
    if not (directory / layout.CONFIG).is_file():
        inner = sorted(str(found.parent) for found in directory.glob(f"**/{layout.CONFIG}"))
        hint = f"did you mean {inner[-1]}?" if inner else "a run writes it when its training begins"
        raise InputError(f"run={directory}: holds no {layout.CONFIG}, {hint}")
