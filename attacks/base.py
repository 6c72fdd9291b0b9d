"""The base class of all attacks: training and test steps, checkpoints.

    attack.connect(artifacts=run / "artifacts", oracle=cached_embedder)
    trainer.fit(attack, datamodule)                        # prepare -> build -> training_step ...
    attack.invert(Targets(vectors, index), oracle)         # propose -> refine: [Prediction(("my name is ada",)), ...]

An attack never holds the embedder as a submodule: it is not trained, moved or saved with the attack. It returns texts
and knows no metric; predictions are gathered and scored by callbacks/results.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from pydantic import TypeAdapter
from torch import Tensor

from unembed.attacks.parts.batch_cache import BatchCache, BatchResult
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.writing import Writer
from unembed.attacks.refine.refining import Refiner, Refiners
from unembed.core.errors import InputError
from unembed.core.matmul import use_onednn
from unembed.core.ranks import of_every_rank
from unembed.datamodules.arrow_examples import IGNORED
from unembed.datamodules.inversion import InversionDataModule
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.checkpoints import finished_checkpoint, load_checkpoint, numbers_of_callbacks
from unembed.runs.stored_attack import attack_of, check_embedder, copy_artifacts, keep

_PREDICTIONS = TypeAdapter(list[Prediction])


class Attack(LightningModule):
    """Base of all attacks.

    A subclass implements ``prepare`` (write tokenizer and vocabulary), ``build`` (read them, create the modules),
    ``encode`` (labels that the data module stores), ``loss`` and ``propose``.

    Args:
        refine: Refiners of the predicted texts, by name (configs/attack/refine).

    Attributes:
        trainable: Whether the attack is trained; scripts skip ``fit`` otherwise.
        exportable: Whether a run can be shipped: it holds nothing of the texts that the attacker knew.
        validated: Whether the loss on validation texts is measured in training; otherwise they are not embedded.
        reads_training_text: Whether ``prepare`` needs the training texts.
        asks_embedder: Whether it cannot do without queries: ``propose`` corrects its texts with the embedder.
        encodes_ids: Whether ``encode`` gets written-out token ids for examples that consist of ids.
        dimension: Dimension of the target vectors, known once the data module is set up.
        target_device: Device on which the modules will be used; known before ``build``, which creates them on the CPU.
        batch_cache: Stored predictions of finished test batches.
        runs: Finished runs that the attack is made of: ``attack.<name>_run`` by name. Its own run holds copies.
        frozen: Their attacks, by the same names. No submodules: they are not trained, moved or saved.
    """

    trainable = True
    exportable = True
    validated = True
    reads_training_text = True
    asks_embedder = False
    encodes_ids = False
    artifacts: Path  # set by connect

    def __init__(self, refine: Mapping[str, Refiner] | None = None) -> None:
        super().__init__()
        self.strict_loading = False  # on_load_checkpoint has compared every name and shape before
        self.refiners = Refiners(refine)
        self.oracle: CachedEmbedder | None = None
        self.dimension = 0
        self.from_checkpoint = False
        self.origin: Path | None = None
        self.batch_cache = BatchCache()
        self.runs: dict[str, Path] = {}
        self.frozen: dict[str, Attack] = {}
        self.target_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._training_texts: Callable[[], Sequence[str]] = tuple
        self._built = False
        self._random_states: list[dict[str, Tensor]] = []  # of each rank, in a checkpoint

    def connect(
        self,
        artifacts: Path,
        oracle: CachedEmbedder | None,
        *,
        from_checkpoint: bool = False,
        origin: Path | None = None,
        training_texts: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Set the artifacts and the embedder; called before anything else.

        Args:
            artifacts: Folder that ``prepare`` writes to.
            oracle: Embeds hypotheses.
            from_checkpoint: Whether a checkpoint will be loaded, so that pretrained weights are not needed.
            origin: A finished run whose artifacts and weights the training starts from.
            training_texts: Training texts of a finished run, for refiners added after training; empty if unknown.
        """
        self.artifacts, self.oracle, self.origin = artifacts, oracle, origin
        self.from_checkpoint = from_checkpoint or origin is not None
        self._training_texts = training_texts

    # -- what a subclass gives ------------------------------------------------------------------------------------

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Write tokenizer, vocabulary and the like for ``texts`` to ``artifacts``; called on global rank 0 only."""
        for name, run in self.runs.items():
            keep(run, artifacts / name)

    def build(self, dimension: int) -> None:
        """Read ``self.artifacts``, and make the modules for target vectors of this dimension; on every rank."""
        self.frozen = {name: attack_of(self.artifacts / name, dimension) for name in self.runs}

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Label ids of each text, as the data module stores them."""
        return [[] for _ in texts]

    def tokens(self, texts: Sequence[str]) -> list[list[int]] | None:
        """Token ids of full texts by the attack's tokenizer, for metrics on its tokens; None without a tokenizer."""
        return None

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Mean training loss of a batch: vectors (B, d), labels (B, T) padded with -100 -> scalar."""
        raise TypeError(f"{type(self).__name__} has no training loss")

    def batch_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a training or validation batch; for attacks that learn from more than vectors and labels."""
        return self.loss(batch["vectors"], batch["labels"])

    def validation_weight(self, batch: dict[str, Tensor]) -> int:
        """Number of label ids in a batch: the weight of its mean loss."""
        return int((batch["labels"] != IGNORED).sum())

    def targets(self, batch: dict[str, Tensor]) -> Targets:
        """What ``invert`` gets of a test batch."""
        return Targets(batch["vectors"], batch["index"])

    @property
    def writer(self) -> Writer | None:
        """What writes texts for a refiner; None: the attack has no decoder."""
        return None

    @property
    def at_once(self) -> int:
        """Targets that ``invert`` gets together at the most."""
        return min((refiner.at_once for refiner in self.refiners.named.values()), default=Refiner.at_once)

    @abstractmethod
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """One prediction a target, in order, before any refinement; ``oracle`` embeds hypotheses and counts them."""

    def check_inputs(self) -> None:
        """Check that data, embedder and other runs are what the attack needs, before it is prepared."""
        for name, run in self.runs.items():
            assert self.oracle is not None
            check_embedder(run, f"attack.{name}_run", self.oracle.source.fingerprint, self.oracle.source.dimension)

    def check_refining(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        self.refiners.check(dimension, oracle, self.writer)

    def begin_trial(self, number: int) -> None:
        """Set the trial, which selects the random numbers of ``invert``; trial 0 uses the configuration's seed."""
        raise InputError(f"trials: {type(self).__name__} samples nothing at random, so all trials would be alike")

    def query(self, prediction: Prediction) -> str:
        return prediction.candidates[0]

    def all_weights(self) -> dict[str, Tensor]:
        """All weights that its predictions depend on, including those of frozen attacks and refiners."""
        frozen = ((name, attack.all_weights()) for name, attack in self.frozen.items())
        weights = {f"{name}.{key}": tensor for name, own in frozen for key, tensor in own.items()}
        return weights | self.state_dict() | self.refiners.all_weights()

    # -- inversion ------------------------------------------------------------------------------------------------

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """One prediction a target, in order: what the attack proposes, refined."""
        self.check_refining(targets.vectors.shape[1], oracle)
        return self.refiners.refine(targets, self.propose(targets, oracle), oracle)

    def invert_once(
        self, targets: Targets, oracle: CachedEmbedder | None, work: str
    ) -> tuple[list[Prediction], BatchResult]:
        """Invert a batch, unless ``batch_cache`` has it from an interrupted test.

        ``work`` names a group of batches; the result includes their cost.
        """

        def invert() -> Any:
            # Training may run in bf16; texts are decoded in the precision of the weights.
            with torch.autocast(self.device.type, enabled=False):
                return _PREDICTIONS.dump_python(self.invert(targets, oracle), mode="json")

        batch = {"index": targets.index, "vectors": targets.vectors}
        result = self.batch_cache.once(work, batch, oracle, invert)
        return _PREDICTIONS.validate_python(result.value), result

    def restore(self, checkpoint: Path | None, dimension: int) -> None:
        """Build the attack for ``invert`` without a trainer: artifacts, modules, then the weights of ``checkpoint``."""
        self.dimension = dimension
        self.configure_model()
        if checkpoint is not None:
            self._load_weights(checkpoint)
        self.eval()
        self.refiners.load(self.artifacts, dimension, self._training_texts, self.oracle)

    # -- Lightning ------------------------------------------------------------------------------------------------

    @property
    def data(self) -> InversionDataModule:
        data: InversionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

    def prepare_data(self) -> None:
        if not self.from_checkpoint:
            self.check_inputs()
        self.check_refining(self.data.dimension, self.oracle)

    def setup(self, stage: str) -> None:
        """Prepare once (global rank 0, then a barrier), and hand ``encode`` to the data module."""
        strategy, first = self.trainer.strategy, self.trainer.is_global_zero
        self.target_device = strategy.root_device
        if self.origin is not None and stage == "fit":
            if first:
                copy_artifacts(self.origin, self.artifacts)
            strategy.barrier("copied")
        if not self.from_checkpoint and (stage == "fit" or not self.trainable):
            if self.reads_training_text:
                self.data.setup("fit")  # texts and vectors to prepare from, also where nothing is fitted
            self._training_texts = lambda: self.data.examples("train").texts
            if first:
                self.artifacts.mkdir(parents=True, exist_ok=True)
                self.prepare(self._training_texts() if self.reads_training_text else [], self.artifacts)
                self.refiners.prepare(self._training_texts, self.artifacts, self.oracle)
            strategy.barrier("prepare")
        self.dimension = self.data.dimension
        self.data.encode, self.data.encodes_ids = self.encode, self.encodes_ids
        if stage == "test":
            self.data.eval_batch_size = min(self.data.eval_batch_size, self.at_once)
            self.refiners.load(self.artifacts, self.dimension, self._training_texts, self.oracle)

    def configure_model(self) -> None:
        """Build the modules once; Lightning calls this for every stage."""
        if not self._built:
            with self._reading():
                self.build(self.dimension)
            use_onednn(self)
            self._built = True
            if self.origin is not None:
                self._load_weights(finished_checkpoint(self.origin))

    def on_fit_start(self) -> None:
        # bitsandbytes packs two 4-bit weights into a byte; nothing else is a parameter of bytes.
        counts = [(p.numel() * (2 if p.dtype == torch.uint8 else 1), p.requires_grad) for p in self.parameters()]
        total, trained = sum(count for count, _ in counts), sum(count for count, is_trained in counts if is_trained)
        rank_zero_info(f"parameters: {total:,}, trained {trained:,} ({100 * trained / max(1, total):.3g} %)")

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        loss = self.batch_loss(batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["index"]))
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        """Mean loss on validation texts, independent of batch sizes and ranks."""
        weight = self.validation_weight(batch)
        # An empty batch has no loss, but its rank takes part in the mean of all.
        loss = self.batch_loss(batch) if weight else torch.zeros((), device=batch["vectors"].device)
        self.log("valid/loss", loss, prog_bar=True, batch_size=weight, sync_dist=True)

    def on_test_start(self) -> None:
        """Discard cached test batches of other weights."""
        self.batch_cache.open(self.all_weights())

    def test_step(self, batch: dict[str, Tensor], batch_index: int) -> dict[str, Any]:
        """Invert one batch; callbacks/results.py collects the result."""
        predictions, result = self.invert_once(self.targets(batch), self.oracle, "predictions")
        cost = {"queries": result.queries, "seconds": result.seconds, "limit": result.limit}
        return {"index": batch["index"].tolist(), "predictions": predictions, **cost}

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint_weights(self) -> dict[str, Tensor]:
        """The part of the state dict stored in checkpoints: everything, or without published pretrained weights."""
        return self.state_dict()

    def on_train_start(self) -> None:
        """Resume with the random numbers of a checkpoint.

        Each rank restores its own state if the number of ranks is unchanged; otherwise all are seeded anew.
        """
        if len(self._random_states) == self.trainer.world_size:
            own = self._random_states[self.trainer.global_rank]
            torch.set_rng_state(own["cpu"].cpu())
            if self.device.type == "cuda" and "cuda" in own:
                torch.cuda.set_rng_state(own["cuda"].cpu(), self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store ``checkpoint_weights``, and the state of the random generators (dropout, noise)."""
        if type(self).checkpoint_weights is not Attack.checkpoint_weights:  # gathering all again takes time
            names = self.checkpoint_weights().keys()
            weights = checkpoint["state_dict"].items()
            checkpoint["state_dict"] = {name: tensor for name, tensor in weights if name in names}
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.device)
        checkpoint["random_states"] = of_every_rank(own)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the random generators, and check the weights against the modules before they are loaded."""
        # A strategy that cuts the model into shards has read the file itself, and may have loaded the weights.
        checkpoint["callbacks"] = numbers_of_callbacks(checkpoint.get("callbacks"))
        self._random_states = checkpoint.get("random_states", [])
        if "state_dict" in checkpoint:
            self.check_weights(checkpoint)

    def check_weights(self, checkpoint: dict[str, Any]) -> None:
        """Compare the weights of a checkpoint with the expected ones; the first that differs is named."""
        found = {name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.checkpoint_weights().items()}
        if found != wanted:
            name = next(name for name in sorted(found | wanted) if found.get(name) != wanted.get(name))
            raise InputError(
                "the weights of the checkpoint do not fit the attack and the vectors: "
                f"{name} is {found.get(name, 'missing')} in the file, {wanted.get(name, 'unknown')} here; were the "
                "attack, the embedder or the defense changed since?"
            )

    def _load_weights(self, path: Path) -> None:
        content = load_checkpoint(path)
        self.check_weights(content)
        self.load_state_dict(content["state_dict"], strict=self.strict_loading)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns errors about missing or damaged artifacts into an InputError."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # transformers and tokenizers raise arbitrary errors for damaged files
            if not self.from_checkpoint:
                raise
            reason = (str(error).strip().splitlines() or [""])[0]
            raise InputError(
                f"{self.artifacts}: the attack cannot be rebuilt from what lies there: {type(error).__name__}: {reason}"
            ) from error
