"""Files of tensors, read without running code in them; and the checkpoints of a run, written atomically.

    load_tensors(path, "a table of words")     # of any file that torch.save wrote
    path = resume_from(run, "last")            # checkpoints/last.ckpt, or the previous one if that is damaged
    load_checkpoint(path)["state_dict"]        # tensors and plain values only
    Trainer(plugins=[WholeCheckpoints()])

An exported attacker has its matrices in eight bits: a quarter of the size, and nearly the same predictions.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from unembed.core.atomic_files import write_file
from unembed.core.commands import command
from unembed.core.errors import InputError
from unembed.runs.layout import CHECKPOINT, PREVIOUS

if TYPE_CHECKING:
    from lightning import Trainer

log = logging.getLogger("runs")

LIGHTNING_VERSION = "pytorch-lightning_version"  # in a checkpoint
SCALES = "scales"  # in the checkpoint of an exported attacker: of the matrices in eight bits
LARGE = 2**16  # elements of a matrix that is stored in eight bits
_STEPS = 127
# What torch and zipfile raise on damaged files.
_DAMAGED = (RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, OSError, AssertionError,
            OverflowError, MemoryError, struct.error, zipfile.BadZipFile, zlib.error)  # fmt: skip


def load_tensors(path: Path, what: str, *, mmap: bool = False) -> Any:
    """The content of a file that torch.save wrote, on the CPU; with ``mmap`` tensors stay on the disk until used.

    ``what`` is the expected content, for messages.
    """
    wrong = f"{path}: not {what}, or a damaged one"
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except UnpicklingError as error:  # its message advises to load the file with weights_only=False
        named = re.search(r"GLOBAL (\S+)", str(error))
        more = "more than tensors and plain values" + (f" ({named[1]})" if named else "")
        raise InputError(f"{wrong}: it holds {more}; nothing of it is run") from error
    except _DAMAGED as error:
        raise InputError(f"{wrong}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def is_dense(value: Any) -> bool:
    """Whether ``value`` is a dense tensor of real numbers: not sparse, nested, quantized or on the meta device."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested or value.is_complex())
    )


# -- checkpoints of a run ---------------------------------------------------------------------------------------------


def resume_from(directory: Path, ckpt_path: str | None) -> Path | None:
    """The checkpoint that ``ckpt_path`` (null, ``last`` or a path) names; None to train from the start.

    ``last`` in a directory without checkpoint trains from the start: the run was killed before its first one. If the
    last checkpoint is damaged, the previous one is returned with a warning.
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
    """Load a checkpoint on the CPU: tensors and plain values only, of callbacks only numbers."""
    content = load_tensors(path, "a checkpoint")
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise InputError(f"{path}: not a checkpoint: it has no weights (state_dict)")
    weights = content["state_dict"]
    for name, tensor in weights.items():
        if not isinstance(name, str) or not is_dense(tensor):
            raise InputError(f"{path}: not a checkpoint: its weights {name!r} are not a tensor of real numbers")
    if scales := content.pop(SCALES, None):
        pairs: dict[Any, Any] = scales if isinstance(scales, dict) else {SCALES: None}
        for name, scale in pairs.items():
            if name not in weights or not is_dense(scale) or scale.shape != (*weights[name].shape[:1], 1):
                raise InputError(f"{path}: not a checkpoint: its {SCALES} do not fit its weights {name!r}")
        weights = content["state_dict"] = restored(weights, pairs)
    for name, tensor in weights.items():
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


def numbers_of_callbacks(states: Any) -> dict[str, dict[str, Any]]:
    """The callback states of a checkpoint that hold only numbers, not paths: ModelCheckpoint would delete those."""
    return {
        name: state
        for name, state in (states.items() if isinstance(states, dict) else ())
        if isinstance(name, str) and isinstance(state, dict) and all(map(_is_number, state.values()))
    }


@contextlib.contextmanager
def resuming_from(checkpoint: Path | None, trainer: Trainer) -> Iterator[None]:
    """Turn any error that Lightning raises while it restores a checkpoint's training state into one message."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError) as error:
        # Lightning holds the checkpoint until it is restored; later errors are not the file's fault.
        if checkpoint is None or not trainer._checkpoint_connector._loaded_checkpoint:
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"{checkpoint}: cannot be resumed from: {type(error).__name__}: {reason}") from error


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (is_dense(value) and value.numel() == 1)


