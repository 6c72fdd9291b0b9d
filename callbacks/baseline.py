"""The nearest-neighbour baseline on the same test examples, written to baseline.json beside metrics.json."""

from __future__ import annotations

import time
from pathlib import Path

from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.nearest_neighbor import BLOCK, nearest
from unembed.attacks.parts.predictions import Prediction
from unembed.callbacks.scoring import score_predictions
from unembed.core.atomic_files import write_json
from unembed.datamodules.defended import defended
from unembed.datamodules.inversion import InversionDataModule
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors
from unembed.runs import layout
from unembed.scoring.models import ScoringModels


class NearestNeighborBaseline(Callback):
    """Scores the nearest training text of every test target.

    Args:
        directory: Where baseline.json is written.
        embedder: The embedder with its cache.
        training: Data module of the attack's training text.
        models: Additional models for scoring.
    """

    def __init__(
        self, directory: Path, embedder: CachedEmbedder, training: InversionDataModule, models: ScoringModels
    ) -> None:
        self.directory, self.embedder, self.training, self.models = directory, embedder, training, models

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the baseline on rank 0."""
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Attack)
        started = time.perf_counter()
        datamodule = pl_module.data
        known = self.training.examples("train")
        if not known:  # data for attacks that only search has no training text
            return
        queries = [example.query for example in known]
        self.embedder.fill(queries, "training")  # needed if the cache is not the one used in training
        view = self.embedder.view(queries)
        blocks = (self._known(view, begin) for begin in range(0, len(known), BLOCK))
        # Not denoised: of known texts, the one nearest to the noisy vector is the most probable.
        rows = nearest(datamodule.stored_vectors("test", range(len(datamodule.examples("test")))), blocks)
        predictions = {
            index: Prediction((known[row].text,), tokens=known[row].tokens) for index, row in enumerate(rows)
        }
        seconds = time.perf_counter() - started
        _, metrics = score_predictions(
            predictions, datamodule, self.embedder, self.training.training_entities(), pl_module, self.models
        )
        write_json(
            self.directory / layout.BASELINE, {**metrics, "queries": 0, "queries_per_target": 0.0, "seconds": seconds}
        )

    def _known(self, view: CachedVectors, begin: int) -> Tensor:
        """A block of training vectors as the attacker has them: defended for an adaptive attacker."""
        vectors = view[begin : begin + BLOCK]
        if not self.training.adaptive:
            return vectors
        return defended(self.training.defense, vectors, self.training.examples("train")[begin : begin + BLOCK], "train")
