"""Which of a machine's processes this one is, as the launcher has it: torchrun, Lightning or SLURM."""

from __future__ import annotations

import os


def local_rank() -> int:
    """Number of this process on its machine; 0 where there is one only."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
