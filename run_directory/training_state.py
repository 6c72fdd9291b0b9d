"""Whether what a checkpoint says of its training is what a trainer can take up: counters, optimizer, random numbers.

    check_state(checkpoint, trainer)          # in on_load_checkpoint, before Lightning takes it over

Lightning writes what it finds over its own attributes. A checkpoint may come from somebody else, so here each counter
is held against the one that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from errors import InputError
from run_directory.checkpoints import numbers_of_callbacks
from tensor_files import is_dense

_LARGEST_COUNT = 2**53
_LOADER_STATES = "combined_loader"
_LIKE_WEIGHTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # of AdamW and Muon
_OF_ADAMW = {"step", "exp_avg", "exp_avg_sq"}  # of which it reads all once there is any
_PARAMETERS = "params"  # of a group of the optimizer: numbers, or names where the model is sharded


def check_state(checkpoint: dict[str, Any], trainer: Trainer) -> None:
    """Whether a trainer can take up the state of a training; where it only tests, it does not look at it.

    Raises:
        InputError: Something is missing or of another kind; names it.
    """
    checkpoint["callbacks"] = numbers_of_callbacks(checkpoint.get("callbacks"))
    if trainer.state.fn != TrainerFn.FITTING:
        return
    wrong = next(_wrong(checkpoint, trainer), None)
    if wrong is not None:
        raise _refused(trainer, f"{wrong} is missing, or not what a training saves")


def check_moments(trainer: Trainer) -> None:
    """Whether what the optimizers took up of a checkpoint fits the weights; in on_train_start.

    Raises:
        InputError: Something is missing, or has another shape than the weights that it belongs to.
    """
    for optimizer in trainer.optimizers:
        for weights, state in optimizer.state.items():
            if state.keys() and state.keys() < _OF_ADAMW:
                missing, shape = ", ".join(sorted(_OF_ADAMW - state.keys())), tuple(weights.shape)
                raise _refused(trainer, f"{missing} of the optimizer is missing for weights of shape {shape}")
            for name, value in state.items():
                # Others, such as those of an optimizer in eight bits, have shapes of their own.
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
    """Within it, whatever torch trips over while it takes up the state of a checkpoint is one message.

    Raises:
        InputError: It cannot be taken up: another optimizer, or a file that somebody changed.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError) as error:
        # Lightning holds the content until all of it is taken up; what goes wrong later is no fault of the file.
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
    """The names of counters that are not of the kind of ``own``."""
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
    """The groups of parameters of an optimizer's state, and of those that it has inside (models/optimizers.py)."""
    for state in states if isinstance(states, list) else ():
        if isinstance(state, dict):
            groups = state.get("param_groups")
            yield from (group for group in (groups if isinstance(groups, list) else ()) if isinstance(group, dict))
            yield from _groups(state.get("parts"))


def _is_setting(value: Any) -> bool:
    """Whether a value is one that an optimizer keeps of its settings: a number, a switch, or several of these."""
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
