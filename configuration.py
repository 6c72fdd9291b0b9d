"""What stands between a command line and the scripts: composing, checking, help, and how a script ends.

    python train.py attack=geia embedder=simcse         # a configuration from configs/, checked before anything is built
    python evaluate.py run=runs/x datamodule=files      # a run's own configuration, amended

Exit codes: 0, 2 for something that the user gave (one line a mistake), 130 for Ctrl-C, 1 with a traceback for the rest.
Nothing here imports torch before the configuration has been composed, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import errno
import inspect
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from composition import CONFIGS, amend, compose, compose_jobs, options, plain
from errors import InputError, did_you_mean

__all__ = ["amend", "check", "compose", "main", "main_on_run", "plain"]


def check(config: DictConfig) -> list[str]:
    """One line for each value that the constructor it goes to would not take; see checking.py."""
    from checking import check as check_values  # pydantic, and with the constructors torch

    return check_values(config)


def main(task: Callable[[DictConfig], None], config_name: str) -> None:
    """Run ``task`` on the configuration of the command line, or several times with ``--multirun``.

    All of Hydra's flags work. Mistakes in overrides and values end the process with code 2 before a run directory is
    made; the configuration that ``task`` gets has no interpolations left.
    """
    arguments = get_args_parser().parse_args()
    if arguments.help:
        print(_help(task, config_name))
        return
    with _ending(None):
        # Flags that only show something are Hydra's; a configuration with mistakes can still be looked at with -c job.
        if not (arguments.hydra_help or arguments.shell_completion or arguments.info or arguments.experimental_rerun):
            if arguments.config_dir is not None:
                arguments.overrides.append(f"hydra.searchpath=[file://{Path(arguments.config_dir).absolute()}]")
            name = arguments.config_name or config_name
            configs = compose_jobs(name, arguments.overrides, multirun=arguments.multirun)
            if arguments.cfg is None:
                _raise([message for config in configs for message in check(config)])

    def job(config: DictConfig) -> None:
        OmegaConf.resolve(config)
        with _ending(config):
            # Lightning starts the other ranks with our command line: they must find this very job and directory.
            own = [line for line in HydraConfig.get().overrides.task if not line.startswith("run_dir=")]
            sys.argv = [sys.argv[0], *own, f"run_dir={_quoted(config.run_dir)}"]
            task(config)

    job.__module__ = task.__module__
    hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)(job)()


def main_on_run(task: Callable[[DictConfig, DictConfig], None], config_name: str) -> None:
    """Run ``task(settings, config)`` on a finished run.

    Overrides of keys in configs/<config_name>.yaml make the settings; the others amend the run's config.yaml.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    if arguments.help:
        print(_help(task, config_name))
        return
    with _ending(None):
        settings, config = settings_and_config(config_name, arguments.overrides)
    with _ending(config):
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        # As in train.py: the ranks that Lightning starts must write where this one does.
        sys.argv = [sys.argv[0], *arguments.overrides]
        sys.argv += [f"{key}={_quoted(settings[key])}" for key in ("output_dir", "output") if key in settings]
        task(settings, config)


