"""The checkpoints of a run: which one is resumed from, whether it is whole, and what it holds.

path = resume_from(run, "last")            # checkpoints/last.ckpt; where it is damaged, the one before it
load_checkpoint(path)["state_dict"]        # tensors and plain values alone
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import tensor_files
from commands import command
from errors import InputError
from run_directory.layout import CHECKPOINT, PREVIOUS

log = logging.getLogger("runs")

LIGHTNING_VERSION = "pytorch-lightning_version"  # in a checkpoint


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
        raise InputError(f"ckpt_path={ckpt_path}: no such file; ckpt_path=last resumes from {directory / CHECKPOINT}")
    return _checked(Path(ckpt_path))


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
            f"to its first one; unless it is under way, resume it: {resuming(directory)}"
        )
    try:
        return _checked(checkpoint)
    except InputError as error:
        if not (directory / PREVIOUS).is_file():
            raise
        raise InputError(f"{error}; resume from the one before it: {resuming(directory)}") from error


def resuming(directory: Path) -> str:
    """The command that resumes a run, for messages."""
    return command("train", f"run_dir={directory}", "ckpt_path=last")


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


def _checked(checkpoint: Path) -> Path:
    # Whoever reads it: the strategies of Lightning that cut a model into shards have readers of their own.
    tensor_files.check(checkpoint, "a checkpoint")
    return checkpoint


def _last_sound(directory: Path) -> Path | None:
    last, previous = directory / CHECKPOINT, directory / PREVIOUS
    found = [path for path in (last, previous) if path.is_file()]
    if not found:
        return None
    for path in found:
        if _is_sound(path):
            if path == previous:
                wrong = "damaged" if last.is_file() else "missing"
                log.warning("%s is %s: training resumes from %s", last, wrong, path)
                with contextlib.suppress(FileNotFoundError):
                    # Or the next one to be written would push it over this one.
                    last.replace(last.with_name(f"{last.name}.damaged"))
            return path
    raise InputError(f"{found[0]}: not a checkpoint, or a damaged one; delete it to train again from the start")


def _is_sound(checkpoint: Path) -> bool:
    """Whether a checkpoint is whole, every byte of it."""
    damaged = (EOFError, OSError, ValueError, RuntimeError, LookupError, zipfile.BadZipFile, zlib.error, struct.error)
    try:
        with zipfile.ZipFile(_checked(checkpoint)) as archive:
            return archive.testzip() is None
    except (InputError, *damaged):
        return False
