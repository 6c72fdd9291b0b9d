"""The way of every command: a command line -> a composed configuration -> checked -> passed to a function.

main(train, "train")         # a configuration from configs/
main(evaluate, "evaluate")   # a run's own configuration with overrides

python train.py --help                     # keys with their defaults, groups with their options
python train.py --cfg job attack=multiset  # the configuration, of which -p shows a node
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from unembed.core import commands
from unembed.core.commands import quoted
from unembed.core.errors import InputError, printable, redacted
from unembed.core.ranks import check_devices, is_first, local_rank, rank_and_size, started_outside
from unembed.core.stopping import FAILED
from unembed.launch import console
from unembed.launch.checking import check, secret_errors
from unembed.launch.composing import expand_grid, grid_of, plain, settle, survey
from unembed.launch.console import Ended, check_writable, ending
from unembed.launch.finished_run import compose, fine_tuned, is_finished, on_run, resumed, with_origin
from unembed.launch.locations import find_run, make_absolute
from unembed.launch.overrides import (
    CONFIGS,
    SEARCH_PATH,
    Overrides,
    application,
    default_groups,
    one_line,
    options,
    parts,
    raise_all,
    refuse_secrets,
    root_of,
    search_path_of,
    without,
)
from unembed.runs import layout
from unembed.runs.config_file import record_config
from unembed.runs.trust import trusting

_SWEEPS, _TIME = Path("runs/multirun"), "%Y-%m-%d_%H-%M-%S"  # as in configs/train.yaml
_INHERITED = "UNEMBED_INHERITED"  # environment variable: a file with the configurations of rank 0
_OF_LIGHTNING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")  # kept by Lightning

Task = Callable[..., Any]


def main(
    task: Task,
    command: str,
    switches: Mapping[str, str] | None = None,
    first: Callable[[DictConfig], None] | None = None,
) -> None:
    """Run the task of a command; mistakes end the process with code 2 before a directory is made.

    ``train`` is called with a composed configuration, several times with ``--multirun``. All other commands are called
    with their settings, which are the keys of configs/<command>.yaml, and with the configuration of a finished run that
    the other overrides amend. No configuration has interpolations.

    Args:
        task: The function.
        command: Its name.
        switches: Flags that stand for an override.
        first: See ``on_run``.
    """
    with ending():
        refuse_secrets(commands.arguments())
        arguments = _arguments(command, switches or {})
        overrides = [*arguments.overrides, *arguments.switched]
        console.begin()
        if arguments.help:
            print(_usage(task, command))
        elif (configs := _inherited()) is not None:
            _run_as_rank(task, configs)
        elif command != "train":
            if arguments.config_dir is not None:
                overrides.append(f"config_dir={quoted(Path(arguments.config_dir).absolute())}")
            _work_on_run(task, command, overrides, first)
        elif arguments.cfg is not None:
            _show(command, [*overrides, *search_path_of(arguments.config_dir)], arguments.package)
        else:
            start = _train_several if arguments.multirun else _train
            start(task, command, [*overrides, *search_path_of(arguments.config_dir)])


def _show(command: str, overrides: Sequence[str], package: str | None) -> None:
    """Print a configuration, or a node of it; its values may be invalid."""
    config = compose(command, overrides)
    raise_all(secret_errors(config))
    print(redacted(OmegaConf.to_yaml(OmegaConf.select(config, package) if package else config)), end="")


def _train(task: Task, command: str, overrides: Sequence[str]) -> None:
    if grid := grid_of(command, overrides):
        _print_once(f"one cell of a grid over {', '.join(grid)}: -m runs all")
    configs, errors = survey(command, with_origin(overrides))
    config = resumed(configs[0], overrides) if configs else None
    if config is None:  # else what is typed is compared with the run's settings, which may have other keys
        raise_all(errors)
        if configs[0].get("init_from") is not None:
            find_run(str(configs[0].init_from), "init_from")
        config = fine_tuned(configs[0], overrides)
    _check([config])
    check_devices(config.trainer)
    config.run_dir = _own(str(config.run_dir), "run_dir", overrides, config)
    _print_once(f"run directory: {config.run_dir}")
    _run(task, config, overrides)


def _train_several(task: Task, command: str, overrides: Sequence[str]) -> None:
    overrides = expand_grid(command, overrides)
    composed = with_origin(overrides)
    configs, errors = survey(command, composed, multirun=True)
    raise_all(errors)
    _check(configs)
    if "RUN_ID" not in os.environ and not any(line.startswith("hydra.sweep.") for line in overrides):
        os.environ["RUN_ID"] = layout.claim(_SWEEPS / time.strftime(_TIME)).name  # the jobs' directories are numbered
    job = functools.partial(_job, task, tuple(overrides))
    try:
        with application() as composer:
            composer.multirun(command, job, [*Overrides(composed).lines, "hydra.mode=MULTIRUN"])
    except ConfigCompositionException as error:  # Hydra also composes a multirun without what is swept
        hint = "; in a multirun, write a key that only swept options have as <key>='choice(<value>)'"
        raise InputError(one_line(error) + hint * str(error).startswith("Could not override")) from error


def _job(task: Task, overrides: Sequence[str], config: DictConfig) -> Any:
    """Run the task on a configuration of Hydra's, perhaps in another process, as of joblib and submitit."""
    console.begin()
    typed = list(HydraConfig.get().overrides.task)
    settle(config)
    with ending():
        given = [*typed, *(line for line in overrides if line.startswith(SEARCH_PATH))]
        again = resumed(config, given)
        if again is not None and is_finished(again):
            if is_first():
                record_config(Path(again.run_dir), plain(again))
            _print_once(f"finished before: {again.run_dir}")
            from unembed.callbacks.results import objective_of

            return objective_of(Path(again.run_dir), again.objective)
        config = again or fine_tuned(config, overrides, given)
        _check([config])
    try:
        return _run(task, config, typed)
    except Ended as error:
        if error.code != FAILED:
            raise
        # Hydra runs the other jobs after an exception, and raises it when they have ended.
        said = "and perhaps others (see above); the same command with ckpt_path=last runs what is missing"
        raise InputError(f"a run failed: {config.run_dir}, {said}") from error


