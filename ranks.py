"""Which of several processes this one is, as the launcher has it (torchrun, Lightning or SLURM), and what all have."""

from __future__ import annotations

import os
from typing import Any


def local_rank() -> int:
    """Number of this process on its machine; 0 where there is one only."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def is_first() -> bool:
    """Whether this is the process that writes a run's files: the only one, or the first of all machines."""
    return not any(int(os.environ.get(name) or 0) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK"))


def started_outside() -> bool:
    """Whether torchrun or srun started this process and others: they inherit nothing from one another."""
    torchrun = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE") or 1) > 1
    return torchrun or ("SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS") or 1) > 1)


def of_every_rank(value: Any) -> list[Any]:
    """``value`` of every rank; on one process just this one. All ranks call this together."""
    import torch  # takes seconds, and the scripts ask the rest before

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values
