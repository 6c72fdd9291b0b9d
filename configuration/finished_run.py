"""The configuration of a finished run, as a script on it or a resumed training begins with it.

settings, config = on_run("evaluate", ["run=runs/x", "attack.decoding.beams=1"])
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from configuration.amending import survey_amended
from configuration.composing import check, raise_all, raise_written, survey
from configuration.locations import cache_of, check_data_known, chooses_data, make_absolute, move, relative_data
from configuration.overrides import key_of, root_of, search_path_of, without
from configuration.sources import own_names
from configuration.spacing import joined
from errors import InputError
from run_directory import layout
from run_directory.config_file import read_config


def on_run(config_name: str, overrides: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """The settings of evaluate.py or invert.py and the amended configuration of the run that they name, both checked.

    The run's own logger is left out: one that is wanted is named in ``overrides``.

    Raises:
        InputError: No such run; or one line for each mistake in either.
    """
    known = own_names(config_name)
    overrides, spaced = joined(overrides)
    given = next((line.partition("=")[2].strip("'\"") for line in overrides if root_of(line) == "config_dir"), None)
    search = search_path_of(None if given in ("", "null") else given)
    own = [line for line in overrides if root_of(line) in known]
    others = without(overrides, *known)
    from configuration.checking import check_written

    composed, errors = survey(config_name, [*own, *search])
    errors = [*spaced, *errors, *(message for found in composed for message in check_written(found))]
    if not composed or OmegaConf.is_missing(composed[0], "run"):
        raise_all(errors)
    settings = composed[0]
    run = Path(settings.run).expanduser()
    _check_is_run(run)
    stored = stored_config(run, settings.trust, {key_of(line) for line in others})
    stored.logger, stored.choices.logger = {}, "none"  # its training's curves are no place for other metrics
    config, misspelt = survey_amended(stored, [*others, *search], known)
    raise_written([*errors, *misspelt], [config])
    raise_all([*check(settings), *check(config)])
    OmegaConf.resolve(config)
    if config_name == "evaluate":  # the others read no texts of the run
        original = read_config(run)
        with open_dict(settings):
            settings.other_data = any(map(chooses_data, others))  # than the run's: its files need not be the same
            settings.unknown_data = bool(relative_data(original))
        if not settings.other_data:
            check_data_known(original, f"run={settings.run}")
    make_absolute(config)
    return settings, config


def stored_config(
    directory: Path, trust: str | Sequence[str], given: Collection[str], cache_dir: str | None = None
) -> DictConfig:
    """A run's config.yaml, checked, with its directories where they are now: it may have been moved.

    Args:
        directory: The run's.
        trust: What it may name besides our own classes.
        given: Keys that the command line gives in place of the run's.
        cache_dir: One that was typed; by default the run's own, where there is one.

    Raises:
        InputError: It names what is neither ours nor trusted; something in the run leads out of it; or it is no run's.
    """
    from run_directory.trust import check_trusted, trusting

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


def _check_is_run(directory: Path) -> None:
    if not directory.is_dir():
        raise InputError(f"run={directory}: {layout.missing_directory(directory)}")
    if not (directory / layout.CONFIG).is_file():
        inner = sorted(str(found.parent) for found in directory.glob(f"**/{layout.CONFIG}"))
        hint = f"did you mean {inner[-1]}?" if inner else "a run writes it when its training begins"
        raise InputError(f"run={directory}: holds no {layout.CONFIG}, {hint}")