def _check(configs: Sequence[DictConfig]) -> None:
    """Check all values, after importing the constructors that receive them; then the places that are written."""
    messages = [message for config in configs for message in check(config)]
    for node in (config.access for config in configs if config.get("access") is not None):
        from unembed.reports.access import declaration_errors

        messages += declaration_errors(plain(node) if isinstance(node, DictConfig) else node)
    raise_all(messages)
    console.quieten()
    for config in configs:
        OmegaConf.resolve(config)
        if local_rank() == 0:
            check_writable(Path(config.run_dir))
        if (Path(config.run_dir) / layout.CONFIG).is_file():  # before its log is opened
            layout.check_links(Path(config.run_dir))


def _run(task: Task, config: DictConfig, words: Sequence[str]) -> Any:
    """Run the task on a checked configuration; ``words`` start it again."""
    make_absolute(config)
    run = Path(config.run_dir)
    if config.ckpt_path == "last" and not any((run / name).is_file() for name in (layout.CHECKPOINT, layout.PREVIOUS)):
        # No mistake: a cluster starts every job with it.
        what, file = ("checkpoint", layout.CHECKPOINT) if (run / layout.CONFIG).is_file() else ("run", layout.CONFIG)
        missing = f"there is no {what} to resume ({file} is missing), so it starts from the beginning"
        _print_once(f"run_dir={run}: {missing}")
    again = [*without(words, "run_dir", "ckpt_path"), f"run_dir={quoted(config.run_dir)}"]
    return _call(task, [config], again, config.run_dir, "run_dir")


def _work_on_run(
    task: Task, command: str, overrides: Sequence[str], first: Callable[[DictConfig], None] | None
) -> None:
    settings, config = on_run(command, overrides, first)
    if not any(root_of(line) == "run" for line in overrides):
        _print_once(f"attacker: {settings.run_as}, shipped with unembed; run=<dir> takes another", sys.stderr)
    places = [key for key in ("output_dir", "output") if key in settings]
    if "output_dir" in settings:
        settings.output_dir = _own(settings.output_dir, "output_dir", overrides, config)
    for key in places if local_rank() == 0 else ():
        check_writable(Path(settings[key]), is_file=key == "output")
    console.quieten()
    again = [*without(overrides, *places), *(f"{key}={quoted(settings[key])}" for key in places)]
    _call(task, [settings, config], again, settings.get("output_dir"), "output_dir")


def _call(task: Task, configs: Sequence[DictConfig], again: Sequence[str], directory: str | None, key: str) -> Any:
    """Call the task, with a lock on the directory that it writes and a log there; ``again`` starts it once more."""
    if directory is not None:
        console.log_to(Path(directory))
    with (
        ending(configs[-1], training=key == "run_dir", command=again),
        trusting(configs[0].trust),
        _shared_with_ranks(*configs),
        contextlib.nullcontext() if directory is None or not is_first() else layout.locked(Path(directory), key),
    ):
        return task(*configs)


def _print_once(text: str, file: TextIO | None = None) -> None:
    """Print a line, on one rank of a machine."""
    if local_rank() == 0:
        print(printable(text), file=file, flush=True)


