"""A configuration as objects: embedder, defense, data, attack and trainer, built in one place for all scripts.

    session = Session(config, run_dir)          # of a training: nothing is in the directory yet
    session = Session.open(run, config)         # of a finished run; config is the run's, amended by the command line
    attack = session.restored_attack(session.oracle, session.dimension)
    attack.invert(targets, session.oracle)

Each object is built when it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datamodules.defended import DefendedEmbedder, FittedDefense
from datamodules.inversion import InversionDataModule
from datamodules.sources.data_files import DataFile
from defenses.base import Fitted
from defenses.threat import Threat, threat_of
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from run_directory.batch_cache import BatchCache
from run_directory.checkpoints import finished_checkpoint
from run_directory.config_file import read_config
from run_directory.keys import settings_key
from run_directory.layout import ARTIFACTS, TEST_BATCHES
from scoring.models import ScoringModels, scoring_models

if TYPE_CHECKING:
    from lightning import Callback
    from omegaconf import DictConfig

    from attacks.base import Attack


class Session:
    """The objects that a configuration names, for one run directory.

    Args:
        config: What is built; checked and resolved, as ``configuration.compose`` and ``configuration.on_run`` give it.
        run: The run directory, which holds the artifacts of the attack.
        trained: The configuration that the run was trained with; None for a training.
    """

    def __init__(self, config: DictConfig, run: Path, trained: DictConfig | None = None) -> None:
        self.config, self.run = config, run
        self.finished = trained is not None
        self.trained = config if trained is None else trained

    @classmethod
    def open(cls, run: Path, config: DictConfig) -> Session:
        """The session of a finished run, with its configuration as ``configuration.on_run`` has amended it."""
        return cls(config, run, read_config(run))

    @cached_property
    def values(self) -> dict[str, Any]:
        """The configuration as plain values."""
        from omegaconf import OmegaConf

        values = OmegaConf.to_container(self.config, resolve=True, throw_on_missing=True)
        assert isinstance(values, dict)
        return {str(name): value for name, value in values.items()}

    @cached_property
    def embedder(self) -> CachedEmbedder:
        """The black box behind its cache."""
        return CachedEmbedder(_build(self.config.embedder), Path(self.config.cache_dir))

    @cached_property
    def threat(self) -> Threat:
        """The defense, and what the attacker knows of it."""
        return threat_of(self.config.defense)

    @cached_property
    def models(self) -> ScoringModels:
        """What scoring asks besides the embedder; each model has been tried."""
        return scoring_models(self.config)

    def check(self) -> None:
        """Find out before anything else is made whether scoring's models load and the defense has its secrets.

        Raises:
            InputError: One does not, or one is missing.
        """
        _ = self.models, self.threat

    @cached_property
    def attack(self) -> Attack:
        """The attack, neither connected nor restored."""
        attack: Attack = _build(self.config.attack)
        return attack

    @cached_property
    def datamodule(self) -> InversionDataModule:
        """The data module of the configuration, connected."""
        datamodule: InversionDataModule = _build(self.config.datamodule)
        self._connect(datamodule)
        return datamodule

    def training_data(self, files: Sequence[DataFile] | None) -> InversionDataModule:
        """The data module of the texts that the run was trained on, not connected.

        Args:
            files: What they were read from then; None where that was not noted.

        Raises:
            InputError: The files have changed.
        """
        datamodule: InversionDataModule = _build(self.trained.datamodule)
        datamodule.expect(files, "put back what it was")
        return datamodule

    def known_data(self, files: Sequence[DataFile] | None) -> InversionDataModule | None:
        """What the attack of a finished run knew, connected, and the defense fitted; arguments as ``training_data``.

        None, with a warning, where the texts cannot be read any more.

        Raises:
            InputError: The defense is to be fitted to them.
        """
        from lightning.pytorch.utilities import rank_zero_warn

        try:
            training = self.training_data(files)
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
        """What the attack of a finished run knew; none, with a warning, where the texts cannot be read any more."""
        from lightning.pytorch.utilities import rank_zero_warn

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
        )

    @cached_property
    def is_fitted(self) -> bool:
        """Whether the defense can be applied: it estimates nothing, or the run keeps what it has estimated."""
        return not isinstance(self.threat.defense, Fitted) or self._kept.restore(self.threat.defense)

    @property
    def dimension(self) -> int:
        """Of the vectors that the attack reads."""
        return self.threat.dimension(self.embedder.dimension)

    @property
    def service(self) -> CachedEmbedder:
        """What made the vectors that the attack reads: the embedder, behind the defense of an adaptive attacker."""
        return self._defended if self.threat.adaptive else self.embedder

    @property
    def oracle(self) -> CachedEmbedder:
        """What answers the attacker's own texts: the embedder, or the defended service (``defense.hypotheses``)."""
        return self._defended if self.threat.hypotheses == "defended" else self.embedder

    def restored_attack(self, oracle: CachedEmbedder, dimension: int, ckpt_path: str | None = None) -> Attack:
        """The trained attack in eval mode on its device, with random numbers from the seed of the configuration.

        Args:
            oracle: Answers the attack.
            dimension: Of the vectors that it reads.
            ckpt_path: Another checkpoint than the run's last.

        Raises:
            InputError: There is no such checkpoint, or its weights do not fit.
        """
        import torch
        from lightning import seed_everything

        seed_everything(self.config.seed, workers=True, verbose=False)
        texts = self.training_texts
        self.attack.connect(self.run / ARTIFACTS, oracle, from_checkpoint=True, training_texts=texts)
        self.attack.restore(self.checkpoint(ckpt_path), dimension)
        on_gpu = torch.cuda.is_available() and self.config.trainer.accelerator != "cpu"
        return self.attack.to(torch.device("cuda" if on_gpu else "cpu"))

    def checkpoint(self, ckpt_path: str | None) -> Path | None:
        """The finished checkpoint of the attack; None where it has nothing to train.

        Raises:
            InputError: There is none, or it is damaged.
        """
        return finished_checkpoint(self.run, ckpt_path) if self.attack.trainable else None

    def batch_cache(self, output: Path) -> BatchCache:
        """Keeps the test batches of these settings that are done, in the directory of the results."""
        folder, former = output / TEST_BATCHES, output / "finished_batches"  # as it was called before version 0.2
        if former.is_dir() and not folder.exists():
            former.rename(folder)
        return BatchCache(folder, settings_key(self.values, self.embedder.fingerprint))

    def trainer(self, output: Path, callbacks: Sequence[Callback], **arguments: Any) -> Any:
        """Lightning's trainer with the configuration's loggers; on a finished run, these write into ``output``."""
        from hydra.utils import instantiate

        from run_directory.checkpoint_io import WholeCheckpoints

        beside = {"save_dir": str(output)} if self.finished and "save_dir" in self.config.logger else {}
        return instantiate(
            self.config.trainer,
            _convert_="all",
            logger=_build(self.config.logger, **beside) or False,
            plugins=[WholeCheckpoints()],
            default_root_dir=output,
            callbacks=callbacks,
            **arguments,
        )

    @property
    def _kept(self) -> FittedDefense:
        return FittedDefense(self.run / ARTIFACTS, self.threat.settings, self.embedder.fingerprint)

    @cached_property
    def _defended(self) -> DefendedEmbedder:
        if not self.is_fitted:
            raise InputError(
                f"run={self.run}: keeps no state of this defense with these settings; take the defense that it was "
                "trained with, or defense.hypotheses=clean for an attacker who was trained without"
            )
        return DefendedEmbedder(self.embedder, self.threat.defense)


def _build(node: DictConfig, **arguments: Any) -> Any:
    from hydra.utils import instantiate

    return instantiate(node, _convert_="all", **arguments)
