"""The base of attacks that search for the input behind a language model's output; they hold the model itself.

    attack=soda embedder=language_model embedder.model=gpt2 datamodule=random_tokens

A target is an observation (embedders/language_model.py); a prediction carries the ids that were found and whether the
model gives exactly what was observed for them. Nothing is trained.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.lm_inversion.search import Rows, Search, SearchSettings, State
from unembed.attacks.parts.predictions import Prediction, SearchRecord, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.core.errors import InputError
from unembed.core.examples import written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.outputs import Observation, Seen
from unembed.embedders.transformer import WhiteBox

Kind = TypeVar("Kind")
Length = Literal["known", "search"] | PositiveInt


class LanguageModelAttack(Attack):
    """Searches an input for every target; a subclass takes the steps. ``search``: see SearchSettings."""

    trainable = False
    reads_training_text = False

    def __init__(
        self,
        loss: Loss,
        length: Length = "known",
        max_length: PositiveInt = 10,
        refine: Mapping[str, Refiner] | None = None,
        **search: Any,
    ) -> None:
        super().__init__(refine)
        self.objective = loss
        self.length, self.max_length = length, max_length
        self.settings = SearchSettings(**search)

    @abstractmethod
    def passes(self, state: State) -> int | Tensor:
        """Forward passes that the last step took, for every input alike or (B,); a backward pass counts two."""

    @abstractmethod
    def begin(self, rows: Rows) -> State:
        """The state of new inputs, tensors of first dimension B."""

    @abstractmethod
    def step(self, state: State, rows: Rows) -> Tensor:
        """Take a step, in place or by replacing tensors of ``state``; returns the candidates, ids (B, n)."""

    def distance(self, model: WhiteBox, seen: Seen, logits: Tensor) -> Tensor:
        """Loss (B,) of candidates with logits (B, m, V), which ranks candidates that are not exact."""
        return self.objective(model.observation, seen, logits)

    @property
    def model(self) -> WhiteBox:
        return self.white_box(self.oracle)

    def white_box(self, oracle: CachedEmbedder | None) -> WhiteBox:
        """The model behind a cache; InputError if it is none that the attack can invert."""
        return language_model_of(oracle)

    def prepare_data(self) -> None:
        self.check(self.model)
        super().prepare_data()

    def check(self, model: WhiteBox) -> None:
        """Check that outputs of ``model`` can be attacked with these settings."""
        if self.objective.reads_logits and not model.observation.sees_logits:
            raise InputError(
                "attack.loss: the loss compares logits, and of the output the text alone is seen "
                "(embedder.observe=words); take attack/loss=text"
            )
        key, longest = ("length", self.length) if isinstance(self.length, int) else ("max_length", self.max_length)
        if self.length != "known" and longest > model.max_tokens:
            raise InputError(
                f"attack.{key}={longest}: {model.name} has positions for {model.max_tokens} tokens of input"
            )

    def targets(self, batch: dict[str, Tensor]) -> Targets:
        if self.length != "known":
            return super().targets(batch)
        examples = self.data.examples("test")
        chosen = [examples[place] for place in batch["index"].tolist()]
        lengths = tuple(len(self.model.ids(e.text) if e.tokens is None else e.tokens) for e in chosen)
        return Targets(batch["vectors"], batch["index"], lengths=lengths)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.model.ids(text) for text in texts]

    def query(self, prediction: Prediction) -> str:
        assert prediction.tokens is not None
        return written_ids(prediction.tokens)

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Search an input for each target; an interrupted search resumes from its snapshot."""
        model = self.white_box(oracle)
        # A test runs in inference mode, whose tensors take no gradients.
        with torch.inference_mode(False), torch.enable_grad():
            vectors = checked(targets.vectors, model).clone()
            stages = self._stages(targets, model)
            part = {"index": targets.index, "vectors": vectors}
            unfinished = self.batch_cache.search_state("search", part, repr(stages))
            search = Search(self, model, vectors, targets.index.tolist(), unfinished)
            found = search.run(stages)
        predictions = []
        for one in found:
            assert one.ids is not None
            record = SearchRecord(one.verified, one.iterations, one.passes, one.loss)
            predictions.append(Prediction((model.decode(one.ids),), tokens=tuple(one.ids), search=record))
        return predictions

    def _stages(self, targets: Targets, model: WhiteBox) -> list[tuple[int, list[int]]]:
        """The lengths to try, in order, and the targets that each is tried for."""
        self.check(model)
        everyone = list(range(len(targets.vectors)))
        if self.length == "search":
            return [(length, everyone) for length in range(1, self.max_length + 1)]
        if self.length != "known":
            return [(self.length, everyone)]
        if targets.lengths is None:
            raise InputError(
                "attack.length=known: the lengths of these inputs are unknown; give attack.length=<number>, or "
                "attack.length=search attack.max_length=<number> to try one length after another"
            )
        if max(targets.lengths, default=0) > model.max_tokens:
            raise InputError(
                f"an input of {max(targets.lengths)} tokens: {model.name} has positions for {model.max_tokens}"
            )
        return [
            (length, [place for place in everyone if targets.lengths[place] == length])
            for length in sorted(set(targets.lengths))
        ]


