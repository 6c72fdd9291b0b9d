"""artifacts/space.safetensors: statistics of the vectors that the attack was trained on (``unembed.metrics.spaces``).

keep_space(run, session, datamodule.training_sample(TEXTS))     # at the end of training, or of an older run
read_space(run, session)                                        # None in a run without the file, or of other vectors

Vectors of unknown origin are compared with them before an attack reads them (unembed/reports/vector_space.py). The file holds
some 100 kB and no text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.embedders.cache.shards import write_privately
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.core.errors import InputError
from unembed.metrics.spaces import FEWEST, Space
from unembed.runs.layout import ARTIFACTS

if TYPE_CHECKING:
    from torch import Tensor

    from unembed.session import Session

FILE = "space.safetensors"
TEXTS = 5000  # number of vectors, evenly from the training texts


def keep_space(run: Path, session: Session, vectors: Tensor | None) -> None:
    """Write the statistics of vectors, (n, d), that the attack was trained on.

    Nothing is written where there are too few, or for a language model, whose output is no text's vector.
    """
    from safetensors.torch import save

    of_texts = not isinstance(session.embedder.embedder, LanguageModelEmbedder)
    if vectors is None or len(vectors) < FEWEST or not of_texts:
        return
    tensors = {name: tensor.contiguous() for name, tensor in Space.of(vectors).tensors().items()}
    folder = run / ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    write_privately(folder / FILE, save(tensors, _about(session)))


def read_space(run: Path, session: Session) -> Space | None:
    """The statistics of a run's vectors; None if it has none, or those of another embedder or defense.

    Raises:
        InputError: The file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = run / ARTIFACTS / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() != _about(session):
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found = Space.restored(tensors)
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, RuntimeError, OSError) as error:
        raise InputError(f"{path}: the statistics of the run's vectors cannot be read: {error}") from error
    sound = all(tensor.isfinite().all() for tensor in tensors.values()) and bool((found.norm > 0).all())
    if not sound or found.dimension != session.dimension:
        raise InputError(f"{path}: not the statistics of vectors of dimension {session.dimension}, or damaged")
    return found


def _about(session: Session) -> dict[str, str]:
    """What the vectors depend on: the embedder, and the defense that the attacker was trained with."""
    defense = json.dumps(session.threat.settings, sort_keys=True) if session.threat.adaptive else ""
    return {"embedder": session.embedder.fingerprint, "defense": defense}
