"""The entry points of the scripts: a command line in, a checked configuration handed to a function."""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

import claims
from configuration import console
from configuration.amending import survey_amended
from configuration.chains import unrolled
from configuration.composing import plain, raise_all, survey
from configuration.ending import check_output, check_writable, ending
from configuration.locations import cache_of, check_data_known, chooses_data, make_absolute, move, relative_data
from configuration.overrides import quoted, refuse_secrets, search_path_of
from configuration.resuming import WHOLE, resumed
from configuration.sources import CONFIGS, SEARCH_PATH, groups, own_names, parts
from configuration.spacing import joined
from configuration.trainer import device_errors
from errors import InputError, printable, redacted
from ranks import is_first, local_rank, started_outside
from run_directory import layout
from run_directory.config_file import read_config

_SWEEPS, _TIME = Path("runs/multirun"), "%Y-%m-%d_%H-%M-%S"  # as configs/hydra/default.yaml has them


def check(config: DictConfig) -> list[str]:
    """One line for each value that the constructor it goes to would not take; empty where everything fits."""
    from configuration.checking import check as check_values  # pydantic, and behind the constructors torch

    return check_values(config)


def check_devices(config: DictConfig) -> None:
    """Raises InputError where this machine lacks the devices that ``config.trainer`` asks for."""
    raise_all(list(device_errors(plain(config.trainer))))


def main(task: Callable[[DictConfig], None], config_name: str) -> None:
    """Run ``task`` on the configuration of the command line, or several times with ``--multirun``.

    All of Hydra's flags work. Mistakes in overrides and values end the process with code 2 before a run directory is
    made; the configuration that ``task`` gets has no interpolations left.
    """
    with ending(), claims.Tidied() as made:
        refuse_secrets(sys.argv[1:])
        _main(task, config_name, made)


def _main(task: Callable[[DictConfig], None], config_name: str, made: claims.Tidied) -> None:
    arguments = _parsed(get_args_parser())
    if arguments.help:
        print(_help(task, config_name))
        return
    held, directory, again = console.hold(), None, None
    if not (arguments.hydra_help or arguments.shell_completion or arguments.info or arguments.experimental_rerun):
        with ending():
            overrides = [*arguments.overrides, *search_path_of(arguments.config_dir)]
            configs, errors = survey(arguments.config_name or config_name, overrides, multirun=arguments.multirun)
            # A configuration that is only shown may have wrong values.
            checked = configs if arguments.cfg is None else []
            if len(checked) == 1 and not arguments.multirun:
                again = resumed(checked[0], overrides)
                if again is not None:  # compared with the run's settings, in which other keys may be known
                    checked, errors = [again], [e for e in errors if e.startswith(tuple(f"{g}=" for g in WHOLE))]
            _raise_written(errors, checked)
            if len(checked) == 1 and not arguments.multirun:
                with ending(settings=checked[0]):
                    directory = _own(str(checked[0].run_dir), "run_dir", overrides, checked[0], made)
                if local_rank() == 0:  # the imports now take seconds
                    print(printable(f"run directory: {directory}"), flush=True)
            elif checked:
                _own_sweep(overrides, checked, made)
            raise_all([message for config in checked for message in check(config)])
            if len(checked) == 1 and not arguments.multirun:  # whose jobs may run on other machines
                check_devices(checked[0])
            for config in checked if local_rank() == 0 else []:
                with ending(settings=config):
                    check_writable(Path(str(config.run_dir)))
            for folder in (Path(str(config.run_dir)) for config in configs if "run_dir" in config):
                if (folder / layout.CONFIG).is_file():  # Hydra's log is opened before anything else looks at it
                    layout.check_links(folder)
    lists = {line: unrolled([line]) for line in arguments.overrides}
    sys.argv = [new for word in sys.argv for new in lists.get(word, [word])]
    if again is not None:  # Hydra opens the log and need not compose more: what was typed goes with the run's settings
        mine = [line for line in arguments.overrides if not line.lstrip("+~").startswith("hydra.")]
        sys.argv = [word for word in sys.argv if word not in {new for line in mine for new in lists[line]}]
        sys.argv.append(f"ckpt_path={quoted(again.ckpt_path)}")
    if directory is not None:  # Hydra composes again, and reads the clock anew
        sys.argv.append(f"run_dir={quoted(directory)}")

    chosen = {"--config-name": arguments.config_name, "--config-dir": arguments.config_dir}
    flags = [f"{flag}={value}" for flag, value in chosen.items() if value is not None]

    @functools.wraps(task)
    def job(config: DictConfig) -> None:
        # Lightning starts other ranks with this process's command line: it must lead them to this very job and
        # directory. The message after Ctrl-C shows it too.
        given = HydraConfig.get().overrides
        own = [line for line in given.hydra if line.startswith(SEARCH_PATH)]
        task_lines = given.task if again is None else unrolled(arguments.overrides)
        own += [line for line in task_lines if _root(line) not in ("run_dir", "ckpt_path", "hydra")]
        OmegaConf.resolve(config)
        if arguments.multirun:
            with ending():
                config = resumed(config, own) or config
        config = again or config
        make_absolute(config)
        if _is_parallel(config) and "precision" in config.trainer:  # each rank would measure for itself
            own = [line for line in own if not line.startswith("trainer.precision=")]
            own.append(f"trainer.precision={config.trainer.precision}")
        resuming = [] if config.ckpt_path is None else [f"ckpt_path={quoted(config.ckpt_path)}"]
        from run_directory.trust import trusting

        console.quieten(held)
        sys.argv = [sys.argv[0], *flags, *own, f"run_dir={quoted(config.run_dir)}", *resuming]
        if directory is None:  # of a multirun
            made.adopt(Path(config.run_dir))
        with (
            console.Tracebacks(),
            ending(config, training=True),
            trusting(config.trust),
            _held(config.run_dir, "run_dir"),
        ):
            task(config)

    hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)(job)()


