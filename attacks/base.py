"""The contract of every attack, and the training and test steps that they share.

    attack.connect(artifacts=run / "artifacts", oracle=cached_embedder)
    trainer.fit(attack, datamodule)                        # prepare -> load -> build -> training_step ...
    attack.invert(Targets(vectors, index), oracle)         # [Prediction(candidates=("my name is ada",), ...), ...]

An attack never holds the embedder as a submodule: it is not trained, moved or saved with the attack. It returns texts
and knows no metric; predictions are gathered and scored by callbacks/predictions.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from datamodules.inversion import InversionDataModule
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from models.memory import footprint
from run_directory.batch_cache import BatchCache
from run_directory.checkpoints import finished_checkpoint, load_checkpoint
from run_directory.init_from import copy_artifacts
from run_directory.training_state import check_moments, check_state


@dataclass(frozen=True, slots=True)
class Hint:
    """What a baseline that reads no vector is told of a text: its first word, and what was said before it."""

    first: str
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """What the attacker holds: vectors (n, d) and the positions of their examples, (n,), which seed any sampling.

    ``hints`` is None but for a baseline that asks for them (``Attack.hints``): they are parts of the texts themselves.
    ``lengths`` are the tokens of each input, for an attack on a language model that was told them (``Attack.lengths``).
    """

    vectors: Tensor
    index: Tensor
    hints: tuple[Hint, ...] | None = None
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """What a search for the input of one target came to.

    Attributes:
        verified: Whether the best candidate gives all that was seen of the target.
        iterations: Of the search, in all the lengths that it tried: up to the candidate that was verified, or all.
        passes: Forward passes of a single input; a backward pass counts two. Of all restarts together.
        loss: Of the best candidate's own tokens; None where none was computed.
    """

    verified: bool
    iterations: int
    passes: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The texts that an attack proposes for one target, best first.

    Attributes:
        candidates: At least one text.
        kind: ``sequence``, or ``set`` where the order of the words means nothing.
        tokens: The ids that the attack predicted, as ``Attack.tokens`` numbers them, where its text would not be cut
            into these again (pieces in no order, say); None where it would.
        given: What a baseline without vectors was told of the text instead of its vector; None for every attack.
        search: What the search came to, of an attack that searches for the input of a language model.
        partial: A limit of the embedder ended the search for it early: these are the best texts until then.

    Raises:
        InputError: There is no text: no beam survives where weights are so large that scores overflow.
    """

    candidates: tuple[str, ...]
    kind: Literal["sequence", "set"] = "sequence"
    tokens: tuple[int, ...] | None = None
    given: str | None = None
    search: SearchRecord | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InputError("the attack writes no text: its weights give scores that are not finite; train it again")


_PREDICTIONS = TypeAdapter(list[Prediction])


