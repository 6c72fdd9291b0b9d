"""Atomic checkpoints: written under a temporary name in the same directory, then renamed.

Trainer(plugins=[WholeCheckpoints()])

Lightning's own writer puts its temporary file into the system's temporary directory. If that is on another disk, the
last step is a copy over the final name, and a kill or a full disk during the copy destroys the old checkpoint too.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.runs import layout
from unembed.runs.checkpoints import LIGHTNING_VERSION, load_checkpoint


class WholeCheckpoints(TorchCheckpointIO):
    """Writes checkpoints atomically, loads them without unpickling objects, and removes only files that it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self._written = set[Path]()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``; a checkpoint that is there already is kept beside it until training ends.

        Raises:
            OSError: The disk is full; the old checkpoint at ``path`` is unchanged.
        """
        content = io.BytesIO()  # torch replaces the error of a full disk by its own
        torch.save(checkpoint, content)
        previous = Path(path).with_name(Path(layout.PREVIOUS).name)
        write_file(Path(path), lambda file: file.write(content.getbuffer()), previous)
        self._written.add(Path(path).absolute())

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Load a checkpoint on the CPU, restricted to tensors and plain values.

        Raises:
            InputError: It is damaged, or holds more than tensors and plain values.
        """
        content = load_checkpoint(Path(path))
        if LIGHTNING_VERSION not in content:
            raise InputError(f"{path}: not a checkpoint of a training: it has no {LIGHTNING_VERSION}")
        return content

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint that this object wrote, if it is still a regular file.

        Lightning's own method removes anything at ``path``, directories included.
        """
        file = Path(path).absolute()
        if file in self._written and file.is_file() and not file.is_symlink():
            file.unlink()
            self._written.remove(file)