def settings_and_config(config_name: str, overrides: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """The settings of evaluate.py or invert.py and the amended configuration of the run that they name, both checked.

    Raises:
        InputError: One line for each mistake in either.
    """
    known = [str(key) for key in OmegaConf.load(CONFIGS / f"{config_name}.yaml")]
    own = [line for line in overrides if _root(line) in known]
    others = [line for line in overrides if _root(line) not in known]
    settings = compose(config_name, own)
    _raise(check(settings))
    config = amend(_read_run(Path(settings.run).expanduser()), others)
    _raise(check(config))
    OmegaConf.resolve(config)
    return settings, config


def _read_run(run: Path) -> DictConfig:
    if not run.is_dir():
        beside = [path.name for path in run.parent.iterdir() if path.is_dir()] if run.parent.is_dir() else []
        hint = did_you_mean(run.name, beside) if beside else f"{run.parent} holds no directories"
        raise InputError(f"run={run}: no such directory, {hint}")
    path = run / "config.yaml"
    if not path.is_file():
        inner = sorted(str(found.parent) for found in run.glob("*/config.yaml"))
        hint = f", did you mean {inner[-1]}?" if inner else ": not the directory of a run"
        raise InputError(f"run={run}: holds no config.yaml{hint}")
    config = OmegaConf.load(path)
    if not isinstance(config, DictConfig) or "choices" not in config:
        raise InputError(f"{path}: not the configuration of a run")
    config.run_dir = str(run)  # where the run is now: it may have been moved
    return config


@contextmanager
def _ending(config: DictConfig | None) -> Iterator[None]:
    """Ends the process with one message where the user can do something about it; other errors pass through."""
    try:
        yield
    except KeyboardInterrupt:
        _end(_interrupted(config), 130)
    except SystemExit as error:
        # Lightning tidies up after Ctrl-C and then leaves with exit code 1, the interrupt as context.
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        _end(_interrupted(config), 130)
    except (InputError, InstantiationException, OSError, RuntimeError) as error:
        message = _message(error, config)
        if message is None:
            raise
        _end(message, 2)


def _message(error: BaseException, config: DictConfig | None) -> str | None:
    """What to tell the user, or None where only a traceback helps."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{cause.filename or _fullest(config)}: no space left on the disk; free some and run the same again"
        # Constraints between values, such as width and heads, are raised by constructors.
        if isinstance(cause, ValueError) and isinstance(error, InstantiationException):
            where = re.search(r"full_key: (\S+)", str(error))
            return f"{where.group(1)}: {cause}" if where else str(cause)
        cause = cause.__cause__ or cause.__context__
    return None


def _fullest(config: DictConfig | None) -> str:
    """A failed write does not tell its file: of the directories we write to, the one with the least space."""
    paths = [str(config[key]) for key in ("run_dir", "cache_dir") if config is not None and key in config]
    existing = [path for path in (*paths, ".") if Path(path).exists()]
    return min(existing, key=lambda path: shutil.disk_usage(path).free)


def _interrupted(config: DictConfig | None) -> str:
    if config is None:
        return "interrupted; nothing had begun"
    command = f"python {shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
    if "output_dir" in command or "run=" in shlex.split(command)[2:3]:
        return f"interrupted; the run is unchanged, start again with: {command}"
    kept = Path(config.run_dir) / "checkpoints"
    if any(kept.glob("*.ckpt")):
        return f"interrupted; {kept} is kept, go on with: {command} ckpt_path=last"
    return f"interrupted before the first checkpoint; vectors already embedded are kept, start again with: {command}"


def _end(message: str, code: int) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the ranks of one machine would all say the same
        print(message, file=sys.stderr)
    raise SystemExit(code)


def _raise(errors: Sequence[str]) -> None:
    if errors:
        raise InputError("\n".join(dict.fromkeys(errors)))


def _root(line: str) -> str:
    return re.split(r"[.=@\[]", line.lstrip("+~"), maxsplit=1)[0]


def _quoted(value: object) -> str:
    """A value as Hydra's override grammar reads it back."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _help(task: Callable[..., None], config_name: str) -> str:
    """The script's docstring, the groups with their options, and the keys of its own configuration."""
    lines = [inspect.getdoc(inspect.getmodule(task)) or "", "", "Groups (group=option):"]
    notes = _comments(CONFIGS / "train.yaml")
    for group, choices in options().items():
        default, note = notes.get(f"- {group}", ("", ""))
        marked = [f"{choice} (default)" if choice == default else choice for choice in choices]
        lines += [f"  {group:<12}{note}", f"  {'':<12}{', '.join(marked) or '(none yet)'}"]
    lines += ["", "Keys (key=value; a dot leads into a group: attack.decoding.beams=1):"]
    for name, (default, note) in _comments(CONFIGS / f"{config_name}.yaml").items():
        if not name.startswith("- "):
            lines += [f"  {name:<12}{note}", f"  {'':<12}default: {default}"]
    if config_name == "train":
        lines += ["", "Flags: -m sweeps over comma-separated values, -c job shows the configuration, --hydra-help the rest."]
    return "\n".join(lines)


def _comments(path: Path) -> dict[str, tuple[str, str]]:
    """Value and comment of each commented line of a root configuration, groups with a leading ``- ``."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\s*(- )?(?:optional )?(\w+): (.+?)\s+# (.+)$", line)
        if match:
            found[f"{match.group(1) or ''}{match.group(2)}"] = (match.group(3), match.group(4))
    return found