class Attack(LightningModule):
    """Base of all attacks.

    A subclass gives ``prepare`` (what must exist before the model: tokenizer, vocabulary), ``load`` (read that back),
    ``build`` (make the modules), ``encode`` (what the data module stores beside the vectors), ``loss`` and ``invert``.

    Attributes:
        trainable: Whether ``fit`` has anything to do; scripts skip it for attacks without training.
        reads_training_text: Whether ``prepare`` needs the training texts; an attack that only searches does without.
        encodes_ids: Whether ``encode`` is given written-out ids where an example is ids, not the text that shows them.
        dimension: Width of the target vectors, known once the data module is set up.
        target_device: Where the modules will be used; known before ``build``, which makes them on the CPU.
        batch_cache: Test batches that need not be inverted again.
    """

    trainable = True
    reads_training_text = True
    encodes_ids = False

    def __init__(self) -> None:
        super().__init__()
        self.artifacts: Path | None = None
        self.oracle: CachedEmbedder | None = None
        self.dimension = 0
        self.from_checkpoint = False
        self.origin: Path | None = None
        self.batch_cache = BatchCache()
        self.target_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.strict_loading = False  # on_load_checkpoint has compared every name and shape before
        self._built = False
        self._random_states: list[dict[str, Tensor]] = []  # of each rank

    def connect(self, artifacts: Path, oracle: CachedEmbedder | None, *, from_checkpoint: bool = False) -> None:
        """Tell the attack where its artifacts lie and which embedder it may ask.

        ``from_checkpoint`` says that weights will be loaded over the modules, so pretrained ones need not be fetched.
        """
        self.artifacts, self.from_checkpoint = artifacts, from_checkpoint
        self.oracle = oracle

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
        """Make the modules for target vectors of width ``dimension``."""

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Label ids of each text, as the data module stores them."""
        return [[] for _ in texts]

    def tokens(self, texts: Sequence[str]) -> list[list[int]] | None:
        """The attack's own token ids of texts, whole and in order, for figures on its own tokens; None: it has none."""
        return None

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Mean training loss of a batch: vectors (B, d), labels (B, T) padded with -100 -> scalar."""
        raise TypeError(f"{type(self).__name__} has no training loss")

    def batch_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a training or validation batch; for attacks that learn from more than vectors and labels."""
        return self.loss(batch["vectors"], batch["labels"])

    @abstractmethod
    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """One prediction a target, in order. ``oracle`` embeds hypotheses; its queries are counted."""

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint holds of the state dict: all of it, or what cannot be read again from where it came."""
        return self.state_dict()

    def deciding(self) -> dict[str, Tensor]:
        """All weights that decide what is written: those of an attack that this one holds are not in its state dict."""
        return self.state_dict()

    def begin_trial(self, number: int) -> None:
        """Invert with the random numbers of a trial from now on; those of trial 0 are the configuration's.

        Raises:
            InputError: The attack draws none, so that all trials would be one.
        """
        raise InputError(f"trials: {type(self).__name__} draws nothing at random, so all trials would be alike")

    def hints(self, index: Sequence[int]) -> tuple[Hint, ...] | None:
        """Hints for test examples; None for every attack that reads vectors: it never sees a part of a test text."""
        return None

    def lengths(self, index: Sequence[int]) -> tuple[int, ...] | None:
        """Tokens of the inputs of test examples; None for every attack that is not to know them."""
        return None

    def query(self, prediction: Prediction) -> str:
        """What an embedder is asked, to embed the best candidate again."""
        return prediction.candidates[0]

    # -- Lightning ------------------------------------------------------------------------------------------------

    @property
    def data(self) -> InversionDataModule:
        """The data module of the trainer."""
        data: InversionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

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
            if self.trainer.is_global_zero:
                known = self.data.examples("train").texts if self.reads_training_text else []
                self.artifacts.mkdir(parents=True, exist_ok=True)
                self.prepare(known, self.artifacts)
            self.trainer.strategy.barrier("prepare")
        if not self._built:
            with self._reading():
                self.load(self.artifacts)
        self.dimension = self.data.dimension
        self.data.encode, self.data.encodes_ids = self.encode, self.encodes_ids

    def configure_model(self) -> None:
        """Build the modules once; Lightning calls this for every stage."""
        if not self._built:
            with self._reading():
                self.build(self.dimension)
            self._built = True
            if self.origin is not None:
                self._read(finished_checkpoint(self.origin))

    def on_fit_start(self) -> None:
        """Say what is trained, and what memory that takes."""
        rank_zero_info(str(footprint(self, self.trainer.optimizers)))

    def on_train_start(self) -> None:
        """Go on with the random numbers of a checkpoint: a resumed training takes the very steps of an unbroken one.

        Ranks draw different ones: each has its own back where they are as many as before; else they start anew.
        """
        check_moments(self.trainer)
        if len(self._random_states) == self.trainer.world_size:
            own = self._random_states[self.trainer.global_rank]
            torch.set_rng_state(own["cpu"].cpu())
            if self.device.type == "cuda" and "cuda" in own:
                torch.cuda.set_rng_state(own["cuda"].cpu(), self.device)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        """The loss of one batch."""
        loss = self.batch_loss(batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["index"]))
        return loss

    def validation_weight(self, batch: dict[str, Tensor]) -> int:
        """Number of label ids in a batch: the weight of its mean loss."""
        return int((batch["labels"] != -100).sum())

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        """Loss on validation texts, a mean that does not depend on how batches were cut and dealt to ranks."""
        weight = self.validation_weight(batch)
        # An empty batch has no loss, but its rank takes part in the mean of all.
        loss = self.batch_loss(batch) if weight else torch.zeros((), device=batch["vectors"].device)
        self.log("valid/loss", loss, prog_bar=True, batch_size=weight, sync_dist=True)

    def on_test_start(self) -> None:
        """What was finished with other weights is none of this test's."""
        self.batch_cache.open(self.deciding())

    def test_step(self, batch: dict[str, Tensor], batch_index: int) -> dict[str, Any]:
        """Invert one batch, unless that was done before a kill; callbacks/predictions.py collects the result."""
        index = batch["index"]
        rows = index.tolist()
        targets = Targets(batch["vectors"], index, hints=self.hints(rows), lengths=self.lengths(rows))

        def work() -> Any:
            # Training may run in bf16; texts are decoded in the precision of the weights, here as in invert.py.
            with torch.autocast(self.device.type, enabled=False):
                return _PREDICTIONS.dump_python(self.invert(targets, self.oracle), mode="json")

        done = self.batch_cache.once("predictions", batch, self.oracle, work, fits=_are_predictions)
        predictions = _PREDICTIONS.validate_python(done.value)
        found = {"index": index.tolist(), "predictions": predictions}
        return {**found, "queries": done.queries, "seconds": done.seconds, "limit": done.limit}

    # -- outside a trainer ----------------------------------------------------------------------------------------

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
            self._read(checkpoint)
        self.eval()

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

    def _read(self, checkpoint: Path) -> None:
        content = load_checkpoint(checkpoint)
        self.check_weights(content)
        self.load_state_dict(content["state_dict"], strict=self.strict_loading)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the weights of ``kept``, and the state of the random numbers: dropout and noise go on from there."""
        if type(self).kept is not Attack.kept:  # else it is all of them, and gathering them again takes time
            names = self.kept().keys()
            weights = checkpoint["state_dict"].items()
            checkpoint["state_dict"] = {name: tensor for name, tensor in weights if name in names}
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.device)
        checkpoint["random_states"] = of_every_rank(own)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the random numbers, and compare the weights with the modules before they are loaded.

        Raises:
            InputError: See check_weights and check_state.
        """
        if self._trainer is not None:
            check_state(checkpoint, self._trainer)
        self._random_states = checkpoint.get("random_states", [])
        if "state_dict" in checkpoint:  # a strategy that cuts the model into shards has loaded the weights itself
            self.check_weights(checkpoint)

    def check_weights(self, checkpoint: dict[str, Any]) -> None:
        """Compare the weights of a checkpoint with those that it should hold.

        Raises:
            InputError: Missing or unexpected weights, or other shapes; the first one is named.
        """
        found = {name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.kept().items()}
        if found != wanted:
            name = next(name for name in sorted(found | wanted) if found.get(name) != wanted.get(name))
            raise InputError(
                "the weights of the checkpoint do not fit the attack and the vectors: "
                f"{name} is {found.get(name, 'missing')} in the file, {wanted.get(name, 'unknown')} here; were the "
                "attack, the embedder or the defense changed since?"
            )


def _are_predictions(value: Any) -> bool:
    """Whether JSON is the predictions of some targets: a file of the test batch cache may be somebody else's."""
    try:
        _PREDICTIONS.validate_python(value)
    except (ValidationError, InputError):  # InputError: one without a candidate
        return False
    return True


def of_every_rank(value: Any) -> list[Any]:
    """``value`` of every rank; on one process just this one. All ranks call this together."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values
