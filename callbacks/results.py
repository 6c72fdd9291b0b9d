"""What a test and a training leave in the run directory, by rank 0 once all ranks are done.

predictions.jsonl   {"index": 3, "reference": "my name is ada .", "prediction": "my name is ada .", "cosine": 1.0, ...}
metrics.json        the scores of the predictions (scoring.py), their queries and seconds
baseline.json       the same of the nearest training text of each target
analyses.json       {"corpus_similarity": 0.93, "embedded_words": 9.7, "word_frequency": [{"from": 0, ...}], ...}
record.json         {"versions": {"unembed": "0.1.0", ...}, "parameters": 1615488, "embedder": {...}, ...}
data.json           {"files": [{"path": ..., "bytes": ..., "sha256": ...}]}: the files that texts were read from

Configured callbacks that add to a test, such as the attribute attack, are subclasses of ``Testing``.
"""

from __future__ import annotations

import logging
import platform
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor

from unembed import __version__
from unembed.attacks.base import Attack
from unembed.attacks.nearest_neighbor import BLOCK, nearest
from unembed.attacks.parts import precision
from unembed.attacks.parts.optimizers import cut_short, planned_steps
from unembed.attacks.parts.predictions import Prediction
from unembed.callbacks.scoring import row_of, score_predictions
from unembed.core.atomic_files import read_json, write_json, write_json_lines
from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example
from unembed.core.ranks import of_every_rank
from unembed.datamodules.embedded import defended
from unembed.datamodules.inversion import InversionDataModule
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors
from unembed.metrics.base import ExampleMetric
from unembed.metrics.scoring import text_metrics
from unembed.metrics.statistics import corpus_similarity, evenly
from unembed.metrics.token_inversion import Claimed, Claims, FalseDiscovery, TokenExact, TokenPartial, TokenPartialMean
from unembed.metrics.tokens import words
from unembed.runs import layout
from unembed.runs.files import Row, read_rows, undertrained
from unembed.runs.stored_attack import file_key
from unembed.scoring.models import ScoringModels

log = logging.getLogger("train")

PACKAGES = ("torch", "lightning", "transformers", "tokenizers", "sentence-transformers", "sacrebleu")
_SAMPLES = 50  # rows of the table logged to W&B
_COSTS = ("queries", "queries_per_target", "seconds")
_GROUPED = ("length/", "translated/")  # then a metric's name
_SIMILARITY_TEXTS = 20_000  # sampled evenly from each corpus: a million 4-grams settle the 5,000 most common ones


class Testing(Callback):
    """A callback that adds results to a test: evaluate.py keeps only such; must come after Predictions in the list."""

    def check(self, attack: Attack) -> None:
        """Check that the attack fits the settings, before anything is embedded."""


def build_test_callbacks(config: DictConfig) -> list[Testing]:
    """Build the test callbacks of ``config``; those with a cache use the one of ``config``, null ones are left out."""
    from hydra.utils import get_object, instantiate

    callbacks: list[Testing] = []
    for node in filter(None, config.callbacks.values()):
        kind = get_object(node._target_)
        if isinstance(kind, type) and issubclass(kind, Testing):
            cache = {"cache_dir": config.cache_dir} if "cache_dir" in node else {}
            callbacks.append(instantiate(node, _convert_="all", **cache))
    return callbacks


def check_objective(name: str, models: ScoringModels) -> None:
    """Check, before training, that metrics.json can have a metric of this name."""
    tokens = (TokenExact(), TokenPartial(), TokenPartialMean(), Claims(), Claimed(), FalseDiscovery())
    metrics: list[ExampleMetric[Any]] = [*text_metrics(lexicon=True), *tokens, *models.metrics]
    known = {*(metric.description.key for metric in metrics), *_COSTS}
    family = next((name.removeprefix(group) for group in _GROUPED if name.startswith(group)), name).partition("/")[0]
    if family not in known:
        raise InputError(f"objective={name}: no metric of metrics.json, {did_you_mean(name, known)}")


