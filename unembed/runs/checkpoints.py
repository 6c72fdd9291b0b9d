"""Find, check and load the checkpoints of a run.

path = resume_from(run, "last")            # checkpoints/last.ckpt, or the previous one if that is damaged
load_checkpoint(path)["state_dict"]        # tensors and plain values only
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unembed.core import tensor_files
from unembed.core.commands import command
from unembed.core.errors import InputError
from unembed.runs.layout import CHECKPOINT, PREVIOUS
from unembed.runs.quantized import restored

if TYPE_CHECKING:
    from lightning import Trainer

log = logging.getLogger("runs")

LIGHTNING_VERSION = "pytorch-lightning_version"  # in a checkpoint
SCALES = "scales"  # in the checkpoint of an exported attacker: of the matrices in eight bits


def resume_from(directory: Path, ckpt_path: str | None) -> Path | None:
    """The checkpoint that ``ckpt_path`` (null, ``last`` or a path) names; None to train from the start.

    ``last`` in a directory without checkpoint trains from the start: the run was killed before its first one. If the
    last checkpoint is damaged, the previous one is returned with a warning.

    Raises:
        InputError: The path does not exist, or the file is damaged.
    """
    if ckpt_path is None:
        return None
    if ckpt_path == "last":
        return _last_sound(directory)
    if not Path(ckpt_path).is_file():
        raise InputError(f"ckpt_path={ckpt_path}: no such file; ckpt_path=last resumes from {directory / CHECKPOINT}")
    return _checked(Path(ckpt_path))


def finished_checkpoint(directory: Path, ckpt_path: str | None = None, key: str = "run") -> Path:
    """The checkpoint of a trained run: ``checkpoints/last.ckpt``, or the file that ``ckpt_path`` names.

    ``key`` is the config key that names the run, for messages.

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
            f"{key}={directory}: no finished checkpoint ({CHECKPOINT} is missing): training has not "
            f"reached its first one; unless it still runs, resume it: {resuming(directory)}"
        )
    try:
        return _checked(checkpoint)
    except InputError as error:
        if not (directory / PREVIOUS).is_file():
            raise
        raise InputError(f"{error}; resume from the one before it: {resuming(directory)}") from error


def resuming(directory: Path) -> str:
    """The command that resumes a run, for messages."""
    return command("train", run_dir=directory, ckpt_path="last")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint on the CPU: tensors and plain values only.

    Callback states are reduced to numbers, since ModelCheckpoint would delete the files that its state names.

    Raises:
        InputError: It is not a checkpoint, is damaged, or holds other objects, which are never created.
    """
    content = tensor_files.load(path, "a checkpoint")
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise InputError(f"{path}: not a checkpoint: it has no weights (state_dict)")
    for name, tensor in content["state_dict"].items():
        if not isinstance(name, str) or not tensor_files.is_dense(tensor):
            raise InputError(f"{path}: not a checkpoint: its weights {name!r} are not a tensor of real numbers")
    if scales := content.pop(SCALES, None):
        content["state_dict"] = restored(content["state_dict"], _checked_scales(path, content["state_dict"], scales))
    for name, tensor in content["state_dict"].items():
        if bool(tensor.isnan().any()):
            raise InputError(
                f"{path}: {name} holds NaN: the training diverged; train again with a lower learning rate, or with "
                "trainer.precision=32-true"
            )
    version = content.get(LIGHTNING_VERSION)
    if version is not None and not (isinstance(version, str) and re.fullmatch(r"[2-9]\.\d{1,4}[.\w+]{,40}", version)):
        raise InputError(  # Lightning would migrate an older checkpoint and write to paths stored in it
            f"{path}: {LIGHTNING_VERSION}={version!r:.50}: not a checkpoint of Lightning 2 or later; train again"
        )
    content["callbacks"] = numbers_of_callbacks(content.get("callbacks"))
    return content


def _checked_scales(path: Path, weights: dict[str, Any], scales: Any) -> dict[str, Tensor]:
    """The scales, if there is a row of them for each matrix that they name."""
    if not isinstance(scales, dict):
        raise InputError(f"{path}: not a checkpoint: its {SCALES} are no mapping")
    for name, scale in scales.items():
        tensor = weights.get(name)
        if tensor is None or not tensor_files.is_dense(scale) or scale.shape != (*tensor.shape[:1], 1):
            raise InputError(f"{path}: not a checkpoint: its {SCALES} do not fit its weights {name!r}")
    return scales


def numbers_of_callbacks(states: Any) -> dict[str, dict[str, Any]]:
    """The callback states of a checkpoint that hold only numbers.

    Any other state is dropped as a whole. ModelCheckpoint thus starts anew: its state holds paths of files, which it
    would delete at the next save.
    """
    found = states.items() if isinstance(states, dict) else ()
    return {
        name: state
        for name, state in found
        if isinstance(name, str) and isinstance(state, dict) and all(map(_is_number, state.values()))
    }


@contextlib.contextmanager
def resuming_from(checkpoint: Path | None, trainer: Trainer) -> Iterator[None]:
    """Turn any error that Lightning raises while it restores a checkpoint's training state into one message.

    Raises:
        InputError: It cannot be restored: the optimizer is another, or the file was modified.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError) as error:
        # Lightning holds the checkpoint until it is restored; later errors are not the file's fault.
        if checkpoint is None or not trainer._checkpoint_connector._loaded_checkpoint:
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"{checkpoint}: cannot be resumed from: {type(error).__name__}: {reason}") from error


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (tensor_files.is_dense(value) and value.numel() == 1)


def _checked(checkpoint: Path) -> Path:
    # Always checked here: Lightning's FSDP strategy reads checkpoints with Python's unpickler, which runs code.
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
                    # Otherwise the next save would rename the damaged file over this one.
                    last.replace(last.with_name(f"{last.name}.damaged"))
            return path
    raise InputError(f"{found[0]}: not a checkpoint, or a damaged one; delete it to train again from the start")


def _is_sound(checkpoint: Path) -> bool:
    """Whether all bytes of a checkpoint can be read."""
    damaged = (EOFError, OSError, ValueError, RuntimeError, LookupError, zipfile.BadZipFile, zlib.error, struct.error)
    try:
        with zipfile.ZipFile(_checked(checkpoint)) as archive:
            return archive.testzip() is None
    except (InputError, *damaged):
        return False
