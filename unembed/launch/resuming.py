"""A resumed run keeps its settings: overrides given with ``ckpt_path=last`` are compared with its config.yaml.

    python train.py run_dir=runs/x ckpt_path=last                             # unchanged
    python train.py run_dir=runs/x ckpt_path=last trainer.max_steps=4000      # with another budget
    python train.py run_dir=runs/x ckpt_path=last attack.backbone.layers=6    # refused: the run has 2

Settings that are not typed keep the run's values, even if today's defaults differ. Choosing a group counts as a change
only if the option differs from the run's, so repeating the whole old command changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from unembed.core import limits
from unembed.core.commands import shown_value
from unembed.core.errors import InputError
from unembed.launch.composing import plain, raise_all, survey, survey_amended, tree
from unembed.launch.finished_run import stored_config
from unembed.launch.locations import is_data_file, make_absolute, outside
from unembed.launch.overrides import Given, key_of, one_line, root_of
from unembed.runs import layout
from unembed.runs.config_file import read_config, write_config
from unembed.runs.resumption import note_resumption

log = logging.getLogger("train")

WHOLE = ("experiment", "debug")  # groups that set values in other groups and are not stored themselves
DESCRIPTION = "access"  # what the access table says of a run: nothing that the run does depends on it
_OWN = ("run_dir", "ckpt_path", "trust")
_UNSET = "(unset)"

# Settings that may change when a run is resumed: its budget, and whatever changes neither weights nor metrics.
_BUDGETS = {"trainer.max_steps", "trainer.max_epochs", "trainer.min_steps", "trainer.min_epochs", "trainer.max_time",
            "embedder.max_queries"}  # fmt: skip
_PROCESSES = ("trainer.devices", "trainer.num_nodes", "trainer.accumulate_grad_batches")
# Settings that change neither weights nor metrics: paths, speed, display, descriptions.
_FREE = {"run_dir", "ckpt_path", "cache_dir", "trust", "objective", "attack.gradient_checkpointing"} | _BUDGETS
_FREE |= {f"trainer.{name}" for name in (
    "accelerator", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "log_every_n_steps",
    "num_sanity_val_steps", "check_val_every_n_epoch", "val_check_interval", "limit_val_batches", "profiler",
    "detect_anomaly", "deterministic", "benchmark", "inference_mode", "default_root_dir",
)}  # fmt: skip
_FREE |= {f"embedder.{name}" for name in (
    "device", "batch_size", "concurrency", "timeout", "retries", "backoff", "price_per_million_tokens", "api_key_env",
)}  # fmt: skip
_FREE_NODES = ("logger", "trainer.strategy", "access")
_FREE_CHOICES = ("logger", "callbacks", "trainer")  # compared by their values instead of their names
_WATCHING = {
    "unembed.callbacks.pace.TerminalBar", "unembed.callbacks.pace.Pace", "unembed.callbacks.history.History",
    "unembed.callbacks.iterative_correction.IterativeCorrection", "lightning.pytorch.callbacks.ModelCheckpoint",
    "lightning.pytorch.callbacks.LearningRateMonitor", "lightning.pytorch.callbacks.RichProgressBar",
    "lightning.pytorch.callbacks.TQDMProgressBar", "lightning.pytorch.callbacks.DeviceStatsMonitor",
}  # fmt: skip
_NOTED = {*_BUDGETS, *_PROCESSES}  # recorded in resumed.json, since they describe the training


def resumed(config: DictConfig, overrides: Sequence[str]) -> DictConfig | None:
    """The configuration for resuming a run; None if the command starts a new run.

    Args:
        config: The composed command: names the directory, the checkpoint, and what is trusted.
        overrides: The command line.

    Raises:
        InputError: A value that affects the result differs from the run's (one line each); or the run's config names
            something untrusted that the command does not name; or it would write outside the run directory.
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
    amended, different = _amended(saved, given)
    make_absolute(saved)
    make_absolute(amended)
    amended.run_dir, amended.ckpt_path, amended.trust = str(directory), config.ckpt_path, config.trust
    noted = (directory / layout.DATA).is_file()
    trained = any((directory / name).exists() for name in (layout.CHECKPOINT, layout.PREVIOUS))
    different += [
        f"{key}: {shown_value(before)} -> {shown_value(now)}"
        for key, before, now in _differences(tree(saved), tree(amended))
        if not (_is_free(key, saved, amended, trained=trained) or (noted and is_data_file(key)))
    ]
    if different:
        listed = "\n".join(f"  {line}" for line in dict.fromkeys(different))
        raise InputError(
            f"run_dir={directory}: a resumed run keeps its settings, and these are others (the run's -> yours):\n"
            f"{listed}\nLeave them out, or choose a new run_dir for them."
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
    written = (layout.METRICS, layout.PREDICTIONS, layout.REPORT)  # the report is written last
    if config.ckpt_path != "last" or not all((directory / name).is_file() for name in written):
        return False
    differences = _differences(tree(read_config(directory)), tree(config))
    return all(root_of(key) in (*_OWN, "cache_dir", "objective", DESCRIPTION) for key, _, _ in differences)


def keep(directory: Path, config: DictConfig) -> None:
    """Write the config.yaml of a new run; in that of a resumed run, the description of its cell alone is replaced."""
    path = directory / layout.CONFIG
    if not path.is_file():
        write_config(directory, plain(config))
        return
    written, described = yaml.safe_load(limits.text(path, limits.LARGEST_CONFIG)), plain(config).get(DESCRIPTION)
    if written.get(DESCRIPTION) != described:
        write_config(directory, {**written, DESCRIPTION: described})


def note_changes(directory: Path, config: DictConfig) -> None:
    """Record in resumed.json with which other budget, number of processes or data path a run is resumed."""
    differences = _differences(tree(read_config(directory)), plain(config))
    noted = {
        key: (before, now) for key, before, now in differences if now != _UNSET and (key in _NOTED or is_data_file(key))
    }
    for key, (before, now) in noted.items():
        log.info("resumed with %s: %s -> %s", key, shown_value(before), shown_value(now))
    if noted:
        (directory / layout.REPORT).unlink(missing_ok=True)  # it is of the run before these changes
        note_resumption(directory, noted)


def _amended(saved: DictConfig, given: Given) -> tuple[DictConfig, list[str]]:
    """The run's configuration with the overrides, and a line for each group whose option differs."""
    raise_all(given.errors)
    groups = given.groups
    values = [o for o in given.values if root_of(o.key_or_group) not in ("hydra", *_OWN)]
    chosen = {o.key_or_group: o.value() for o in groups if o.key_or_group in saved.choices and o.package is None}
    chosen |= {o.key_or_group[8:]: o.value() for o in values if o.key_or_group.startswith("choices.")}
    leaves, found = _set_by_groups(saved, given, chosen)
    chosen = found | chosen
    other = {group: name for group, name in chosen.items() if saved.choices.get(group) != name}
    left_out = other.keys() - set(_FREE_CHOICES)
    different = [f"{group}: {saved.choices.get(group)} -> {name}" for group, name in other.items() if group in left_out]
    amended = OmegaConf.create(tree(saved))
    for key, value in leaves.items():
        if root_of(key) not in left_out | {"choices", *_OWN} and not _is_open(value):
            OmegaConf.update(amended, key, value, force_add=True)
    for group in other.keys() - left_out:
        amended.choices[group] = other[group]
    typed = [*given.search, *([f"logger={other['logger']}"] if "logger" in other else [])]
    typed += [str(o.input_line) for o in groups if "/" in o.key_or_group and o.package is None]
    typed += [_restated(o, amended) for o in values if root_of(o.key_or_group) not in left_out | {"choices"}]
    amended, errors = survey_amended(amended, [line for line in typed if line], ("cache_dir",))
    raise_all(errors)
    try:
        OmegaConf.resolve(amended)
    except OmegaConfBaseException as error:
        raise InputError(one_line(error)) from error
    return amended, different


def _set_by_groups(saved: DictConfig, given: Given, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values set by experiments and by other callbacks or trainers, and the options that experiments choose."""
    whole = {o.key_or_group for o in given.groups if o.key_or_group in WHOLE and o.value() is not None}
    before = {
        group: saved.choices.get(group)
        for group in ("callbacks", "trainer")
        if group in chosen and chosen[group] != saved.choices.get(group)
    }
    if not whole and not before:
        return {}, {}
    now = _composed(given.lines)
    without_experiment = [line for line in given.lines if key_of(line) not in whole]
    plainly = _composed(without_experiment).get("choices", {})
    found = {group: name for group, name in now.get("choices", {}).items() if plainly.get(group) != name}
    before = found | before
    kept = [line for line in without_experiment if key_of(line) not in before]
    old = _composed([*(f"{group}={name}" for group, name in before.items()), *kept])
    return {key: value for key, _, value in _differences(old, now) if value != _UNSET}, found


def _composed(lines: Sequence[str]) -> dict[str, Any]:
    """The configuration of ``python train.py <lines>``, as far as it can be composed."""
    configs, _ = survey("train", lines)
    return tree(configs[0]) if configs else {}


def _restated(override: Override, config: DictConfig) -> str:
    """An override in a form that can be applied to a configuration that already contains it."""
    line, key = str(override.input_line), override.key_or_group
    present = OmegaConf.select(config, key, default=_UNSET) != _UNSET
    if override.is_delete():
        return line if present else ""
    return f"+{line}" if override.is_add() and not override.is_force_add() and present else line


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys with their old and new values, where these differ."""
    old, new = dict(_flat(before, "")), dict(_flat(now, ""))
    for key in dict.fromkeys([*old, *new]):
        if key.partition(".")[0] != "choices" and old.get(key, _UNSET) != new.get(key, _UNSET):
            yield key, old.get(key, _UNSET), new.get(key, _UNSET)


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from _flat(child, f"{key}.{name}" if key else str(name))
    elif not isinstance(value, Mapping):
        yield key, value


def _is_open(value: Any) -> bool:
    """Whether a value is an unresolved interpolation or missing."""
    return isinstance(value, str) and ("${" in value or value == "???")


def _is_free(key: str, saved: DictConfig, amended: DictConfig, *, trained: bool) -> bool:
    """Whether a value may change when a run is resumed; ``trained`` says whether it has a checkpoint."""
    if key in _FREE or key.startswith(tuple(f"{node}." for node in _FREE_NODES)) or key in _FREE_NODES:
        return True
    root, _, rest = key.partition(".")
    if root == "callbacks":
        nodes = [config.callbacks.get(rest.partition(".")[0]) for config in (saved, amended)]
        return all(node is None or node.get("_target_") in _WATCHING for node in nodes)
    if key in _PROCESSES:
        counts = [_batches_a_step(config) for config in (saved, amended)]
        return not trained or (counts[0] is not None and counts[0] == counts[1])
    return root in ("embedder", "scoring") and rest.rpartition(".")[2] == "device"


def _batches_a_step(config: DictConfig) -> int | None:
    """Batches per optimizer step over all processes; None if the number of processes depends on the machine."""
    product = 1
    for key in _PROCESSES:
        value = OmegaConf.select(config, key, default=1)
        if not isinstance(value, int) or value < 1:
            return None
        product *= value
    return product
