"""Devices, the rank of this process as set by the launcher (torchrun, Lightning or SLURM), and gathering over ranks."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from unembed.core.errors import InputError, did_you_mean


def local_rank() -> int:
    """Rank of this process on its machine; 0 if it is the only one."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def is_first() -> bool:
    """Whether this process writes the run's files: global rank 0."""
    return not any(int(os.environ.get(name) or 0) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK"))


def rank_and_size() -> tuple[int, int]:
    """Rank of this process and the number of ranks that torchrun started; (0, 1) without it."""
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


class Ranks(NamedTuple):
    """Processes that share their work; ``meet`` waits, however long, until all have called it."""

    rank: int
    size: int
    meet: Callable[[], None]


ALONE = Ranks(0, 1, lambda: None)


def ranks_of_torchrun() -> Ranks:
    """The ranks that torchrun started, until this process ends; each uses a GPU of its own where there are any."""
    rank, size = rank_and_size()
    if size == 1:
        return ALONE
    import torch
    from torch import distributed

    def meet() -> None:
        try:
            distributed.barrier()
        except RuntimeError:  # another rank has ended, and said why
            raise SystemExit(1) from None

    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    distributed.init_process_group("gloo", timeout=timedelta(days=30))
    atexit.register(distributed.destroy_process_group)
    return Ranks(rank, size, meet)


def started_outside() -> bool:
    """Whether torchrun or srun started the ranks, so that they inherit nothing from one another."""
    torchrun = "RANK" in os.environ and rank_and_size()[1] > 1
    return torchrun or ("SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS") or 1) > 1)


def of_every_rank(value: Any) -> list[Any]:
    """``value`` of every rank, in rank order; all ranks must call this together."""
    import torch  # takes seconds; the scripts call the other functions earlier

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def check_devices(trainer: Mapping[str, Any]) -> None:
    """Check that this machine has the devices that the settings of the trainer ask for; imports Lightning."""
    from lightning.pytorch.accelerators import AcceleratorRegistry, CUDAAccelerator, MPSAccelerator

    asked, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    valid = ("auto", "gpu", *AcceleratorRegistry)
    if asked not in valid:
        raise InputError(f"trainer.accelerator={asked}: {did_you_mean(str(asked), valid)}")
    gpu = MPSAccelerator if MPSAccelerator.is_available() else CUDAAccelerator
    found = gpu if asked in ("auto", "gpu") else AcceleratorRegistry[asked]["accelerator"]
    if asked != "auto" and not found.is_available():
        import torch

        what = "GPU" if asked in ("gpu", "cuda", "mps") else asked
        missing = f"torch {torch.__version__} finds no {what} on this machine"
        raise InputError(f"trainer.accelerator={asked}: {missing}; give trainer.accelerator=auto or cpu")
    if found in (CUDAAccelerator, MPSAccelerator) and found.is_available():
        count = found.auto_device_count()
        numbers = [] if isinstance(devices, int | str) else devices
        if (isinstance(devices, int) and devices > count) or any(number >= count for number in numbers):
            has = "1 GPU, number 0" if count == 1 else f"{count} GPUs, numbers 0 to {count - 1}"
            more = f"torch finds {has} on this machine; give trainer.devices={count} or fewer"
            raise InputError(f"trainer.devices={devices}: {more}")