def _parsed(parser: argparse.ArgumentParser, *, mixed: bool = False) -> argparse.Namespace:
    """The command line, its flags in front or, ``mixed``, anywhere.

    What is wrong with it is quoted as text, since a shell's ``*`` may stand for any names.
    """

    def refuse(message: str) -> NoReturn:
        print(printable(f"{redacted(message)}; --help lists what can be given"), file=sys.stderr)
        raise SystemExit(2)

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_intermixed_args() if mixed else parser.parse_args()


def _is_parallel(config: DictConfig) -> bool:
    """Whether several processes may train."""
    trainer = config.get("trainer") or {}
    usual = {"strategy": "auto", "devices": 1, "num_nodes": 1}
    return any(trainer.get(name, value) != value for name, value in usual.items())


def main_on_run(task: Callable[[DictConfig, DictConfig], None], config_name: str) -> None:
    """Run ``task(settings, config)`` on a finished run.

    Overrides of keys in configs/<config_name>.yaml make the settings; the others amend the run's config.yaml.
    """
    with ending(), claims.Tidied(keeps_log=False) as made:  # evaluate.py compare= may write nothing
        refuse_secrets(sys.argv[1:])
        _main_on_run(task, config_name, made)


def _main_on_run(task: Callable[[DictConfig, DictConfig], None], config_name: str, made: claims.Tidied) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("overrides", nargs="*")
    arguments = _parsed(parser, mixed=True)
    if arguments.help:
        print(_help(task, config_name))
        return
    held = console.hold()
    overrides = list(arguments.overrides)
    if arguments.config_dir is not None:
        overrides.append(f"config_dir={quoted(Path(arguments.config_dir).absolute())}")
    with ending():
        settings, config = on_run(config_name, overrides)
    with ending(settings=settings):
        if "output_dir" in settings:
            settings.output_dir = _own(settings.output_dir, "output_dir", overrides, config, made)
        if local_rank() == 0 and "output_dir" in settings:
            check_writable(Path(settings.output_dir))
        elif local_rank() == 0 and "output" in settings:
            check_output(Path(settings.output))
    from run_directory.trust import trusting

    console.show_and_log(Path(settings.output_dir) if "output_dir" in settings else None)
    console.quieten(held)
    # As in main: the ranks that Lightning starts must write where this process does.
    fixed = [key for key in ("output_dir", "output") if key in settings]
    own = [line for line in overrides if _root(line) not in fixed]
    sys.argv = [sys.argv[0], *own, *(f"{key}={quoted(settings[key])}" for key in fixed)]
    with (
        ending(config, settings=settings),
        trusting(settings.trust),
        _held(settings.get("output_dir"), "output_dir"),
    ):
        task(settings, config)


def _own(directory: str, key: str, overrides: Sequence[str], config: DictConfig, made: claims.Tidied) -> str:
    """The directory that this process writes: one that the clock names is claimed here, before anybody else takes it.

    Raises:
        InputError: Several processes were started from outside, and each would claim one.
    """
    if "RUN_ID" in os.environ or any(_root(line) == key for line in overrides):
        made.expect(Path(directory))
        return directory
    if started_outside() and _is_parallel(config):
        raise InputError(f"{key}: torchrun and srun start processes that must agree on it: set RUN_ID, or {key}=<dir>")
    return str(made.claim(Path(directory)))


def _own_sweep(overrides: Sequence[str], configs: Sequence[DictConfig], made: claims.Tidied) -> None:
    """Claim a multirun's own directory, by whose name and their numbers its jobs' directories are called."""
    for directory in {Path(str(config.run_dir)).parent for config in configs}:
        made.expect(directory)
    if "RUN_ID" not in os.environ and not any(line.startswith("hydra.sweep.") for line in overrides):
        os.environ["RUN_ID"] = made.claim(_SWEEPS / time.strftime(_TIME)).name


@contextlib.contextmanager
def _held(directory: str | None, key: str) -> Iterator[None]:
    """The lock of ``directory``, for the one process that writes it."""
    with claims.held(Path(directory), key) if directory is not None and is_first() else contextlib.nullcontext():
        yield


