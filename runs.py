"""What a run directory is, and how an attack is rebuilt from it.

    config.yaml        the resolved config, plain values; written once, resuming leaves it as it is
    resumed.json       of a run that was resumed with another budget: when, and which values changed
    data.json          the files that texts were read from: path, size, SHA-256
    checkpoints/       last.ckpt; while it is trained, previous.ckpt too
    artifacts/         tokenizer, the decoder's architecture, neighbour index: what the model needs besides its weights
    predictions.jsonl  one object an example
    metrics.json       flat; baseline.json has the same keys for the nearest neighbour
    analyses.json      what the training text has to do with the result
    finished_batches/  of a test that goes on, or was killed; gone once the figures stand
    history.jsonl      the training curve
    report.html, log
    .lock              of the process that writes there (claims.py)

Everything is written to a temporary name in the same directory and renamed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shlex
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

import limits
import tensor_files
from errors import InputError, did_you_mean
from run_directory.renamed import with_current_names

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("runs")

CONFIG, METRICS, BASELINE = "config.yaml", "metrics.json", "baseline.json"
ANALYSES = "analyses.json"
CORRECTIONS, CORRECTION_ROUNDS = "corrections.json", "corrections.jsonl"
PREDICTIONS, HISTORY, RECORD = "predictions.jsonl", "history.jsonl", "record.json"
ARTIFACTS, CHECKPOINT = "artifacts", "checkpoints/last.ckpt"
PREVIOUS = "checkpoints/previous.ckpt"
FINISHED = "finished_batches"
LIGHTNING_VERSION = "pytorch-lightning_version"  # in a checkpoint
DATA, RESUMED = "data.json", "resumed.json"
_LARGEST_CONFIG = 1_000_000  # characters; a run's own has some thousand
_DEEPEST_CONFIG = 50
_MOST_EVENTS = 20_000  # of YAML; a run's own has some hundred, and a megabyte of small ones takes 20 seconds


def write(path: Path, content: str | Callable[[BinaryIO], object], previous: Path | None = None) -> None:
    """Write a file so that a reader sees the old content or the new one, never half of it.

    Args:
        path: Final name; its directory is made where it is missing.
        content: Text, or a function that writes to the open binary file.
        previous: Where to keep what stood at ``path``, beside it; a kill may leave that alone, and nothing at ``path``.

    Raises:
        OSError: The disk is full, or the file cannot be made; it names the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            if isinstance(content, str):
                file.write(content.encode())
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):  # a full disk does not say which
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON."""
    write(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read what write_json wrote.

    Raises:
        InputError: It holds no JSON object, or one that is too large.
        FileNotFoundError: There is no such file.
    """
    try:
        content = json.loads(limits.text(path, limits.LARGEST_JSON), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object of keys and values, found {type(content).__name__}")
    return content


def _finite(written: str) -> float:
    """A number of a JSON file.

    Raises:
        ValueError: It is not finite: a run writes none that is not, and what is read here is written elsewhere.
    """
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(f"{written:.20} is no finite number")
    return number


def training(directory: Path) -> dict[str, Any] | None:
    """How a run was trained, from its record.json: steps, planned steps; None where nothing tells."""
    record = directory / RECORD
    found = read_json(record).get("training") if record.is_file() else None
    return found if isinstance(found, dict) else None


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""

    def lines(file: BinaryIO) -> None:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    write(path, lines)


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.yaml``."""
    write(directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def note_resumption(directory: Path, changed: Mapping[str, tuple[Any, Any]]) -> None:
    """Note in ``resumed.json`` that training resumes with other values: of each key, that before and the new one."""
    values = {key: {"before": before, "now": now} for key, (before, now) in changed.items()}
    session = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "changed": values}
    write_json(directory / RESUMED, {"sessions": [*_sessions(directory), session]})


def changed_values(directory: Path) -> dict[str, Any]:
    """The values with which a run was resumed, where they are not those of its config.yaml, by their keys.

    Raises:
        InputError: ``resumed.json`` is not what ``note_resumption`` writes.
    """
    values: dict[str, Any] = {}
    for session in _sessions(directory):
        changed = session.get("changed") if isinstance(session, dict) else None
        for key, value in changed.items() if isinstance(changed, dict) else [("", None)]:
            if not isinstance(value, dict) or "now" not in value or not all(key.split(".")):
                raise InputError(f"{directory / RESUMED}: not the changes of a resumed run")
            values[key] = value["now"]
    return values


def with_changes(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """A run's configuration, given as its config.yaml has it, with the values with which the run was resumed."""
    for key, value in changed_values(directory).items():
        *parents, name = key.split(".")
        node: Any = config
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise InputError(f"{directory / RESUMED}: {key} is no key of the run's {CONFIG}")
        node[name] = value
    return config


def _sessions(directory: Path) -> list[Any]:
    path = directory / RESUMED
    if not path.is_file():
        return []
    sessions = read_json(path).get("sessions")
    if not isinstance(sessions, list):
        raise InputError(f"{path}: not the changes of a resumed run")
    return sessions


def start(directory: Path, *, resuming: bool, key: str = "run_dir") -> None:
    """Make the directory of a new run, or of results: ``key`` is what names it on the command line.

    Raises:
        InputError: It already holds a run, and this is not a resumption: nothing is overwritten.
    """
    if (directory / CONFIG).exists() and not resuming:
        what = "a run; add ckpt_path=last to go on with it, or" if key == "run_dir" else "a run or finished results;"
        raise InputError(f"{key}={directory}: already holds {what} choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for part in directory.rglob(".*.part"):  # of a session that was killed while writing
        if part.is_file():
            part.unlink()


def resume_from(directory: Path, ckpt_path: str | None) -> Path | None:
    """The checkpoint that ``ckpt_path`` (null, ``last`` or a path) names; None where training starts afresh.

    ``last`` in a directory without a checkpoint starts afresh: the run was killed before its first one. Where the last
    one is damaged, the one before it is taken, with a warning.

    Raises:
        InputError: A path that does not exist, or a damaged file.
    """
    if ckpt_path is None:
        return None
    if ckpt_path == "last":
        return _last_sound(directory)
    if not Path(ckpt_path).is_file():
        raise InputError(f"ckpt_path={ckpt_path}: no such file; ckpt_path=last goes on from {directory / CHECKPOINT}")
    return _whole(Path(ckpt_path))


def read_config(directory: Path) -> DictConfig:
    """The config of a run, plain values.

    Raises:
        InputError: There is none, or it is no YAML mapping of plain values.
    """
    from omegaconf import DictConfig, OmegaConf

    path = directory / CONFIG
    try:
        values = parse_config(limits.text(path, limits.LARGEST_CONFIG))
    except FileNotFoundError as error:
        raise InputError(f"run={directory}: not a run directory ({CONFIG} is missing)") from error
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: holds no mapping")
    values = with_changes(with_current_names(values), directory)
    _check_plain(values, "", path)
    config = OmegaConf.create(values)
    assert isinstance(config, DictConfig)
    return config


def parse_config(text: str) -> Any:
    """What stands in a configuration, unless that could take for ever: references unfold, nesting is quadratic.

    Raises:
        yaml.YAMLError: It is no YAML.
        ValueError: It is larger, deeper or of more parts than any run's, or has references.
    """
    if len(text) > _LARGEST_CONFIG:
        raise ValueError(f"it is larger than {_LARGEST_CONFIG:,} characters")
    depth = 0
    for number, event in enumerate(yaml.parse(text, yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it holds references (*name), and a run writes none")
        if number > _MOST_EVENTS:
            raise ValueError(f"it holds more than {_MOST_EVENTS:,} keys and values")
        if depth > _DEEPEST_CONFIG:
            raise ValueError(f"it is nested more than {_DEEPEST_CONFIG} deep")
    return yaml.safe_load(text)


def _check_plain(value: Any, key: str, path: Path) -> None:
    """Whether ``value`` is what write_config writes: no interpolation, which could read the environment.

    Raises:
        InputError: It is something else; names the key and the value.
    """
    if isinstance(value, dict):
        for name, child in value.items():
            if not isinstance(name, str | int):
                raise InputError(f"{path}: {key or 'the root'} has the key {name!r}, neither text nor number")
            _check_plain(child, f"{key}.{name}" if key else str(name), path)
    elif isinstance(value, list):
        for number, child in enumerate(value):
            _check_plain(child, f"{key}[{number}]", path)
    elif isinstance(value, str) and "${" in value:
        raise InputError(f"{path}: {key}={value}: a run's configuration holds plain values, nothing to be looked up")
    elif value is not None and not isinstance(value, str | int | float):
        raise InputError(f"{path}: {key}={value}: neither text nor number")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU: tensors and plain values, no object of any class, and no path.

    Of what callbacks have saved only numbers are left: ModelCheckpoint would remove the files that it names.

    Raises:
        InputError: It is none, a damaged one, larger in memory than in the file, or holds something else, which is not
            made.
    """
    content = tensor_files.read(path, "a checkpoint")
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise InputError(f"{path}: not a checkpoint: it has no weights (state_dict)")
    for name, tensor in content["state_dict"].items():
        if not isinstance(name, str) or not tensor_files.is_dense(tensor):
            raise InputError(f"{path}: not a checkpoint: its weights {name!r} are no tensor of real numbers")
    tensor_files.check_sizes(path, content)
    for name, tensor in content["state_dict"].items():
        if bool(tensor.isnan().any()):
            raise InputError(
                f"{path}: {name} holds NaN: the training went astray; train again with a lower learning rate, or with "
                "trainer.precision=32-true"
            )
    version = content.get(LIGHTNING_VERSION)
    if version is not None and not (isinstance(version, str) and re.fullmatch(r"[2-9]\.\d{1,4}[.\w+]{,40}", version)):
        raise InputError(  # Lightning would rewrite those of before, and paths with them
            f"{path}: {LIGHTNING_VERSION}={version!r:.50}: not a checkpoint of Lightning 2 or later; train again"
        )
    content["callbacks"] = numbers_of_callbacks(content.get("callbacks"))
    return content


def numbers_of_callbacks(states: Any) -> dict[str, dict[str, Any]]:
    """Of the states that callbacks have saved in a checkpoint, those of numbers alone.

    The rest is left out whole, since a callback takes its state as a whole: ModelCheckpoint's holds paths, whose files
    it would remove at the next save, and so begins anew.
    """
    found = states.items() if isinstance(states, dict) else ()
    return {
        name: state
        for name, state in found
        if isinstance(name, str) and isinstance(state, dict) and all(map(_is_number, state.values()))
    }


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (tensor_files.is_dense(value) and value.numel() == 1)


def check_links(directory: Path) -> None:
    """Whether what is read from, copied from or written into a run lies in it: a stranger's may hold links.

    Raises:
        InputError: Something in the run is a link that leads out of it, or no file, which could be waited for without
            end. The directory of Weights & Biases is left out: it has such links, and is not read.
    """
    inside = directory.resolve()
    for path in directory.rglob("*"):
        if path.relative_to(directory).parts[0] == "wandb" and not (path.is_symlink() and path.parent == directory):
            continue
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):  # resolve() fails in a circle
            raise InputError(f"{path}: a link that leads out of the run, to {path.readlink()}; copy what it leads to")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{path}: neither a file nor a directory, such as a pipe or a device; a run holds none")


def missing_directory(directory: Path) -> str:
    """Which part of a path is no directory, and the nearest name beside it, for a message."""
    missing = next(path for path in (*reversed(directory.parents), directory) if not path.is_dir())
    beside = [path.name for path in missing.parent.iterdir() if path.is_dir()]
    return f"no directory {missing}, {did_you_mean(missing.name, beside) if beside else 'no directories stand there'}"


def _resuming(directory: Path) -> str:
    """The command that resumes a run."""
    return f"python train.py {shlex.quote(f'run_dir={directory}')} ckpt_path=last"


def finished_checkpoint(directory: Path, ckpt_path: str | None = None, key: str = "run") -> Path:
    """The checkpoint of a trained run: ``checkpoints/last.ckpt``, or another file that ``ckpt_path`` names.

    ``key`` is what the run is called in messages.

    Raises:
        InputError: There is none, or it is damaged.
    """
    if ckpt_path not in (None, "last"):
        named = resume_from(directory, ckpt_path)
        assert named is not None
        return named
    checkpoint = directory / CHECKPOINT
    if not checkpoint.is_file():
        raise InputError(
            f"{key}={directory}: no finished checkpoint ({CHECKPOINT} is missing): training has not come "
            f"to its first one; unless it is under way, resume it: {_resuming(directory)}"
        )
    try:
        return _whole(checkpoint)
    except InputError as error:
        if not (directory / PREVIOUS).is_file():
            raise
        raise InputError(f"{error}; the one before it stands there: go on with {_resuming(directory)}") from error


def _whole(checkpoint: Path) -> Path:
    # Whoever reads it: the strategies of Lightning that cut a model into shards have readers of their own.
    tensor_files.check(checkpoint, "a checkpoint")
    return checkpoint


def _last_sound(directory: Path) -> Path | None:
    last, previous = directory / CHECKPOINT, directory / PREVIOUS
    found = [path for path in (last, previous) if path.is_file()]
    if not found:
        return None
    for path in found:
        if _sound(path):
            if path == previous:
                wrong = "damaged" if last.is_file() else "missing"
                log.warning("%s is %s: training goes on from %s", last, wrong, path)
                with contextlib.suppress(FileNotFoundError):
                    # Or the next one to be written would push it over this one.
                    last.replace(last.with_name(f"{last.name}.damaged"))
            return path
    raise InputError(f"{found[0]}: not a checkpoint, or a damaged one; delete it to train again from the start")


def _sound(checkpoint: Path) -> bool:
    """Whether a checkpoint is whole, every byte of it."""
    try:
        _whole(checkpoint)
        with zipfile.ZipFile(checkpoint) as archive:
            return archive.testzip() is None
    except (
        InputError,
        zipfile.BadZipFile,
        EOFError,
        OSError,
        ValueError,
        RuntimeError,
        LookupError,
        zlib.error,
        struct.error,
    ):
        return False