# -- directories of this process --------------------------------------------------------------------------------------


def _own(directory: str, key: str, overrides: Sequence[str], config: DictConfig) -> str:
    """The directory that this process writes; one named after the clock is claimed before another process takes it."""
    if "RUN_ID" in os.environ or any(root_of(line) == key for line in overrides):
        return directory
    if rank_and_size()[1] > 1 or (started_outside() and _is_parallel(config)):
        raise InputError(f"{key}: torchrun and srun start processes that must agree on it: set RUN_ID, or {key}=<dir>")
    return str(layout.claim(Path(directory)))


# -- ranks that Lightning starts with this process's command line -----------------------------------------------------
# If each composed it again, the configurations would differ: the clock gives another directory, a multirun has several
# jobs, each rank would measure its own precision, and a resumed run keeps settings that are not on the command line.


@contextlib.contextmanager
def _shared_with_ranks(*configs: DictConfig) -> Iterator[None]:
    """Inside, child processes inherit ``configs``, if the trainer of the last one may start any."""
    if not _is_parallel(configs[-1]):
        yield
        return
    with tempfile.NamedTemporaryFile("w", prefix="unembed-", suffix=".yaml") as file:
        OmegaConf.save(OmegaConf.create(list(configs)), file)
        file.flush()
        before = {name: os.environ.get(name) for name in (_INHERITED, *_OF_LIGHTNING)}
        os.environ[_INHERITED] = file.name
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()  # the next job of a multirun starts its own ranks


def _inherited() -> list[DictConfig] | None:
    """The configurations passed to this rank; None in a process that inherited none."""
    if _INHERITED not in os.environ or local_rank() == 0:
        return None
    return list(OmegaConf.load(os.environ[_INHERITED]))


def _is_parallel(config: DictConfig) -> bool:
    """Whether training may use several processes."""
    usual = {"strategy": "auto", "devices": 1, "num_nodes": 1}
    return any((config.get("trainer") or {}).get(name, value) != value for name, value in usual.items())


def _run_as_rank(task: Task, configs: Sequence[DictConfig]) -> None:
    """Run ``task`` as one of the ranks that Lightning started; rank 0 writes the log."""
    for config in configs:
        check(config)  # imports libraries, some of which change the terminal's logging
    console.quieten()
    with ending(configs[-1]), trusting(configs[0].trust):
        task(*configs)


# -- flags and --help -------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists what can be given")


def _arguments(command: str, switches: Mapping[str, str]) -> argparse.Namespace:
    parser = _Parser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.set_defaults(switched=[])
    for flag, override in switches.items():
        parser.add_argument(flag, dest="switched", action="append_const", const=override)
    if command == "train":
        parser.add_argument("--multirun", "-m", action="store_true")
        parser.add_argument("--cfg", "-c", choices=["job"])
        parser.add_argument("--package", "-p")
    return parser.parse_intermixed_args(commands.arguments())


def _usage(task: Task, command: str) -> str:
    """The text of ``--help``: the script's docstring, its own keys, and the groups with their options."""
    notes = _comments(CONFIGS / "train.yaml")
    about = inspect.getdoc(inspect.getmodule(task)) or ""
    about = re.sub(r"python (train|evaluate)\.py", lambda found: commands.command(found[1]), about)
    lines = [about, "", "Keys (key=value):"]
    for name, (default, note) in _comments(CONFIGS / f"{command}.yaml").items():
        if not name.startswith("- "):
            lines += [f"  {name:<11} {note}", f"  {'':<14}{'must be given' if default == '???' else default}"]
    of = "" if command == "train" else ", which change the settings of the run"
    lines += ["", f"Groups (group=option; the first is the default){of}:"]
    for group in default_groups("train"):
        default, note = notes[f"- {group}"]
        ordered = sorted(options(group), key=lambda choice: (choice != default, choice))
        lines += [f"  {group:<12}{note}", f"  {'':<14}{', '.join(ordered) or '(none)'}"]
    lines += ["", "Parts of groups (group/part=option):"]
    lines += [f"  {name:<26}{', '.join(choices)}" for name, choices in parts().items()]
    lines += ["", "A dot leads into a group: attack.decoding.beams=1"]
    if command == "train":
        lines += ["", "-m runs all combinations of comma-separated values; -c job shows the configuration"]
    return "\n".join(lines)


def _comments(path: Path) -> dict[str, tuple[str, str]]:
    """Value and comment of each commented line of a root configuration; groups have a leading ``- ``."""
    pattern = re.compile(r"\s*(- )?(?:optional )?(\w+): +(.+?)\s+# (.+)")
    found = (pattern.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {f"{m[1] or ''}{m[2]}": (m[3], m[4]) for m in found if m is not None}