def objective_of(directory: Path, name: str) -> float:
    """The value of a metric in metrics.json; NaN where it is undefined for these predictions."""
    metrics = read_json(directory / layout.METRICS)
    if name not in metrics:
        raise InputError(f"objective={name}: not in {directory / layout.METRICS}, {did_you_mean(name, metrics)}")
    return float("nan") if metrics[name] is None else float(metrics[name])


class Predictions(Callback):
    """Collects the outputs of ``test_step``; rank 0 writes and scores them.

    ``training`` is the data module of the attack's training text; None if unknown.
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

    def on_test_start(self, *_: Any) -> None:
        self.predictions, self.queries, self.seconds, self.limit = {}, [], 0.0, None

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        self.predictions.update(zip(outputs["index"], outputs["predictions"], strict=True))
        self.queries.append(outputs["queries"])
        self.seconds += outputs["seconds"]
        self.limit = outputs["limit"] or self.limit

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Attack)
        asked = np.unique(np.concatenate([np.empty(0, np.uint64), *self.queries]))
        gathered = of_every_rank((self.predictions, self.seconds, asked, self.limit))
        if trainer.is_global_zero:
            # a dict keyed by index drops examples that two ranks have both predicted
            merged = {index: prediction for part, *_ in gathered for index, prediction in part.items()}
            queries = len(np.unique(np.concatenate([part[2] for part in gathered])))
            self._score(merged, pl_module)
            self.metrics |= {"queries": queries, "queries_per_target": queries / len(merged)}
            self.metrics["seconds"] = max(part[1] for part in gathered)
            if limits := [limit for *_, limit in gathered if limit is not None]:
                self.metrics |= {"partial": sum(one.partial for one in merged.values()), "partial_reason": limits[0]}
                pl_module.batch_cache.keep()
            write_json(self.directory / layout.METRICS, self.metrics)
            self._log(trainer)
        trainer.strategy.barrier("scored")

    def _score(self, predictions: dict[int, Prediction], attack: Attack) -> None:
        examples = attack.data.examples("test")
        path = self.directory / layout.PREDICTIONS
        # Also written before scoring: a failure in scoring must not lose the decoded texts.
        write_json_lines(path, [row_of(examples[i], predictions[i]) for i in sorted(predictions)])
        entities = self.training.training_entities() if self.training is not None else None
        scored = score_predictions(predictions, attack.data, self.embedder, entities, attack, self.models)
        self.rows, self.metrics = scored[0], {**scored[1]}
        write_json_lines(path, self.rows)
        if self.models.metrics:
            described = {one.description.key: asdict(one.description) for one in self.models.metrics}
            write_json(self.directory / layout.DESCRIPTIONS, described)

    def _log(self, trainer: Trainer) -> None:
        values = {f"test/{name}": value for name, value in self.metrics.items() if isinstance(value, int | float)}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
            if isinstance(logger, WandbLogger):
                columns = ["index", "reference", "prediction", "cosine"]
                samples = [[row[column] for column in columns] for row in self.rows[:_SAMPLES]]
                logger.log_table("test/samples", columns=columns, data=samples)
            logger.save()


class TrainingTextAnalyses(Callback):
    """Compares a test with the attack's training text, where that has any: baseline.json has the scores of the nearest
    training text of every target, and analyses.json what predictions.jsonl tells beside that text.
    """

    def __init__(
        self, directory: Path, embedder: CachedEmbedder, training: InversionDataModule, models: ScoringModels
    ) -> None:
        self.directory, self.embedder, self.training, self.models = directory, embedder, training, models

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Attack)
        if trainer.is_global_zero and self.training.examples("train"):
            self._baseline(pl_module)
            self._analyses(pl_module.data.examples("test"))

    def _baseline(self, attack: Attack) -> None:
        started, known = time.perf_counter(), self.training.examples("train")
        queries = [example.query for example in known]
        self.embedder.fill(queries, "training")  # needed if the cache is not the one used in training
        view = self.embedder.view(queries)
        blocks = (self._known(view, begin) for begin in range(0, len(known), BLOCK))
        # Not denoised: of known texts, the one nearest to the noisy vector is the most probable.
        rows = nearest(attack.data.stored_vectors("test", range(len(attack.data.examples("test")))), blocks)
        predictions = {
            index: Prediction((known[row].text,), tokens=known[row].tokens) for index, row in enumerate(rows)
        }
        cost = {"queries": 0, "queries_per_target": 0.0, "seconds": time.perf_counter() - started}
        entities = self.training.training_entities()
        _, metrics = score_predictions(predictions, attack.data, self.embedder, entities, attack, self.models)
        write_json(self.directory / layout.BASELINE, {**metrics, **cost})

    def _known(self, view: CachedVectors, begin: int) -> Tensor:
        """A block of training vectors as the attacker has them: defended for an adaptive attacker."""
        vectors = view[begin : begin + BLOCK]
        if not self.training.adaptive:
            return vectors
        return defended(self.training.defense, vectors, self.training.examples("train")[begin : begin + BLOCK], "train")

    def _analyses(self, examples: Sequence[Example]) -> None:
        texts = self.training.examples("train").texts
        rows = read_rows(self.directory / layout.PREDICTIONS)
        known, attacked = (evenly(some, _SIMILARITY_TEXTS) for some in (texts, [row.reference for row in rows]))
        content = {
            "training_texts": len(texts),
            "corpus_similarity": corpus_similarity(known, attacked),
            "similarity_texts": [len(known), len(attacked)],
            "embedded_words": embedded_words(examples[row.index].text for row in rows),
            "word_frequency": word_frequency(texts, rows),
        }
        write_json(self.directory / layout.ANALYSES, content)


def embedded_words(texts: Iterable[str]) -> float:
    """Mean number of words of the embedded texts. It exceeds that of the references if texts were lengthened before
    embedding (llm_attackers_zhu2024, section 2.3 and figure 4)."""
    return fmean(len(words(text)) for text in texts)


def word_frequency(training: Iterable[str], rows: Sequence[Row]) -> list[dict[str, int]]:
    """Occurrences of words in the references and how many were recovered, by the word's count in the training text.

    vec2text_morris2023, figure 6. Each occurrence of a word in the prediction recovers one occurrence in the reference,
    so that the share of recovered occurrences over all bins is the micro recall of words.

    Returns:
        Non-empty bins in ascending order: ``from`` and ``to`` (both included) are counts in the training text, 0 and
            then half decades; ``words`` is the number of distinct words.
    """
    counts: Counter[str] = Counter()
    for text in training:
        counts.update(words(text))
    occurrences: Counter[str] = Counter()
    recovered: Counter[str] = Counter()
    for row in rows:
        wanted = Counter(words(row.reference))
        occurrences.update(wanted)
        recovered.update(wanted & Counter(words(row.prediction)))
    bins: dict[tuple[int, int], dict[str, int]] = {}
    for word, times in occurrences.items():
        low, high = _bin(counts[word])
        own = bins.setdefault((low, high), {"from": low, "to": high, "words": 0, "occurrences": 0, "recovered": 0})
        own["words"] += 1
        own["occurrences"] += times
        own["recovered"] += recovered[word]
    return [bins[edges] for edges in sorted(bins)]


def _bin(count: int) -> tuple[int, int]:
    """0; 1 to 2, 3 to 9, 10 to 29, 30 to 99, and so on."""
    if count == 0:
        return 0, 0
    decade = 10 ** (len(str(count)) - 1)
    return (decade, 3 * decade - 1) if count < 3 * decade else (3 * decade, 10 * decade - 1)


class RunRecord(Callback):
    """Writes record.json at the end of each stage, and data.json at the start of the first.

    Of an evaluation, ``training`` is the training entry of the evaluated run, and ``checkpoint`` the file of its
    weights, whose hash is recorded.
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
        return {"seconds": self._seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict["seconds"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record the text files, which the data module has read by now; a resumed run keeps its first record."""
        path = self.directory / layout.DATA
        if trainer.is_global_zero and not path.exists():
            files = trainer.datamodule.files_read  # type: ignore[attr-defined]
            write_json(path, {"files": [asdict(file) for file in files]})

    def on_fit_start(self, *_: Any) -> None:
        self._started = time.perf_counter()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
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
