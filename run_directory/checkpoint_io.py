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

from atomic_files import write_file
from errors import InputError
from run_directory import layout
from run_directory.checkpoints import LIGHTNING_VERSION, load_checkpoint


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint as every other file of a run is written, unpickles none, and removes what it wrote only."""

    def __init__(self) -> None:
        super().__init__()
        self._written = set[Path]()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``; what stood there is kept beside it until the training ends.

        Raises:
            OSError: The disk is full; what stood at ``path`` before still stands there.
        """
        content = io.BytesIO()  # torch would hide the error of a full disk behind one of its own
        torch.save(checkpoint, content)
        previous = Path(path).with_name(Path(layout.PREVIOUS).name)
        write_file(Path(path), lambda file: file.write(content.getbuffer()), previous)
        self._written.add(Path(path).absolute())

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """The content of ``path``, on the CPU; never an object of any class, nor a path.

        Raises:
            InputError: It is damaged, or holds more than tensors and plain values.
        """
        content = load_checkpoint(Path(path))
        if LIGHTNING_VERSION not in content:
            raise InputError(f"{path}: not a checkpoint of a training: it has no {LIGHTNING_VERSION}")
        return content

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint that was written before and is a file still; anything else is left alone.

        Lightning's own removes whatever stands there, folders with all that is in them.
        """
        file = Path(path).absolute()
        if file in self._written and file.is_file() and not file.is_symlink():
            file.unlink()
            self._written.remove(file)