def on_run(config_name: str, overrides: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """The settings of evaluate.py or invert.py and the amended configuration of the run that they name, both checked.

    The run's own logger is left out: one that is wanted is named in ``overrides``.

    Raises:
        InputError: No such run; or one line for each mistake in either.
    """
    known = own_names(config_name)
    overrides, spaced = joined(overrides)
    given = next((line.partition("=")[2].strip("'\"") for line in overrides if _root(line) == "config_dir"), None)
    search = search_path_of(None if given in ("", "null") else given)
    own = [line for line in overrides if _root(line) in known]
    others = [line for line in overrides if _root(line) not in known]
    from configuration.checking import check_written

    composed, errors = survey(config_name, [*own, *search])
    errors = spaced + errors
    errors += [message for found in composed for message in check_written(found)]
    if not composed or OmegaConf.is_missing(composed[0], "run"):
        raise_all(errors)
    settings = composed[0]
    read = _read(Path(settings.run).expanduser(), settings.trust, others)
    config, misspelt = survey_amended(read, [*others, *search], known)
    _raise_written([*errors, *misspelt], [config])
    raise_all([*check(settings), *check(config)])
    OmegaConf.resolve(config)
    if config_name == "evaluate":  # the others read no texts of the run
        original = read_config(Path(settings.run).expanduser())
        with open_dict(settings):
            settings.other_data = any(map(chooses_data, others))  # than the run's: its files need not be the same
            settings.unknown_data = bool(relative_data(original))
        if not settings.other_data:
            check_data_known(original, f"run={settings.run}")
    make_absolute(config)
    return settings, config


def _raise_written(errors: Sequence[str], configs: Sequence[DictConfig]) -> None:
    """Raise ``errors`` with what the source files tell about ``configs``, before anything heavy is imported."""
    from configuration.checking import check_written  # pydantic

    raise_all([*errors, *(message for config in configs for message in check_written(config))])


def _read(run: Path, trust: str | list[str], overrides: Sequence[str]) -> DictConfig:
    if not run.is_dir():
        raise InputError(f"run={run}: {layout.missing_directory(run)}")
    path = run / "config.yaml"
    if not path.is_file():
        inner = sorted(str(found.parent) for found in run.glob("**/config.yaml"))
        hint = f"did you mean {inner[-1]}?" if inner else "a run writes it when its training begins"
        raise InputError(f"run={run}: holds no config.yaml, {hint}")
    from run_directory.trust import check_trusted, trusting

    config = read_config(run)
    if "choices" not in config:
        raise InputError(f"{path}: not the configuration of a run")
    with trusting(trust):
        check_trusted(config, run, {_key(line) for line in overrides})
    layout.check_links(run)
    config.run_dir = str(run)  # where the run is now: it may have been moved
    named = str(config.get("cache_dir", ""))
    config.cache_dir = cache_of(named, run)
    move(config, {named: str(config.cache_dir)})
    config.logger, config.choices.logger = {}, "none"  # its training's curves are no place for other figures
    return config


def _key(line: str) -> str:
    """What an override gives, with dots: ``scoring.tagger`` for ``scoring/tagger=spacy``."""
    return re.split(r"[=@]", line.lstrip("+~"), maxsplit=1)[0].replace("/", ".")


def _root(line: str) -> str:
    return re.split(r"[.=@\[/]", line.lstrip("+~"), maxsplit=1)[0]


def _help(task: Callable[..., None], config_name: str) -> str:
    """The script's docstring, the groups with their options, and the keys of its own configuration."""
    notes = _comments(CONFIGS / "train.yaml")
    lines = [inspect.getdoc(inspect.getmodule(task)) or "", "", "Groups (group=option; the first is the default):"]
    for group, choices in groups().items():
        default, note = notes[f"- {group}"]
        ordered = sorted(choices, key=lambda choice: (choice != default, choice))
        lines += [f"  {group:<12}{note}", f"  {'':<14}{', '.join(ordered) or '(none)'}"]
    lines += ["", "Parts of groups (group/part=option):"]
    lines += [f"  {name:<26}{', '.join(choices)}" for name, choices in parts().items()]
    lines += ["", "Keys (key=value; a dot leads into a group, attack.decoding.beams=1):"]
    for name, (default, note) in _comments(CONFIGS / f"{config_name}.yaml").items():
        if not name.startswith("- "):
            lines += [f"  {name:<11} {note}", f"  {'':<14}{default}"]
    if config_name == "train":
        lines += [
            "",
            "-m runs all combinations of comma-separated values; -c job shows the configuration",
        ]
    return "\n".join(lines)


def _comments(path: Path) -> dict[str, tuple[str, str]]:
    """Value and comment of each commented line of a root configuration; groups have a leading ``- ``."""
    pattern = re.compile(r"\s*(- )?(?:optional )?(\w+): +(.+?)\s+# (.+)")
    found = (pattern.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {f"{m[1] or ''}{m[2]}": (m[3], m[4]) for m in found if m is not None}
