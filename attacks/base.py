"""The contract of every attack, and the training and test steps that they share.

    attack.connect(artifacts=run / "artifacts", oracle=cached_embedder)
    trainer.fit(attack, datamodule)                        # prepare -> load -> build -> training_step ...
    attack.invert(Targets(vectors, index), oracle)         # propose -> refine: [Prediction(("my name is ada",)), ...]

An attack never holds the embedder as a submodule: it is not trained, moved or saved with the attack. It returns texts
and knows no metric; predictions are gathered and scored by callbacks/predictions.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from attacks.checkpointed import Checkpointed
from datamodules.inversion import InversionDataModule
from datamodules.token_ids import IGNORED
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from models.memory import footprint
from models.predictions import Hint, Prediction, Targets
from models.refining import Refiner, Refiners
from run_directory.batch_cache import BatchCache, BatchResult
from run_directory.checkpoints import finished_checkpoint
from run_directory.init_from import copy_artifacts

_PREDICTIONS = TypeAdapter(list[Prediction])


class Attack(Checkpointed):
    """Base of all attacks.

    A subclass gives ``prepare`` (what must exist before the model: tokenizer, vocabulary), ``load`` (read that back),
    ``build`` (make the modules), ``encode`` (what the data module stores beside the vectors), ``loss`` and ``propose``.

    Args:
        refine: What improves the proposed texts, by name (configs/attack/refine); for attacks that write texts.

    Attributes:
        trainable: Whether ``fit`` has anything to do; scripts skip it for attacks without training.
        reads_training_text: Whether ``prepare`` needs the training texts; an attack that only searches does without.
        encodes_ids: Whether ``encode`` is given written-out ids where an example is ids, not the text that shows them.
        dimension: Of the target vectors, known once the data module is set up.
        target_device: Where the modules will be used; known before ``build``, which makes them on the CPU.
        batch_cache: Test batches that need not be inverted again.
    """

    trainable = True
    reads_training_text = True
    encodes_ids = False

    def __init__(self, refine: Mapping[str, Refiner] | None = None) -> None:
        super().__init__()
        self.refiners = Refiners(refine)
        self.artifacts: Path | None = None
        self.oracle: CachedEmbedder | None = None
        self.dimension = 0
        self.from_checkpoint = False
        self.origin: Path | None = None
        self.batch_cache = BatchCache()
        self.target_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._training_texts: Callable[[], Sequence[str]] = tuple
        self._built = False

    def connect(
        self,
        artifacts: Path,
        oracle: CachedEmbedder | None,
        *,
        from_checkpoint: bool = False,
        training_texts: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Say where the artifacts lie, and which embedder may be asked.

        Args:
            artifacts: What ``prepare`` writes.
            oracle: Embeds hypotheses.
            from_checkpoint: Whether weights will be loaded over the modules, so pretrained ones need not be fetched.
            training_texts: Those of a finished run, for refiners that it was trained without; none where not known.
        """
        self.artifacts, self.oracle, self.from_checkpoint = artifacts, oracle, from_checkpoint
        self._training_texts = training_texts

    def begin_from(self, run: Path) -> None:
        """Start training from the artifacts and weights of a finished run instead of anew; after ``connect``."""
        self.origin, self.from_checkpoint = run, True

    # -- what a subclass gives ------------------------------------------------------------------------------------

    def check_embedder(self, embedder: CachedEmbedder) -> None:
        """Whether what it gives can be attacked; before it is asked for anything.

        Raises:
            InputError: It cannot.
        """

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Write what the model needs from the training ``texts`` into ``artifacts``; called on global rank 0 only."""

    def load(self, artifacts: Path) -> None:
        """Read back what ``prepare`` wrote; called on every rank, and by evaluation."""

    def build(self, dimension: int) -> None:
        """Make the modules for target vectors of this dimension."""

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Label ids of each text, as the data module stores them."""
        return [[] for _ in texts]

    def tokens(self, texts: Sequence[str]) -> list[list[int]] | None:
        """The attack's own token ids of texts, whole and in order, for metrics on its own tokens; None: it has none."""
        return None

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Mean training loss of a batch: vectors (B, d), labels (B, T) padded with -100 -> scalar."""
        raise TypeError(f"{type(self).__name__} has no training loss")

    def batch_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a training or validation batch; for attacks that learn from more than vectors and labels."""
        return self.loss(batch["vectors"], batch["labels"])

    @abstractmethod
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """One prediction a target, in order, before any refinement; ``oracle`` embeds hypotheses and counts them."""

    def all_weights(self) -> dict[str, Tensor]:
        """All weights that its texts depend on: also those of attacks and refiners inside this one."""
        return self.state_dict() | self.refiners.all_weights()

    def begin_trial(self, number: int) -> None:
        """Invert with the random numbers of a trial from now on; those of trial 0 are the configuration's.

        Raises:
            InputError: The attack samples nothing, so that all trials would be one.
        """
        raise InputError(f"trials: {type(self).__name__} samples nothing at random, so all trials would be alike")

    def hints(self, index: Sequence[int]) -> tuple[Hint, ...] | None:
        """Hints for test examples; None for every attack that reads vectors: it never sees a part of a test text."""
        return None

    def lengths(self, index: Sequence[int]) -> tuple[int, ...] | None:
        """Tokens of the inputs of test examples; None for every attack that is not to know them."""
        return None

    def query(self, prediction: Prediction) -> str:
        """What an embedder is asked, to embed the best candidate again."""
        return prediction.candidates[0]

    # -- inversion ------------------------------------------------------------------------------------------------

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """One prediction a target, in order: what the attack proposes, refined.

        Raises:
            InputError: See check_refining.
        """
        self.check_refining(targets.vectors.shape[1], oracle)
        return self.refiners.refine(targets, self.propose(targets, oracle), oracle)

    def check_refining(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        """Whether targets of this dimension can be refined as the configuration asks.

        Raises:
            InputError: See Refiner.check.
        """
        self.refiners.check(dimension, oracle)

    def restore(self, checkpoint: Path | None, dimension: int) -> None:
        """Build the attack for ``invert`` without a trainer: artifacts, modules, then the weights of ``checkpoint``.

        Raises:
            InputError: See on_load_checkpoint.
        """
        if self.artifacts is None:
            raise RuntimeError("call Attack.connect before restore")
        with self._reading():
            self.load(self.artifacts)
        self.dimension = dimension
        self.configure_model()
        if checkpoint is not None:
            self.load_weights(checkpoint)
        self.eval()
        self.refiners.load(self.artifacts, dimension, self._training_texts)

    # -- Lightning ------------------------------------------------------------------------------------------------

    @property
    def data(self) -> InversionDataModule:
        """The data module of the trainer."""
        data: InversionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

    def prepare_data(self) -> None:
        """Before anything is embedded: can the refiners do their work?"""
        self.check_refining(self.data.dimension, self.oracle)

    def setup(self, stage: str) -> None:
        """Prepare once (global rank 0, then a barrier), load everywhere, hand ``encode`` to the data module."""
        if self.artifacts is None:
            raise RuntimeError("call Attack.connect before fitting or testing")
        self.target_device = self.trainer.strategy.root_device
        if self.origin is not None and stage == "fit":
            if self.trainer.is_global_zero:
                copy_artifacts(self.origin, self.artifacts)
            self.trainer.strategy.barrier("copied")
        if not self.from_checkpoint and (stage == "fit" or not self.trainable):
            if self.reads_training_text:
                self.data.setup("fit")  # texts and vectors to prepare from, also where nothing is fitted
            self._training_texts = lambda: self.data.examples("train").texts
            if self.trainer.is_global_zero:
                self.artifacts.mkdir(parents=True, exist_ok=True)
                self.prepare(self._training_texts() if self.reads_training_text else [], self.artifacts)
                self.refiners.prepare(self._training_texts, self.artifacts)
            self.trainer.strategy.barrier("prepare")
        if not self._built:
            with self._reading():
                self.load(self.artifacts)
        self.dimension = self.data.dimension
        self.data.encode, self.data.encodes_ids = self.encode, self.encodes_ids
        if stage == "test":
            self.refiners.load(self.artifacts, self.dimension, self._training_texts)

    def configure_model(self) -> None:
        """Build the modules once; Lightning calls this for every stage."""
        if not self._built:
            with self._reading():
                self.build(self.dimension)
            self._built = True
            if self.origin is not None:
                self.load_weights(finished_checkpoint(self.origin))

    def on_fit_start(self) -> None:
        """Say what is trained, and what memory that takes."""
        rank_zero_info(str(footprint(self, self.trainer.optimizers)))

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        """The loss of one batch."""
        loss = self.batch_loss(batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["index"]))
        return loss

    def validation_weight(self, batch: dict[str, Tensor]) -> int:
        """Number of label ids in a batch: the weight of its mean loss."""
        return int((batch["labels"] != IGNORED).sum())

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        """Loss on validation texts, a mean that does not depend on how batches were cut and dealt to ranks."""
        weight = self.validation_weight(batch)
        # An empty batch has no loss, but its rank takes part in the mean of all.
        loss = self.batch_loss(batch) if weight else torch.zeros((), device=batch["vectors"].device)
        self.log("valid/loss", loss, prog_bar=True, batch_size=weight, sync_dist=True)

    def on_test_start(self) -> None:
        """What was finished with other weights is none of this test's."""
        self.batch_cache.open(self.all_weights())

    def test_step(self, batch: dict[str, Tensor], batch_index: int) -> dict[str, Any]:
        """Invert one batch; callbacks/predictions.py collects the result."""
        rows = batch["index"].tolist()
        targets = Targets(batch["vectors"], batch["index"], hints=self.hints(rows), lengths=self.lengths(rows))
        predictions, done = self.invert_once(targets, self.oracle, "predictions")
        found = {"index": rows, "predictions": predictions}
        return {**found, "queries": done.queries, "seconds": done.seconds, "limit": done.limit}

    def invert_once(
        self, targets: Targets, oracle: CachedEmbedder | None, work: str
    ) -> tuple[list[Prediction], BatchResult]:
        """Invert a batch, unless ``batch_cache`` has it from a process that was killed.

        ``work`` names the batches that belong together; the result tells what they cost.
        """

        def invert() -> Any:
            # Training may run in bf16; texts are decoded in the precision of the weights.
            with torch.autocast(self.device.type, enabled=False):
                return _PREDICTIONS.dump_python(self.invert(targets, oracle), mode="json")

        batch = {"index": targets.index, "vectors": targets.vectors}
        done = self.batch_cache.once(work, batch, oracle, invert, fits=_are_predictions)
        return _PREDICTIONS.validate_python(done.value), done

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Within it, artifacts are read: in those of a finished run, what is missing or damaged is one message."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # transformers and tokenizers raise whatever they trip over in a damaged file
            if not self.from_checkpoint:
                raise
            reason = (str(error).strip().splitlines() or [""])[0]
            raise InputError(
                f"{self.artifacts}: the attack cannot be rebuilt from what lies there: {type(error).__name__}: {reason}"
            ) from error


def _are_predictions(value: Any) -> bool:
    """Whether JSON is the predictions of some targets: a file of the test batch cache may be somebody else's."""
    try:
        _PREDICTIONS.validate_python(value)
    except (ValidationError, InputError):  # InputError: one without a candidate
        return False
    return True