def language_model_of(oracle: CachedEmbedder | None) -> LanguageModelEmbedder:
    reason = "this attack inverts a language model's output, and {} is no language model"
    return embedder_of(oracle, LanguageModelEmbedder, f"{reason}; take embedder=language_model embedder.model=<name>")


def embedder_of(oracle: CachedEmbedder | None, kind: type[Kind], message: str) -> Kind:
    """The embedder behind a cache; if it is not of this kind, an InputError with its class in the ``message``."""
    embedder = None if oracle is None else oracle.embedder
    if not isinstance(embedder, kind):
        raise InputError("embedder: " + message.format("none" if embedder is None else type(embedder).__name__))
    return embedder


def checked(vectors: Tensor, model: WhiteBox) -> Tensor:
    """Observations (N, width) that the model could have given; InputError of another width, NaN or infinity."""
    width = model.observation.dimension
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise InputError(
            f"the targets have shape {tuple(vectors.shape)}; what is observed of {model.name} has width {width} "
            f"({model.observation})"
        )
    finite = vectors.isfinite().all(dim=1)
    if not finite.all():
        raise InputError(f"target {int((~finite).nonzero()[0])} holds NaN or infinity")
    return vectors


# -- losses between the outputs of candidates and targets, one value a target (soda_skapars2025, section 3.1)


class Loss(Protocol):
    """A loss of outputs; ``reads_logits``: the target's logits must be seen."""

    @property
    def reads_logits(self) -> bool: ...

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        """Loss of each target, (B,), at least 0, from logits (B, m, V) of candidates followed by its target's text."""
        ...

    def values(self, seen: Seen) -> float:
        """How many values a target's loss is the sum of; times ``scale`` where the loss has one."""
        ...


@dataclass
class LogitLoss:
    """Huber loss between the observed logits and the candidate's at the same ids (equation 12).

    Each target has its own: with a mean over the batch too, as in the authors' code, Adam's epsilon would make updates
    depend on the batch size.
    """

    delta: PositiveFloat = 1.0
    reduction: Literal["mean", "sum"] = "mean"

    reads_logits = True

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        assert seen.logits is not None
        own = observation.of_seen(seen, logits)
        rows = torch.nn.functional.huber_loss(own, seen.logits, reduction="none", delta=self.delta).flatten(1)
        return rows.mean(dim=1) if self.reduction == "mean" else rows.sum(dim=1)

    def values(self, seen: Seen) -> float:
        assert seen.logits is not None
        return 1 if self.reduction == "mean" else seen.logits[0].numel()


@dataclass
class TextLoss:
    """Sum over output tokens of the margin by which each is not the most probable token (equation 11)."""

    log: bool = False

    reads_logits = False

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        values = logits if self.log else logits.softmax(dim=-1)
        wanted = values.gather(-1, seen.ids.unsqueeze(-1)).squeeze(-1)
        return (values.amax(dim=-1) - wanted).sum(dim=1)

    def values(self, seen: Seen) -> float:
        return seen.ids.shape[1]


@dataclass
class CosineLoss:
    """One minus the cosine of two vectors, of a sentence embedder's outputs.

    Without ``scale``, gradients with respect to 30,000 token weights are small relative to Adam's epsilon.
    """

    scale: PositiveFloat = 1000.0

    reads_logits = True

    def __call__(self, observation: Observation, seen: Seen, logits: Tensor) -> Tensor:
        assert seen.logits is not None
        cosines = torch.nn.functional.cosine_similarity(logits, seen.logits, dim=-1)
        return self.scale * (1 - cosines).sum(dim=1)

    def values(self, seen: Seen) -> float:
        return self.scale * seen.ids.shape[1]
