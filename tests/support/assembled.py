"""Attacks, data modules and trainers put together without a run directory, and the texts that they are trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning import Trainer
from torch import Tensor

from support.letters import TEXTS, FewLetters
from unembed.attacks.base import Attack
from unembed.core.examples import Example, Split
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.base import Source
from unembed.defenses.base import Defense
from unembed.defenses.identity import Identity
from unembed.embedders.base import Embedder
from unembed.embedders.cache.cached import CachedEmbedder

AnyAttack = TypeVar("AnyAttack", bound=Attack)


class Texts:
    """A source of given texts or examples: ``Texts(train=[...], test=[...])``."""

    def __init__(self, **splits: Iterable[str | Example]) -> None:
        self.splits = splits

    def load(self) -> Mapping[Split, Sequence[Example]]:
        return {
            split: [text if isinstance(text, Example) else Example(i, text) for i, text in enumerate(texts)]
            for split, texts in self.splits.items()
        }  # type: ignore[return-value]


def data_module(
    source: Source, embedder: Embedder, folder: Path, defense: Defense | None = None, **options: Any
) -> InversionDataModule:
    """A data module over ``source``, whose vectors lie in ``folder/cache``."""
    made = InversionDataModule(source, **options)
    made.connect(CachedEmbedder(embedder, folder / "cache"), defense or Identity())
    return made


def built(
    attack: AnyAttack, artifacts: Path, texts: Sequence[str] = TEXTS, dimension: int = FewLetters.dimension
) -> AnyAttack:
    """An attack with new weights, prepared on ``texts``, for vectors of ``dimension``."""
    attack.connect(artifacts, None)
    attack.prepare(texts, artifacts)
    attack.restore(None, dimension)
    return attack


def quiet_trainer(**options: Any) -> Trainer:
    """A trainer on the CPU that writes and prints nothing."""
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
             "enable_model_summary": False, "use_distributed_sampler": False}  # fmt: skip
    return Trainer(**{**quiet, **options})


def padded(rows: Sequence[Sequence[int]], filler: int = -100) -> Tensor:
    """Rows of ids in one tensor (n, longest), of labels by default."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows], dtype=torch.long).view(
        len(rows), longest
    )
