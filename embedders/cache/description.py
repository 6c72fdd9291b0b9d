"""embedder.json: describes the embedder of a cache folder.

describe(folder, embedder, 384)        # embedder.json: {"fingerprint": "a1b2...", "dimension": 384, "max_tokens": 256}
dimension_known(folder, embedder)      # 384
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unembed.core.errors import InputError
from unembed.embedders.base import Embedder
from unembed.embedders.cache.shards import write_privately
from unembed.embedders.cache.store import full_disk_explained, make_private_folder

_FILE = "embedder.json"
_MOST_BYTES = 2**16


def describe(folder: Path, embedder: Embedder, dimension: int) -> None:
    """Write the description of ``folder``, creating the folder (0700) if missing, or check an existing one.

    Raises:
        InputError: The folder cannot be made, the disk is full, or the folder belongs to another embedder.
    """
    make_private_folder(folder)
    description = _description(embedder, dimension)
    path = folder / _FILE
    found = _read(path)
    if found is None:
        found = description
        content = json.dumps(description).encode()
        with full_disk_explained(folder, len(content)):
            write_privately(path, content)
    if found != description:
        raise InputError(f"{path} describes another embedder ({found}) than the one in use ({description})")


def dimension_known(folder: Path, embedder: Embedder) -> int | None:
    """The dimension stored in ``folder``; None if there is none or the folder belongs to another embedder."""
    found = _read(folder / _FILE)
    return found["dimension"] if found is not None and found == _description(embedder, found["dimension"]) else None


def _description(embedder: Embedder, dimension: int) -> dict[str, Any]:
    return {"fingerprint": embedder.fingerprint, "dimension": dimension, "max_tokens": embedder.max_tokens}


def _read(path: Path) -> dict[str, Any] | None:
    """The content of the file; None if it is missing or damaged, since it can be written again."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or type(found.get("dimension")) is not int or found["dimension"] < 1:
        return None
    return found
