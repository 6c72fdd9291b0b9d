"""The rank of this process as set by the launcher (torchrun, Lightning or SLURM), and gathering over ranks."""

from __future__ import annotations

import os
from typing import Any


def local_rank() -> int:
    """Rank of this process on its machine; 0 if it is the only one."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def is_first() -> bool:
    """Whether this process writes the run's files: global rank 0."""
    return not any(int(os.environ.get(name) or 0) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK"))


def started_outside() -> bool:
    """Whether torchrun or srun started the ranks, so that they inherit nothing from one another."""
    torchrun = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE") or 1) > 1
    return torchrun or ("SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS") or 1) > 1)


def of_every_rank(value: Any) -> list[Any]:
    """``value`` of every rank, in rank order; all ranks must call this together."""
    import torch  # takes seconds; the scripts call the other functions earlier

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values
