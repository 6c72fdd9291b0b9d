"""The record of a run in record.json: versions, device, parameters, texts sent to the embedder, training time.

{"versions": {"unembed": "0.1.0", ...}, "parameters": 1615488, "embedder": {"fingerprint": "...", "sent": {...}}, ...}

data.json lists the files that texts were read from: {"files": [{"path": ..., "bytes": ..., "sha256": ...}]}
"""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer

from unembed import __version__
from unembed.attacks.parts import precision
from unembed.attacks.parts.optimizers import cut_short, planned_steps
from unembed.core.atomic_files import write_json
from unembed.core.ranks import of_every_rank
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs import layout
from unembed.runs.files import undertrained
from unembed.runs.stored_attack import file_key

log = logging.getLogger("train")

PACKAGES = ("torch", "lightning", "transformers", "tokenizers", "sentence-transformers", "sacrebleu")
_LONGEST = 1e9  # seconds of a training


class RunRecord(Callback):
    """Writes record.json at the end of each stage, and data.json at the start of the first.

    Args:
        directory: The run directory.
        embedder: The embedder whose fingerprint and queries are recorded.
        training: The training entry of the evaluated run, if this is an evaluation.
        checkpoint: The file of the evaluated weights, whose hash is recorded.
    """

    def __init__(
        self,
        directory: Path,
        embedder: CachedEmbedder,
        training: dict[str, Any] | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.directory, self.embedder, self.checkpoint = directory, embedder, checkpoint
        self.record: dict[str, Any] = {} if training is None else {"training": training}
        self._started: float | None = None  # while it trains
        self._before = 0.0  # seconds of training that a resumed run had behind it

    @property
    def _seconds(self) -> float:
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)

    def state_dict(self) -> dict[str, Any]:
        """The seconds of training so far, for a resumed run."""
        return {"seconds": self._seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See state_dict; a checkpoint may be untrusted, and that of an earlier version has no seconds."""
        seconds = state_dict.get("seconds")
        self._before = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < _LONGEST else 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record the text files, which the data module has read by now; a resumed run keeps its first record."""
        path = self.directory / layout.DATA
        if trainer.is_global_zero and not path.exists():
            files = trainer.datamodule.files_read  # type: ignore[attr-defined]
            write_json(path, {"files": [asdict(file) for file in files]})

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the training clock."""
        self._started = time.perf_counter()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the training."""
        self._before, self._started = self._seconds, None
        self.record["training"] = {
            "seconds": round(self._before, 3),
            "steps": trainer.global_step,
            "epochs": trainer.current_epoch,
            "planned_steps": planned_steps(trainer),
            "cut_short": cut_short(trainer),
        }
        warning = undertrained(self.record["training"])
        if warning is not None and trainer.is_global_zero:
            log.warning(warning)
        self._write(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the test."""
        self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        queries = self.embedder.queries
        keys = {purpose: queries.keys(purpose) for purpose in queries.asked}
        ranks = of_every_rank((keys, queries.sent))
        if not trainer.is_global_zero:
            return
        device = trainer.strategy.root_device
        self.record |= {
            "versions": {"unembed": __version__, "python": platform.python_version()}
            | {name: metadata.version(name) for name in PACKAGES},
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            "processor": {
                "name": precision.processor_name(),
                "threads": torch.get_num_threads(),
                "gflops": {name: round(rate, 1) for name, rate in asdict(precision.measured("cpu")).items()},
            },
            "world_size": trainer.world_size,
            "parameters": sum(parameter.numel() for parameter in pl_module.parameters()),
            "embedder": {
                "fingerprint": self.embedder.fingerprint,
                "dimension": self.embedder.dimension,
                "asked": {
                    purpose: len(np.unique(np.concatenate([asked[purpose] for asked, _ in ranks]))) for purpose in keys
                },
                "sent": {purpose: sum(sent[purpose] for _, sent in ranks) for purpose in keys},
            },
            "data": {"revision": trainer.datamodule.resolved_revision},  # type: ignore[attr-defined]
        }
        if self.checkpoint is not None and self.checkpoint.is_file():
            self.record["checkpoint"] = file_key(self.checkpoint)
        write_json(self.directory / layout.RECORD, self.record)
