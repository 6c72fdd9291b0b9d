"""Validation of the training state in a checkpoint: counters, optimizer state and random state.

    check_state(checkpoint, trainer)          # in on_load_checkpoint, before Lightning restores it

Lightning assigns the stored values to its own attributes. Since a checkpoint may be untrusted, each counter is compared
with the one that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from unembed.core.errors import InputError
from unembed.runs.checkpoints import numbers_of_callbacks
from unembed.core.tensor_files import is_dense

_LARGEST_COUNT = 2**53
_LOADER_STATES = "combined_loader"
_LIKE_WEIGHTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # state tensors shaped like the weights, of AdamW and Muon
_OF_ADAMW = {"step", "exp_avg", "exp_avg_sq"}  # AdamW reads all of them if one is present
_PARAMETERS = "params"  # key of an optimizer's parameter group: indices, or names if the model is sharded


def check_state(checkpoint: dict[str, Any], trainer: Trainer) -> None:
    """Check that a trainer can restore the training state of a checkpoint; nothing is checked when it only tests.

    Raises:
        InputError: A value is missing or of another kind; names it.
    """
    checkpoint["callbacks"] = numbers_of_callbacks(checkpoint.get("callbacks"))
    if trainer.state.fn != TrainerFn.FITTING:
        return
    wrong = next(_wrong(checkpoint, trainer), None)
    if wrong is not None:
        raise _refused(trainer, f"{wrong} is missing, or not what a training saves")


def check_moments(trainer: Trainer) -> None:
    """Check that the restored optimizer state fits the weights; called in on_train_start.

    Raises:
        InputError: A value is missing, or its shape differs from that of its weights.
    """
    for optimizer in trainer.optimizers:
        for weights, state in optimizer.state.items():
            if state.keys() and state.keys() < _OF_ADAMW:
                missing, shape = ", ".join(sorted(_OF_ADAMW - state.keys())), tuple(weights.shape)
                raise _refused(trainer, f"{missing} of the optimizer is missing for weights of shape {shape}")
            for name, value in state.items():
                # Other state, such as that of 8-bit optimizers, has its own shapes.
                if name in _LIKE_WEIGHTS and getattr(value, "shape", None) != weights.shape:
                    shapes = f"the shape {tuple(getattr(value, 'shape', ()))}, and the weights {tuple(weights.shape)}"
                    raise _refused(trainer, f"{name!r} of the optimizer has {shapes}")


def _refused(trainer: Trainer, why: str) -> InputError:
    return InputError(
        f"{trainer.ckpt_path or 'the checkpoint'}: cannot be resumed from: {why}; take another checkpoint by "
        "ckpt_path=<file>, or train again"
    )


@contextmanager
def taking_up(trainer: Trainer, checkpoint: Path | None) -> Iterator[None]:
    """Turn any error raised while a checkpoint's training state is restored into one message.

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


def _wrong(checkpoint: dict[str, Any], trainer: Trainer) -> Iterator[str]:
    loops = checkpoint.get("loops")
    found = loops.get("fit_loop") if isinstance(loops, dict) else None
    if not isinstance(found, dict):
        yield "loops.fit_loop"
        return
    for name, own in trainer.fit_loop.state_dict().items():
        if name == "state_dict" and not _are_loader_states(found.get(name, {})):
            yield "loops.fit_loop.state_dict"
        elif name in found:
            yield from _unlike(found[name], own, f"loops.fit_loop.{name}")
    for name in ("optimizer_states", "lr_schedulers"):
        states = checkpoint.get(name)
        if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
            yield name
    for group in _groups(checkpoint.get("optimizer_states")):
        texts = [name for name, value in group.items() if name != _PARAMETERS and not _is_setting(value)]
        yield from (f"optimizer_states: {name!r:.40}" for name in texts)
        if "betas" in group and not (isinstance(group["betas"], list | tuple) and len(group["betas"]) == 2):
            yield "optimizer_states: 'betas'"
    states = checkpoint.get("random_states", [])
    shape = torch.get_rng_state().shape
    if not isinstance(states, list) or not all(_is_random_state(state, shape) for state in states):
        yield "random_states"


def _unlike(found: Any, own: Any, name: str) -> Iterator[str]:
    """The names of counters whose kind differs from those in ``own``."""
    if isinstance(own, dict):
        if not isinstance(found, dict) or not own.keys() <= found.keys():
            yield name
        else:
            for key, value in own.items():
                yield from _unlike(found[key], value, f"{name}.{key}")
    elif isinstance(own, bool):
        if not isinstance(found, bool):
            yield name
    elif isinstance(own, int) and not (type(found) is int and 0 <= found < _LARGEST_COUNT):
        yield name


def _are_loader_states(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    states = found.get(_LOADER_STATES, [])
    return isinstance(states, list) and all(isinstance(state, dict) for state in states)


def _groups(states: Any) -> Iterator[dict[Any, Any]]:
    """The parameter groups of an optimizer's state, nested optimizers (attacks/parts/optimizers.py) included."""
    for state in states if isinstance(states, list) else ():
        if isinstance(state, dict):
            groups = state.get("param_groups")
            yield from (group for group in (groups if isinstance(groups, list) else ()) if isinstance(group, dict))
            yield from _groups(state.get("parts"))


def _is_setting(value: Any) -> bool:
    """Whether a value is an optimizer setting: a number, a switch, or several of these."""
    return (
        value is None
        or type(value) in (bool, int, float)
        or (isinstance(value, list | tuple) and all(map(_is_setting, value)))
    )


def _is_random_state(state: Any, shape: torch.Size) -> bool:
    return (
        isinstance(state, dict)
        and "cpu" in state
        and all(is_dense(value) and value.dtype == torch.uint8 for value in state.values())
        and state["cpu"].shape == shape
    )
