"""Gather predictions over ranks, write predictions.jsonl, score them, write metrics.json, and read the objective.

{"index": 3, "reference": "my name is ada .", "prediction": "my name is ada .", "candidates": [...], "cosine": 1.0}
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from numpy.typing import NDArray

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Prediction
from unembed.callbacks.scoring import row_of, score_predictions
from unembed.core.atomic_files import read_json, write_json, write_json_lines
from unembed.core.errors import InputError, did_you_mean
from unembed.core.ranks import of_every_rank
from unembed.datamodules.inversion import InversionDataModule
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.base import ExampleMetric
from unembed.metrics.scoring import text_metrics
from unembed.metrics.token_inversion import Claimed, Claims, FalseDiscovery, TokenExact, TokenPartial, TokenPartialMean
from unembed.runs import layout
from unembed.scoring.models import ScoringModels

SAMPLES = 50  # rows of the table logged to W&B
_COSTS = ("queries", "queries_per_target", "seconds")
_GROUPED = ("length/", "translated/")  # then a metric's name


def check_objective(name: str, models: ScoringModels) -> None:
    """Check, before training, that metrics.json can have a metric of this name.

    Raises:
        InputError: It cannot; names the nearest one.
    """
    tokens = (TokenExact(), TokenPartial(), TokenPartialMean(), Claims(), Claimed(), FalseDiscovery())
    metrics: list[ExampleMetric[Any]] = [*text_metrics(lexicon=True), *tokens, *models.metrics]
    known = {*(metric.description.key for metric in metrics), *_COSTS}
    family = next((name.removeprefix(group) for group in _GROUPED if name.startswith(group)), name).partition("/")[0]
    if family not in known:
        raise InputError(f"objective={name}: no metric of metrics.json, {did_you_mean(name, known)}")


def objective_of(directory: Path, name: str) -> float:
    """The value of a metric in metrics.json; NaN where it is undefined for these predictions.

    Raises:
        InputError: There is no such metric; names the nearest one.
    """
    metrics = read_json(directory / layout.METRICS)
    if name not in metrics:
        raise InputError(f"objective={name}: not in {directory / layout.METRICS}, {did_you_mean(name, metrics)}")
    return float("nan") if metrics[name] is None else float(metrics[name])


class Predictions(Callback):
    """Collects the outputs of ``test_step``; rank 0 writes and scores them.

    Args:
        directory: Where predictions.jsonl and metrics.json are written.
        embedder: The embedder with its cache; embeds predictions for the cosine.
        training: Data module of the attack's training text; None if unknown.
        models: Additional models for scoring.
    """

    def __init__(
        self, directory: Path, embedder: CachedEmbedder, training: InversionDataModule | None, models: ScoringModels
    ) -> None:
        self.directory, self.embedder, self.training, self.models = directory, embedder, training, models
        self.predictions: dict[int, Prediction] = {}
        self.metrics: dict[str, float | int | str | None] = {}
        self.queries: list[NDArray[np.uint64]] = []
        self.seconds = 0.0
        self.limit: str | None = None

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clear the results of an earlier test."""
        self.predictions, self.queries, self.seconds, self.limit = {}, [], 0.0, None

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Store this rank's predictions, their queries, and their time."""
        self.predictions.update(zip(outputs["index"], outputs["predictions"], strict=True))
        self.queries.append(outputs["queries"])
        self.seconds += outputs["seconds"]
        self.limit = outputs["limit"] or self.limit

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather, write, score."""
        assert isinstance(pl_module, Attack)
        asked = np.unique(np.concatenate([np.empty(0, np.uint64), *self.queries]))
        gathered = of_every_rank((self.predictions, self.seconds, asked, self.limit))
        if trainer.is_global_zero:
            # a dict keyed by index drops examples that two ranks have both predicted
            merged = {index: prediction for part, *_ in gathered for index, prediction in part.items()}
            cost: dict[str, float | int | str] = {
                "queries": len(np.unique(np.concatenate([one[2] for one in gathered])))
            }
            cost |= {
                "queries_per_target": int(cost["queries"]) / len(merged),
                "seconds": max(one[1] for one in gathered),
            }
            limits = [limit for *_, limit in gathered if limit is not None]
            if limits:
                cost |= {"partial": sum(one.partial for one in merged.values()), "partial_reason": limits[0]}
                pl_module.batch_cache.keep()
            self._score(merged, pl_module, cost)
            self._log(trainer)
        trainer.strategy.barrier("scored")

    def _score(self, predictions: dict[int, Prediction], attack: Attack, cost: dict[str, float | int | str]) -> None:
        examples = attack.data.examples("test")
        path = self.directory / layout.PREDICTIONS
        # Also written before scoring: a failure in scoring must not lose the decoded texts.
        write_json_lines(path, [row_of(examples[i], predictions[i]) for i in sorted(predictions)])
        entities = self.training.training_entities() if self.training is not None else None
        rows, metrics = score_predictions(predictions, attack.data, self.embedder, entities, attack, self.models)
        write_json_lines(path, rows)
        self.metrics = {**metrics, **cost}
        self.rows = rows
        write_json(self.directory / layout.METRICS, self.metrics)
        if self.models.metrics:
            described = {one.description.key: asdict(one.description) for one in self.models.metrics}
            write_json(self.directory / layout.DESCRIPTIONS, described)

    def _log(self, trainer: Trainer) -> None:
        values = {f"test/{name}": value for name, value in self.metrics.items() if isinstance(value, int | float)}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
            if isinstance(logger, WandbLogger):
                columns = ["index", "reference", "prediction", "cosine"]
                logger.log_table(
                    "test/samples", columns=columns, data=[[row[c] for c in columns] for row in self.rows[:SAMPLES]]
                )
            logger.save()
