"""The entry points of the scripts: from a command line to a checked configuration passed to a function.

configuration.main(train, "train")                    # a configuration from configs/
configuration.main_on_run(evaluate, "evaluate")       # a run's own configuration with overrides
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from unembed.core.commands import quoted
from unembed.core.errors import InputError, printable, redacted
from unembed.core.ranks import is_first, local_rank, started_outside
from unembed.launch import console, flags
from unembed.launch.composing import check, plain, raise_all, raise_written, survey
from unembed.launch.ending import check_output, check_writable, ending
from unembed.launch.fine_tuning import fine_tuned, with_origin
from unembed.launch.finished_run import on_run
from unembed.launch.grids import grid_of, spread_out
from unembed.launch.inherited import handed_on, inherited, is_parallel
from unembed.launch.locations import make_absolute
from unembed.launch.named_runs import find_run
from unembed.launch.overrides import Given, one_line, refuse_secrets, root_of, search_path_of, without
from unembed.launch.resuming import WHOLE, is_finished, keep, resumed
from unembed.launch.sources import CONFIGS, SEARCH_PATH, application
from unembed.launch.trainer import device_errors
from unembed.runs import claims, layout

_SWEEPS, _TIME = Path("runs/multirun"), "%Y-%m-%d_%H-%M-%S"  # as in configs/hydra/default.yaml


def check_devices(config: DictConfig) -> None:
    """Raise InputError if this machine lacks the devices that ``config.trainer`` asks for."""
    raise_all(list(device_errors(plain(config.trainer))))


def main(task: Callable[[DictConfig], None], config_name: str) -> None:
    """Run ``task`` on the configuration of the command line, or several times with ``--multirun``.

    All of Hydra's flags work. Errors in overrides and values end the process with code 2 before a run directory is
    created. The configuration passed to ``task`` has no interpolations.
    """
    with ending(), claims.Tidied() as made:
        refuse_secrets(sys.argv[1:])
        arguments = flags.of_training()
        name = arguments.config_name or config_name
        if arguments.help:
            print(flags.usage(task, config_name))
        elif arguments.of_hydra:
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)(task)()
        elif arguments.cfg is not None:
            _show(name, arguments)
        elif (configs := inherited()) is not None:
            _run_as_rank(task, configs)
        else:
            _train(task, name, arguments, made)


def _show(config_name: str, arguments: argparse.Namespace) -> None:
    """Print the configuration that Hydra composes; its values may be invalid."""
    from unembed.launch.checking import secret_errors

    overrides = [*arguments.overrides, *search_path_of(arguments.config_dir)]
    configs, errors = survey(config_name, overrides, multirun=arguments.multirun)
    raise_all([*errors, *(message for config in configs for message in secret_errors(config))])
    with application() as composer, contextlib.redirect_stdout(io.StringIO()) as shown:
        composer.show_cfg(config_name, Given(overrides).lines, arguments.cfg, arguments.package, arguments.resolve)
    print(redacted(shown.getvalue()), end="")


def _train(
    task: Callable[[DictConfig], None], config_name: str, arguments: argparse.Namespace, made: claims.Tidied
) -> None:
    held = console.hold()
    several = arguments.multirun
    overrides = [*arguments.overrides, *search_path_of(arguments.config_dir)]
    if several:
        overrides = spread_out(config_name, overrides)
    elif local_rank() == 0 and (grid := grid_of(config_name, overrides)):
        print(f"one cell of a grid over {', '.join(grid)}: -m runs all", flush=True)
    composed = with_origin(overrides)
    configs, errors = survey(config_name, composed, multirun=several)
    again = None if several or not configs else resumed(configs[0], overrides)
    if again is not None:  # compared with the run's settings, which may have other keys
        configs, errors = [again], [error for error in errors if error.startswith(tuple(f"{g}=" for g in WHOLE))]
    raise_written(errors, configs)
    raise_all([message for config in configs for message in _declared(config)])
    if again is None and not several:
        if configs[0].get("init_from") is not None:
            find_run(str(configs[0].init_from), "init_from")
        configs = [fine_tuned(configs[0], overrides)]
    lines = Given(composed).lines
    if several:
        _own_sweep(overrides, configs, made)
        lines.append("hydra.mode=MULTIRUN")
    else:
        with ending(settings=configs[0]):
            directory = _own(str(configs[0].run_dir), "run_dir", overrides, configs[0], made)
        if local_rank() == 0:  # the following imports take seconds
            print(printable(f"run directory: {directory}"), flush=True)
            _say_if_anew(configs[0])
        if again is not None:  # Hydra only opens the log; the overrides are already applied
            lines = [line for line in lines if root_of(line) == "hydra"] + [f"ckpt_path={quoted(again.ckpt_path)}"]
        lines.append(f"run_dir={quoted(directory)}")  # Hydra composes again and would read the clock again
    raise_all([message for config in configs for message in check(config)])
    if not several:  # the jobs of a multirun may run on other machines
        check_devices(configs[0])
    for config in configs:
        if local_rank() == 0:
            with ending(settings=config):
                check_writable(Path(config.run_dir))
        if (Path(config.run_dir) / layout.CONFIG).is_file():  # check before Hydra opens its log
            layout.check_links(Path(config.run_dir))

    chosen = {"--config-name": arguments.config_name, "--config-dir": arguments.config_dir}
    same = [f"{flag}={value}" for flag, value in chosen.items() if value is not None]

    job = _Job(task, tuple(overrides), tuple(arguments.overrides), tuple(same), several, again, held, made)
    with application() as composer, _whole_keys() if several else contextlib.nullcontext():
        (composer.multirun if several else composer.run)(config_name, job, lines)


def _say_if_anew(config: DictConfig) -> None:
    """Say that ``ckpt_path=last`` finds no checkpoint, which is no mistake: a cluster starts every job with it."""
    run = Path(str(config.run_dir))
    if config.ckpt_path == "last" and not any((run / name).is_file() for name in (layout.CHECKPOINT, layout.PREVIOUS)):
        what, missing = ("checkpoint", layout.CHECKPOINT) if (run / layout.CONFIG).is_file() else ("run", layout.CONFIG)
        said = f"run_dir={run}: there is no {what} to resume ({missing} is missing), so it starts from the beginning"
        print(printable(said), flush=True)


@contextlib.contextmanager
def _whole_keys() -> Iterator[None]:
    """Explain a key that only a swept option has: Hydra also composes a multirun without what is swept."""
    try:
        yield
    except ConfigCompositionException as error:
        hint = "; in a multirun, write a key that only swept options have as <key>='choice(<value>)'"
        raise InputError(one_line(error) + hint * str(error).startswith("Could not override")) from error


def _declared(config: DictConfig) -> list[str]:
    """Mistakes in the cell that a run declares, which the access table would refuse once it has ended."""
    node = config.get("access")
    if node is None:
        return []
    from unembed.reports.access.declared import declaration_errors  # pydantic

    return declaration_errors(plain(node) if isinstance(node, DictConfig) else node)


@dataclasses.dataclass(frozen=True)
class _Job:
    """What Hydra's launcher runs for each configuration; one such as joblib or submitit does so in another process.

    Attributes:
        task: The function of the script.
        overrides: Of the command line, with the search path and the values of a grid.
        typed: The overrides that were typed.
        same: The flags that a proposed command repeats.
        several: Whether it is a multirun.
        again: The configuration of a resumed run.
        held: Records that this process has held back; None in another process, which holds its own.
        made: The directories of this process; None in another.
    """

    task: Callable[[DictConfig], None]
    overrides: tuple[str, ...]
    typed: tuple[str, ...]
    same: tuple[str, ...]
    several: bool
    again: DictConfig | None
    held: console.Held | None
    made: claims.Tidied | None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {**self.__dict__, "held": None, "made": None}

    def __call__(self, config: DictConfig) -> None:
        """Run the task on a configuration of Hydra."""
        held = console.hold() if self.held is None else self.held
        typed = list(HydraConfig.get().overrides.task) if self.several else self.typed
        OmegaConf.resolve(config)
        if self.several:
            with ending():
                searched = [line for line in self.overrides if line.startswith(SEARCH_PATH)]
                given = [*typed, *searched]
                again = resumed(config, given)
                if again is not None and is_finished(again):
                    if is_first():
                        keep(Path(again.run_dir), again)
                    print(printable(f"finished before: {again.run_dir}"), flush=True)
                    return
                config = again or fine_tuned(config, self.overrides, given)
            if self.made is not None:
                self.made.adopt(Path(config.run_dir))
            if is_first():
                _say_if_anew(config)
        else:
            config = self.again or fine_tuned(config, self.overrides)
        make_absolute(config)
        from unembed.runs.trust import trusting

        console.quieten(held)
        command = [*self.same, *without(typed, "run_dir", "ckpt_path"), f"run_dir={quoted(config.run_dir)}"]
        with (
            ending(config, training=True, command=command),
            trusting(config.trust),
            handed_on(config),
            _held(config.run_dir, "run_dir"),
        ):
            self.task(config)


def main_on_run(
    task: Callable[[DictConfig, DictConfig], None],
    config_name: str,
    switches: Mapping[str, str] | None = None,
    first: Callable[[DictConfig], None] | None = None,
) -> None:
    """Run ``task(settings, config)`` on a finished run.

    Overrides of keys in configs/<config_name>.yaml become the settings; all others change the run's config.yaml.
    ``switches`` are flags of the script that stand for an override; ``first`` as for ``on_run``.
    """
    with ending(), claims.Tidied(keeps_log=False) as made:  # evaluate.py compare= may write nothing
        refuse_secrets(sys.argv[1:])
        arguments = flags.on_run(switches or {})
        if arguments.help:
            print(flags.usage(task, config_name))
        elif (configs := inherited()) is not None:
            _run_as_rank(task, configs)
        else:
            _work_on_run(task, config_name, arguments, made, first)


def _work_on_run(
    task: Callable[[DictConfig, DictConfig], None],
    config_name: str,
    arguments: argparse.Namespace,
    made: claims.Tidied,
    first: Callable[[DictConfig], None] | None,
) -> None:
    held = console.hold()
    overrides = list(arguments.overrides)
    if arguments.config_dir is not None:
        overrides.append(f"config_dir={quoted(Path(arguments.config_dir).absolute())}")
    settings, config = on_run(config_name, overrides, first)
    if local_rank() == 0 and not any(root_of(line) == "run" for line in overrides):
        print(printable(f"attacker: {settings.run_as}, shipped with unembed; run=<dir> takes another"), flush=True)
    with ending(settings=settings):
        if "output_dir" in settings:
            settings.output_dir = _own(settings.output_dir, "output_dir", overrides, config, made)
        if local_rank() == 0 and "output_dir" in settings:
            check_writable(Path(settings.output_dir))
        elif local_rank() == 0 and "output" in settings:
            check_output(Path(settings.output))
    from unembed.runs.trust import trusting

    console.show_and_log(Path(settings.output_dir) if "output_dir" in settings else None)
    console.quieten(held)
    places = [key for key in ("output_dir", "output") if key in settings]
    command = [*without(overrides, *places), *(f"{key}={quoted(settings[key])}" for key in places)]
    with (
        ending(config, settings=settings, command=command),
        trusting(settings.trust),
        handed_on(settings, config),
        _held(settings.get("output_dir"), "output_dir"),
    ):
        task(settings, config)


def _run_as_rank(task: Callable[..., None], configs: Sequence[DictConfig]) -> None:
    """Run ``task`` as one of the ranks that Lightning started; rank 0 writes the log."""
    from unembed.runs.trust import trusting

    held = console.hold()
    console.show_and_log(None)
    for config in configs:
        check(config)  # imports libraries, some of which change the terminal's logging
    console.quieten(held)
    with ending(configs[-1]), trusting(configs[0].trust):
        task(*configs)


def _own(directory: str, key: str, overrides: Sequence[str], config: DictConfig, made: claims.Tidied) -> str:
    """The directory that this process writes; one named after the clock is claimed before another process takes it.

    Raises:
        InputError: Several processes were started by torchrun or srun, and each would claim its own.
    """
    if "RUN_ID" in os.environ or any(root_of(line) == key for line in overrides):
        made.expect(Path(directory))
        return directory
    if started_outside() and is_parallel(config.get("trainer") or {}):
        raise InputError(f"{key}: torchrun and srun start processes that must agree on it: set RUN_ID, or {key}=<dir>")
    return str(made.claim(Path(directory)))


def _own_sweep(overrides: Sequence[str], configs: Sequence[DictConfig], made: claims.Tidied) -> None:
    """Claim the directory of a multirun; its jobs use numbered directories with that name."""
    for directory in {Path(str(config.run_dir)).parent for config in configs}:
        made.expect(directory)
    if "RUN_ID" not in os.environ and not any(line.startswith("hydra.sweep.") for line in overrides):
        os.environ["RUN_ID"] = made.claim(_SWEEPS / time.strftime(_TIME)).name


@contextlib.contextmanager
def _held(directory: str | None, key: str) -> Iterator[None]:
    """Lock ``directory`` if this process writes it."""
    with claims.held(Path(directory), key) if directory is not None and is_first() else contextlib.nullcontext():
        yield
