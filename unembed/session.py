"""Build the objects of a configuration: embedder, defense, data, attack, callbacks and trainer, in one place for all.

    session = Session(config, run_dir)          # for training; the directory is still empty
    session = Session.open(run, config)         # of a finished run; config is the run's, with command line overrides
    attack = session.restored_attack(session.oracle, session.dimension)
    attack.invert(targets, session.oracle)

Each object is built when it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hydra.utils import instantiate
from lightning import Callback, seed_everything
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import Tensor

from unembed.attacks.parts.batch_cache import BatchCache
from unembed.attacks.parts.sharding import check_sharding
from unembed.attacks.refine.refining import leave_out, optional_refiners
from unembed.callbacks.blending import Blending
from unembed.callbacks.pace import Pace, TerminalBar
from unembed.callbacks.results import (
    Predictions,
    RunRecord,
    Testing,
    TrainingTextAnalyses,
    build_test_callbacks,
    check_objective,
)
from unembed.callbacks.termination import Termination
from unembed.core.errors import InputError
from unembed.core.ranks import is_first
from unembed.datamodules.collections import CollectionTexts
from unembed.datamodules.embedded import DefendedEmbedder, FittedDefense
from unembed.datamodules.inversion import InversionDataModule, training_data
from unembed.datamodules.retrieval import Searchable
from unembed.datamodules.usefulness import matched
from unembed.defenses.base import Fitted
from unembed.defenses.denoisers import ADAPTIVE, Denoiser
from unembed.defenses.states import of_states
from unembed.defenses.threat import Threat, threat_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.metrics.statistics import evenly
from unembed.runs import layout
from unembed.runs.checkpoints import WholeCheckpoints, finished_checkpoint
from unembed.runs.config_file import read_config, write_config
from unembed.runs.files import DataFile, data_of, training_of
from unembed.runs.stored_attack import check_origin, settings_key
from unembed.scoring.models import ScoringModels, scoring_models

if TYPE_CHECKING:
    from unembed.attacks.base import Attack

_ONCE = (TrainingTextAnalyses, RunRecord)  # callbacks of the first trial alone


class Session:
    """The objects of a configuration, for one run directory.

    Args:
        config: Checked and resolved, as returned by ``launch.compose`` and ``launch.on_run``.
        run: The run directory with the artifacts of the attack.
        trained: The configuration that the run was trained with; None when training.
    """

    def __init__(self, config: DictConfig, run: Path, trained: DictConfig | None = None) -> None:
        self.config, self.run = config, run
        self.finished = trained is not None
        self.trained = config if trained is None else trained

    @classmethod
    def open(cls, run: Path, config: DictConfig) -> Session:
        """Open a finished run with its configuration as returned by ``launch.on_run``."""
        return cls(config, run, read_config(run))

    @cached_property
    def values(self) -> dict[str, Any]:
        """The configuration as plain values."""
        values = OmegaConf.to_container(self.config, resolve=True, throw_on_missing=True)
        assert isinstance(values, dict)
        return {str(name): value for name, value in values.items()}

    @cached_property
    def embedder(self) -> CachedEmbedder:
        """The embedder with its cache."""
        return CachedEmbedder(_build(self.config.embedder), Path(self.config.cache_dir))

    @cached_property
    def trained_fingerprint(self) -> str:
        """Fingerprint of the training's embedder; of several prefixes, a command may choose one."""
        several = isinstance(self.trained.embedder.get("prefix"), ListConfig)
        return _build(self.trained.embedder).fingerprint if several else self.embedder.fingerprint

    @cached_property
    def threat(self) -> Threat:
        """The defense, and how much the attacker knows of it."""
        threat, embedder = threat_of(self.config.defense), self.embedder.embedder
        if isinstance(embedder, LanguageModelEmbedder) and embedder.sees_states:
            return replace(threat, defense=of_states(threat.defense, embedder.layout.tokens))
        return threat

    @cached_property
    def denoiser(self) -> Denoiser | None:
        """What is done about noise in vectors before the attack reads them; None: nothing."""
        return _build(self.config.denoiser) if self.config.get("denoiser") is not None else None

    def denoised(self, vectors: Tensor) -> Tensor:
        """Vectors of a store, (n, d), as the attack reads them: through the denoiser, fitted to them, if any."""
        if self.denoiser is None:
            return vectors
        if self.threat.adaptive:
            raise InputError(ADAPTIVE)
        self.denoiser.fit(vectors[list(evenly(range(len(vectors)), self.denoiser.rows))])
        rank_zero_info(self.denoiser.report())
        return self.denoiser(vectors)

    @cached_property
    def models(self) -> ScoringModels:
        """Additional models for scoring, each tested by one call."""
        return scoring_models(self.config)

    def check(self) -> None:
        """Check early: the scoring models load, secrets and files are there, and the objective is a metric."""
        _ = self.models, self.threat, self.attack
        if not self.finished:
            check_objective(self.config.objective, self.models)

    @cached_property
    def attack(self) -> Attack:
        """The attack, not yet connected or restored.

        Optional refiners may be left out of the configuration first; what the others read from files is checked.
        """
        if optional_refiners(self.config):
            leave_out(self.config, self.embedder, self.threat)
        attack: Attack = _build(self.config.attack)
        attack.refiners.check_sources()
        return attack

    @cached_property
    def datamodule(self) -> InversionDataModule:
        """The data module of the configuration, connected."""
        datamodule: InversionDataModule = _build(self.config.datamodule)
        self._connect(datamodule)
        return datamodule

    def training_data(self, files: Sequence[DataFile] | None) -> InversionDataModule:
        """The data module of the run's training texts, not connected; ``files`` as recorded in training, if known."""
        training = training_data(self.run, self.trained, files)
        if self._same_data and "datamodule" in vars(self):  # else nothing has been read
            training.share(self.datamodule)
        return training

    @property
    def _same_data(self) -> bool:
        """Whether the configuration's data are those of the training."""
        return bool(self.trained.datamodule == self.config.datamodule)

    def known_data(self, files: Sequence[DataFile] | None) -> InversionDataModule | None:
        """The training data of a finished run, connected, with the defense fitted; arguments as for ``training_data``.

        Returns None with a warning if the texts can no longer be read.
        """
        try:
            training = self.training_data(files)
            if not self._same_data:
                rank_zero_info("for the nearest-neighbour baseline and the analyses, what the run was trained on:")
            training.examples("train")
        except InputError as error:
            rank_zero_warn(
                "the nearest-neighbour baseline and the analyses are left out: the run's training text cannot be read: "
                f"{error}"
            )
            if not self.is_fitted:
                choice = self.config.choices.defense
                raise InputError(f"defense={choice} is fitted to the run's training text, and there is none") from error
            return None
        self._connect(training)
        if not self.is_fitted:
            training.fit_defense()
        return training

    def training_texts(self) -> Sequence[str]:
        """The training texts of a finished run; empty, with a warning, if they can no longer be read."""
        try:
            return self.training_data(None).examples("train").texts
        except InputError as error:
            rank_zero_warn(f"attack.refine: the run's training text cannot be read: {error}")
            return []

    def _connect(self, datamodule: InversionDataModule) -> None:
        datamodule.connect(
            self.embedder,
            self.threat.defense,
            adaptive=self.threat.adaptive,
            hypotheses=self.threat.hypotheses,
            kept=None if self.finished else self._kept,
            denoiser=self.denoiser,
        )

    @cached_property
    def is_fitted(self) -> bool:
        """Whether the defense can be applied: it needs no fitting, or its fitted state is stored in the run."""
        return not isinstance(self.threat.defense, Fitted) or self._kept.restore(self.threat.defense)

    @property
    def dimension(self) -> int:
        """Dimension of the vectors that the attack receives."""
        return self.threat.dimension(self.embedder.dimension)

    @property
    def service(self) -> CachedEmbedder:
        """The embedder behind the attacked vectors; for an adaptive attacker, with the defense applied."""
        return self._defended if self.threat.adaptive else self.embedder

    @property
    def oracle(self) -> CachedEmbedder:
        """The embedder that the attacker queries: undefended or defended (``defense.hypotheses``)."""
        return self._defended if self.threat.hypotheses == "defended" else self.embedder

    def restored_attack(self, oracle: CachedEmbedder, dimension: int, ckpt_path: str | None = None) -> Attack:
        """The trained attack in eval mode on its device, for vectors of ``dimension``, seeded from the configuration.

        It queries ``oracle``; ``ckpt_path`` is a checkpoint to load instead of the run's last one.
        """
        seed_everything(self.config.seed, workers=True, verbose=False)
        texts = self.training_texts
        self.attack.connect(self.run / layout.ARTIFACTS, oracle, from_checkpoint=True, training_texts=texts)
        self.attack.restore(self.checkpoint(ckpt_path), dimension)
        on_gpu = torch.cuda.is_available() and self.config.trainer.accelerator != "cpu"
        return self.attack.to(torch.device("cuda" if on_gpu else "cpu"))

    def checkpoint(self, ckpt_path: str | None) -> Path | None:
        """The finished checkpoint of the attack; None for an attack that is not trained."""
        return finished_checkpoint(self.run, ckpt_path) if self.attack.trainable else None

    def batch_cache(self, output: Path) -> BatchCache:
        """The test batch cache for these settings, in the directory of the results."""
        return BatchCache(output / layout.TEST_BATCHES, settings_key(self.values, self.embedder.fingerprint))

    def begin_training(self, checkpoint: Path | None, origin: Path | None) -> Any:
        """Connect the attack with its data and its embedder; return Lightning's trainer for it.

        ``checkpoint`` is that of a killed run, which is resumed; ``origin`` the run whose weights are trained further.
        """
        if self.config.defense.get("recall") is not None:
            self._match_strength()
        attack, data = self.attack, self.datamodule
        if self.config.ckpt_path is not None:
            data.expect(data_of(self.run), "put back what it was, or train a new run")
        first = origin if checkpoint is None else None  # a resumed run has its own weights
        if first is not None:
            check_origin(first, self.values["attack"], self.embedder.fingerprint, self.embedder.dimension)
        resumed, artifacts = checkpoint is not None, self.run / layout.ARTIFACTS
        attack.connect(artifacts, data.oracle, from_checkpoint=resumed, origin=first)
        attack.batch_cache = self.batch_cache(self.run)
        configured = [_build(node) for node in self.config.callbacks.values() if node is not None]
        for callback in configured:
            if isinstance(callback, Blending):
                callback.origin = origin
        record, end = RunRecord(self.run, self.embedder), Termination(self.run / layout.CHECKPOINT)
        callbacks = self._callbacks(self.run, data, configured, record, end)
        trainer = self.trainer(self.run, callbacks, **({} if attack.validated else {"limit_val_batches": 0}))
        check_sharding(trainer.strategy, attack)
        return trainer

    def run_trials(self, output: Path, count: int, checkpoint: Path | None, other_data: bool) -> bool:
        """Test the attack of a finished run ``count`` times with different random numbers; return if this is rank 0.

        Args:
            output: The directory of the results.
            count: Number of trials.
            checkpoint: The weights; None for an attack that is not trained.
            other_data: Whether other texts than the run's are tested on.
        """
        files, attack, data = data_of(self.run), self.attack, self.datamodule
        if not other_data:
            data.expect(files, "where it has moved, or the other text is wanted, name it: datamodule.path=<file>")
        progress = [TerminalBar()] if self.config.trainer.get("enable_progress_bar", True) else []
        configured = [*progress, Pace(), *build_test_callbacks(self.config)]
        record = RunRecord(output, self.embedder, training_of(self.run), checkpoint)
        if count > 1:
            attack.begin_trial(0)  # raises before any test if the attack is deterministic
        data.examples("test")  # a mistake in the user's own texts is told before the run's are read again
        training = self.known_data(files)
        callbacks = self._callbacks(output, training, configured, record, Termination())
        oracle, artifacts = (training or data).oracle, self.run / layout.ARTIFACTS
        attack.connect(artifacts, oracle, from_checkpoint=True, training_texts=self.training_texts)
        folders = [layout.trial_folder(output, number) for number in range(count)]
        caches = [self.batch_cache(folder) for folder in folders]
        if is_first():
            layout.start(output, resuming=caches[0].exists(), key="output_dir")
            caches[0].create()
            write_config(output, self.values)
        trainer = self.trainer(output, callbacks, enable_checkpointing=False)
        attack.batch_cache = caches[0]
        trainer.test(attack, data, ckpt_path=checkpoint, verbose=False, weights_only=True)
        rest = [one for one in trainer.callbacks if not isinstance(one, (*_ONCE, Predictions, Testing))]
        tests = [one for one in configured if isinstance(one, Testing)]
        for number in range(1, count):
            attack.begin_trial(number)
            attack.batch_cache = caches[number]
            trainer.callbacks = [*rest, Predictions(folders[number], self.embedder, training, self.models), *tests]
            trainer.test(attack, data, verbose=False)
        if trainer.is_global_zero and not any(cache.wanted for cache in caches):
            for cache in caches:
                cache.clear()
        return bool(trainer.is_global_zero)

    def _callbacks(
        self, output: Path, training: InversionDataModule | None, configured: Sequence[Callback], *last: Callback
    ) -> list[Callback]:
        """All callbacks of a training or a test, in their order; ``last`` come after the results are written.

        Without ``training``, the data module of the attack's training text, there is no baseline and no analysis.
        """
        for callback in configured:
            if isinstance(callback, Testing):
                callback.check(self.attack)
        results = [Predictions(output, self.embedder, training, self.models), *configured]
        if training is not None:
            results.append(TrainingTextAnalyses(output, self.embedder, training, self.models))
        return [*results, *last]

    def trainer(self, output: Path, callbacks: Sequence[Callback], **arguments: Any) -> Any:
        """Lightning's trainer with the configuration's loggers; for a finished run, they write to ``output``."""
        moved = {"save_dir": str(output)} if self.finished and "save_dir" in self.config.logger else {}
        trainer = _build(
            self.config.trainer,
            logger=_build(self.config.logger, **moved) or False,
            plugins=[WholeCheckpoints()],
            default_root_dir=output,
            callbacks=callbacks,
            **arguments,
        )
        for logger in trainer.loggers:
            logger.log_hyperparams(self.values)
        return trainer

    def _match_strength(self) -> None:
        """Set the defense's strength to ``defense.recall`` on the collection that is attacked; keep it, fitted.

        The configuration then has the strength and the recall that was measured.
        """
        source, node = self.datamodule.source, self.config.defense
        if not isinstance(source, CollectionTexts):
            raise InputError(
                f"defense.recall={node.recall}: needs a collection with queries; give datamodule=collection "
                "datamodule.source.path=<directory>, or leave it null"
            )
        data = self.datamodule
        index = Searchable(source.collection.read(), self.embedder, data.max_tokens, data.tokenizer)
        found = matched(self.threat.settings, index, node.recall)
        self.config.defense = {**node, **found.settings, "recall": round(found.recall, 4)}
        for name in ("threat", "values", "datamodule", "_defended"):  # made of the settings before
            self.__dict__.pop(name, None)
        if is_first():
            self._kept.write(found.defense)
        rank_zero_info(
            f"defense: the search finds {found.recall:.3f} of the ten nearest; {found.strength or 'no strength'}"
        )

    @property
    def _kept(self) -> FittedDefense:
        return FittedDefense(self.run / layout.ARTIFACTS, self.threat.settings, self.embedder.fingerprint)

    @cached_property
    def _defended(self) -> DefendedEmbedder:
        if not self.is_fitted:
            raise InputError(
                f"run={self.run}: keeps no state of this defense with these settings; take the defense that it was "
                "trained with, or defense.hypotheses=clean for an attacker who was trained without"
            )
        return DefendedEmbedder(self.embedder, self.threat.defense)


def _build(node: DictConfig, **arguments: Any) -> Any:
    return instantiate(node, _convert_="all", **arguments)
