"""The intermediate state of a long search on one batch, in one file, so that a killed search can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from unembed.core import tensor_files
from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError


class SearchState:
    """The state file of one batch.

    Args:
        path: The file; None stores nothing.
        key: Hash of the batch and all settings; a file with another key is ignored.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self.path, self.key = path, key

    def read(self) -> dict[str, Any] | None:
        """The last written state, tensors on the CPU; None if there is none with this key."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            content = tensor_files.load(self.path, "an interrupted search")
        except InputError as error:
            rank_zero_warn(f"{error}; that batch starts again")
            return None
        if not isinstance(content, dict) or content.get("key") != self.key:
            return None
        rank_zero_info(f"a batch that was interrupted is resumed: {self.path}")
        value = content.get("value")
        return value if isinstance(value, dict) else None

    def write(self, value: Mapping[str, Any]) -> None:
        """Replace the file by ``value``, which holds tensors and plain values."""
        if self.path is not None:
            write_file(self.path, lambda file: torch.save({"key": self.key, "value": dict(value)}, file))

    def remove(self) -> None:
        """Remove the file when the search is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
