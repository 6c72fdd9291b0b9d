"""Checkpoints that are whole or not there: written beside their final name, then renamed.

Trainer(plugins=[WholeCheckpoints()])

Lightning's own writer makes its temporary file in the system's temporary directory. Where that is another disk, the
last step is a copy over the final name: a kill or a full disk during it costs the old checkpoint too.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

import runs


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint as every other file of a run is written, and unpickles none."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``; what stood there is kept beside it until the training ends.

        Raises:
            OSError: The disk is full; what stood at ``path`` before still stands there.
        """
        content = io.BytesIO()  # torch would hide the error of a full disk behind one of its own
        torch.save(checkpoint, content)
        previous = Path(path).with_name(Path(runs.PREVIOUS).name)
        runs.write(Path(path), lambda file: file.write(content.getbuffer()), previous)

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """The content of ``path``, on the CPU; never an object of any class.

        Raises:
            InputError: It is damaged, or holds more than tensors and plain values.
        """
        return runs.load_checkpoint(Path(path))
