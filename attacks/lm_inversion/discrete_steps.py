"""Discrete steps as a refiner: the weights of the embedder are known, and tokens of a text are exchanged and moved.

    python evaluate.py run=<dir> attack/refine=[discrete_steps] attack.refine.discrete_steps.steps=48

The steps are those that end a search of attack=soda_embedder (coordinates.py); here they begin at the text of any
attack, and keep its number of tokens. They take gradients, and no queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from attacks.lm_inversion.active_targets import SearchSettings
from attacks.lm_inversion.coordinates import Coordinates
from attacks.lm_inversion.losses import Loss
from attacks.lm_inversion.method import Rows, State
from attacks.lm_inversion.search import Search
from embedders.cache.cached import CachedEmbedder
from embedders.observation import Seen
from embedders.transformer import TransformerEmbedder
from embedders.white_box import RelaxedEncoder, WhiteBox
from errors import InputError
from models.predictions import Prediction, Targets
from models.refining import Refiner
from run_directory.search_state import SearchState


class DiscreteSteps(Refiner):
    """Tries other tokens, and other orders, at one place of the best candidate after another.

    Args:
        loss: How far a text's vector is from the target.
        steps: Of each target; n of them go once through a text of n tokens.
        candidates: Tokens that a step tries at its place.
        active_targets: Targets that take a step together.
        seed: Of the places that are disturbed once no step changes anything.
    """

    def __init__(
        self,
        loss: Loss,
        steps: PositiveInt = 24,
        candidates: PositiveInt = 48,
        active_targets: PositiveInt = 32,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.loss, self.coordinates = loss, Coordinates(loss, candidates)
        self.settings = SearchSettings(steps, active_targets, seed=seed)

    def check(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        """See Refiner.

        Raises:
            InputError: The embedder is none whose gradients can be taken.
        """
        super().check(dimension, oracle)
        relaxed_encoder(oracle)

    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        """See Refiner."""
        model = relaxed_encoder(oracle)
        starts = [model.ids(prediction.candidates[0]) for prediction in predictions]
        lengths = sorted({len(ids) for ids in starts if 0 < len(ids) <= model.max_tokens})
        stages = [(length, [row for row, ids in enumerate(starts) if len(ids) == length]) for length in lengths]
        with torch.inference_mode(False), torch.enable_grad():  # a test runs in inference mode
            vectors, index = targets.vectors.clone(), targets.index.tolist()
            method = _FromTexts(self.coordinates, self.loss, dict(zip(index, starts, strict=True)))
            found = Search(method, model, vectors, index, self.settings, SearchState(None, "")).run(stages)
        return [
            before if one.ids is None or one.ids == start else before.refined((model.decode(one.ids),))
            for before, start, one in zip(predictions, starts, found, strict=True)
        ]


class _FromTexts:
    """The method (method.Method) of a search that begins at the ids of each example."""

    def __init__(self, coordinates: Coordinates, loss: Loss, starts: Mapping[int, list[int]]) -> None:
        self.coordinates, self.loss, self.starts = coordinates, loss, starts

    def passes(self, state: State) -> Tensor:
        return state["spent"]

    def begin(self, rows: Rows) -> State:
        ids = torch.tensor([self.starts[example] for example in rows.examples], device=rows.model.device)
        return self.coordinates.begin(ids)

    def step(self, state: State, rows: Rows) -> Tensor:
        return self.coordinates.step(state, rows, (rows.iteration - 1) % rows.length)

    def distance(self, model: WhiteBox, seen: Seen, logits: Tensor) -> Tensor:
        return self.loss(model.observation, seen, logits)


def relaxed_encoder(oracle: CachedEmbedder | None) -> RelaxedEncoder:
    """The encoder behind a cache.

    Raises:
        InputError: It is none whose gradients can be taken.
    """
    embedder = None if oracle is None else oracle.embedder
    if not isinstance(embedder, TransformerEmbedder):
        kind = "none" if embedder is None else type(embedder).__name__
        raise InputError(
            f"embedder: gradients are taken through the embedder, and {kind} gives none; take embedder=minilm, or "
            "embedder=transformer embedder.model=<folder or hub name>"
        )
    return RelaxedEncoder(embedder)
