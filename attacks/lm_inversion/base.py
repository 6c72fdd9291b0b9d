"""The base of attacks that search for the input behind a language model's output; they hold the model itself.

    attack=soda embedder=language_model embedder.model=gpt2 datamodule=random_tokens

A target is an observation (embedders/language_model.py); a prediction carries the ids that were found and whether the
model gives exactly what was observed for them. Nothing is trained.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.lm_inversion.losses import Loss
from unembed.attacks.lm_inversion.search import Rows, Search, SearchSettings, State
from unembed.attacks.parts.predictions import Prediction, SearchRecord, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.core.errors import InputError
from unembed.core.examples import written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder, Seen
from unembed.embedders.transformer import WhiteBox

Length = Literal["known", "search"] | PositiveInt


class LanguageModelAttack(Attack):
    """Searches an input for every target; a subclass takes the steps.

    Args:
        loss: How far a candidate's output is from the target's.
        length: Tokens of the inputs: ``known`` of every target (from the data), ``search``: 1, 2, ... until one is
            found, or a number for all of them.
        max_length: The last that ``search`` tries.
        search: See SearchSettings.
    """

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
        """Check before anything is embedded that the observation suffices."""
        self.check(self.model)
        super().prepare_data()

    def check(self, model: WhiteBox) -> None:
        """Check that outputs of ``model`` can be attacked with these settings."""
        if self.objective.reads_logits and not model.observation.sees_logits:
            raise InputError(
                "attack.loss: the loss compares logits, and of the output the text alone is seen (embedder.top_k=0); "
                "take attack/loss=text"
            )
        key, longest = ("length", self.length) if isinstance(self.length, int) else ("max_length", self.max_length)
        if self.length != "known" and longest > model.max_tokens:
            raise InputError(
                f"attack.{key}={longest}: {model.name} has positions for {model.max_tokens} tokens of input"
            )

    def targets(self, batch: dict[str, Tensor]) -> Targets:
        """With the input lengths in tokens, if the attack is given them."""
        if self.length != "known":
            return super().targets(batch)
        examples = self.data.examples("test")
        chosen = [examples[place] for place in batch["index"].tolist()]
        lengths = tuple(len(self.model.ids(e.text) if e.tokens is None else e.tokens) for e in chosen)
        return Targets(batch["vectors"], batch["index"], lengths=lengths)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The language model's own tokens of texts."""
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
            search = Search(self, model, vectors, targets.index.tolist(), self.settings, unfinished)
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
    """The language model behind a cache; InputError if it is none."""
    embedder = None if oracle is None else oracle.embedder
    if not isinstance(embedder, LanguageModelEmbedder):
        kind = "none" if embedder is None else type(embedder).__name__
        raise InputError(
            f"embedder: this attack inverts a language model's output, and {kind} is no language model; take "
            "embedder=language_model embedder.model=<folder or hub name>"
        )
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
