"""callbacks/wandb_logger.py, with wandb itself, offline."""

from __future__ import annotations

from pathlib import Path

import wandb

from unembed.callbacks.wandb_logger import WandbOrDisk


def test_a_resumed_run_keeps_its_id_and_another_run_gets_its_own(tmp_path: Path) -> None:
    ids = []
    for run in ("first", "first", "second"):
        (tmp_path / run).mkdir(exist_ok=True)
        ids.append(WandbOrDisk(str(tmp_path / run), offline=True, project="unembed").experiment.id)
        wandb.finish()
    assert ids[0] == ids[1] != ids[2]