def _checked(checkpoint: Path) -> Path:
    # Always checked here: Lightning's FSDP strategy reads checkpoints with Python's unpickler, which runs code.
    load_tensors(checkpoint, "a checkpoint", mmap=True)
    return checkpoint


def _last_sound(directory: Path) -> Path | None:
    last, previous = directory / CHECKPOINT, directory / PREVIOUS
    if _is_sound(last):
        return last
    if _is_sound(previous):
        wrong = "damaged" if last.is_file() else "missing"
        log.warning("%s is %s: training resumes from %s", last, wrong, previous)
        if last.is_file():  # otherwise the next save would rename the damaged file over this one
            last.replace(last.with_name(f"{last.name}.damaged"))
        return previous
    if damaged := [path for path in (last, previous) if path.is_file()]:
        raise InputError(f"{damaged[0]}: not a checkpoint, or a damaged one; delete it to train again from the start")
    return None


def _is_sound(checkpoint: Path) -> bool:
    """Whether all bytes of a checkpoint can be read."""
    try:
        with zipfile.ZipFile(_checked(checkpoint)) as archive:
            return archive.testzip() is None
    except (InputError, *_DAMAGED):
        return False


class WholeCheckpoints(TorchCheckpointIO):
    """Writes checkpoints atomically, and loads them without unpickling objects.

    Lightning's own writer puts its temporary file into the system's temporary directory. If that is on another disk, a
    kill during the last copy destroys the old checkpoint too.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``; a checkpoint that is there already is kept beside it until training ends.

        Raises:
            OSError: The disk is full; the old checkpoint at ``path`` is unchanged.
        """
        content = io.BytesIO()  # torch replaces the error of a full disk by its own
        torch.save(checkpoint, content)
        previous = Path(path).with_name(Path(PREVIOUS).name)
        write_file(Path(path), lambda file: file.write(content.getbuffer()), previous)

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Load a checkpoint on the CPU, restricted to tensors and plain values."""
        content = load_checkpoint(Path(path))
        if LIGHTNING_VERSION not in content:
            raise InputError(f"{path}: not a checkpoint of a training: it has no {LIGHTNING_VERSION}")
        return content


# -- weights in eight bits --------------------------------------------------------------------------------------------


def quantized(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Large matrices (n, m) as int8 with scales (n, 1) float32, all else in float16; shared memory stays shared.

    A row of a matrix is divided by its largest absolute value and rounded to 1/127 of it. Small tensors stay in
    float16: norms, biases and the like need the digits and take no space.
    """
    stored: dict[tuple[object, ...], tuple[Tensor, Tensor | None]] = {}
    for tensor in weights.values():
        stored.setdefault(_memory(tensor), _quantized_matrix(tensor))
    pairs = {name: stored[_memory(tensor)] for name, tensor in weights.items()}
    scales = {name: scale for name, (_, scale) in pairs.items() if scale is not None}
    return {name: tensor for name, (tensor, _) in pairs.items()}, scales


def restored(weights: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with int8 matrices in float32 again; shared memory stays shared."""
    whole = {_memory(weights[name]): weights[name] * scale for name, scale in scales.items()}
    return {name: whole[_memory(tensor)] if name in scales else tensor for name, tensor in weights.items()}


def _quantized_matrix(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    if not tensor.is_floating_point():
        return tensor.clone(), None
    if tensor.ndim != 2 or tensor.numel() < LARGE:
        return tensor.half().contiguous(), None
    scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _STEPS
    return (tensor.float() / scale).round().to(torch.int8), scale


def _memory(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
