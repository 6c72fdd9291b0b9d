"""SODA against a sentence embedder with known weights: recovers the wordpieces of a vector.

    attack=soda_embedder embedder=minilm                                # from scratch
    attack=soda_embedder embedder=minilm attack.start_run=<geia run>    # from the predictions of another attack

Uses the same relaxation and steps as against a language model; the vector is the logits of the only observed "token".
This attack is not from a paper; docs/lm_inversion.md has measurements.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.lm_inversion.coordinates import Coordinates
from unembed.attacks.lm_inversion.discrete_steps import relaxed_encoder
from unembed.attacks.lm_inversion.losses import Loss
from unembed.attacks.lm_inversion.method import Rows, State
from unembed.attacks.lm_inversion.soda import SODA
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.observation import WhiteBox
from unembed.runs.stored_attack import attack_of, check_embedder, keep

START = "start"  # among the artifacts


class SodaEmbedder(SODA):
    """White-box inversion of sentence vectors.

    Args:
        loss: See SODA.
        start_run: A finished run on the same embedder, whose predictions initialise the search; None: from scratch.
        start_weight: Initial weight of the start's tokens among all tokens.
        exact_steps: Number of final iterations that are exact steps (see coordinates.py), from the best candidate so
            far; 0: none, ``iterations``: all, from the start itself.
        candidates: Tokens that an exact step tries at its place.
        soda: See SODA; without ``fluency`` and ``draw_std``.
    """

    def __init__(
        self,
        loss: Loss,
        start_run: str | None = None,
        start_weight: Annotated[float, Field(gt=0, lt=1)] = 0.5,
        exact_steps: NonNegativeInt = 0,
        candidates: PositiveInt = 64,
        **soda: Any,
    ) -> None:
        super().__init__(loss, fluency=0.0, draw_std=None, **soda)
        iterations = self.settings.iterations
        if start_run is not None and not self.reparametrize:
            raise ValueError("start_run gives weights of tokens to begin with, and reparametrize=false searches none")
        if exact_steps > iterations:
            raise ValueError(
                f"exact_steps={exact_steps}: more than iterations={iterations}, of which they are the last; give "
                "fewer of them, or more iterations"
            )
        self.start_run, self.start_weight = start_run, start_weight
        self.relaxed_steps = iterations - exact_steps
        self.coordinates = Coordinates(loss, candidates)
        self._held: dict[str, Attack] = {}  # no submodule: it is not trained, moved or saved
        self._starts: dict[int, list[int]] = {}

    def white_box(self, oracle: CachedEmbedder | None) -> WhiteBox:
        """See relaxed_encoder."""
        return relaxed_encoder(oracle)

    def prepare_data(self) -> None:
        """Check before anything is embedded that the start run fits the embedder."""
        super().prepare_data()
        if self.start_run is not None and not self.from_checkpoint:
            assert self.oracle is not None
            key = "attack.start_run"
            check_embedder(Path(self.start_run), key, self.oracle.fingerprint, self.oracle.dimension)

    def prepare(self, texts: object, artifacts: Path) -> None:
        """Copy the run that the search starts from."""
        if self.start_run is not None:
            keep(Path(self.start_run), artifacts / START)

    def build(self, dimension: int) -> None:
        """Read that run."""
        if self.start_run is not None:
            self._held = {START: attack_of(self.artifacts / START, dimension)}

    def all_weights(self) -> dict[str, Tensor]:
        """The weights of the start."""
        held = {name: tensor for attack in self._held.values() for name, tensor in attack.all_weights().items()}
        return super().all_weights() | held

    def query(self, prediction: Prediction) -> str:
        """The text."""
        return prediction.candidates[0]

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Search from what the other attack reads, where there is one; see LanguageModelAttack.invert."""
        model = self.white_box(oracle)
        said: dict[int, str] = {}
        for attack in self._held.values():
            read = attack.to(targets.vectors.device).invert(targets, oracle)
            for place, prediction in zip(targets.index.tolist(), read, strict=True):
                self._starts[place] = model.ids(prediction.candidates[0])
                said[place] = prediction.candidates[0]
        found = super().propose(targets, oracle)
        # Wordpieces lose spacing and capitalisation: if the ids are those of the start, keep its text.
        return [
            replace(prediction, candidates=(said[place],))
            if place in said and list(prediction.tokens or ()) == self._starts[place]
            else prediction
            for place, prediction in zip(targets.index.tolist(), found, strict=True)
        ]

    def begin(self, rows: Rows) -> State:
        """As SODA, plus the weights of the start; where the start is shorter than the input, its end is left open."""
        state = super().begin(rows)
        vocabulary = len(rows.model.input_vectors)
        odds = self.start_weight / (1 - self.start_weight) * (vocabulary - 1)
        for row, example in enumerate(rows.examples):
            ids = torch.tensor(self._starts.get(example, [])[: rows.length], dtype=torch.long)
            state["z"][row, torch.arange(len(ids)), ids] += self.temperature * float(torch.tensor(odds).log())
        return state | self.coordinates.begin(self._candidates(state["z"], rows))

    def passes(self, state: State) -> Tensor:
        """Of the last step, (B,)."""
        return state["spent"]

    def step(self, state: State, rows: Rows) -> Tensor:
        """A step of SODA for inputs that have some of these left, an exact one for the others."""
        exact = rows.iteration > self.relaxed_steps
        found = torch.empty_like(state["ids"])
        for take, chosen in ((self._relaxed_step, ~exact), (self._exact_step, exact)):
            places = chosen.nonzero().squeeze(1)
            if len(places) == len(rows):
                return take(state, rows)
            if len(places):
                part = {name: tensor[places] for name, tensor in state.items()}
                found[places] = take(part, rows[places])
                for name, tensor in part.items():
                    state[name][places] = tensor
        return found

    def _relaxed_step(self, state: State, rows: Rows) -> Tensor:
        state["spent"] = torch.zeros_like(state["spent"]) + super().passes(state)
        return super().step(state, rows)

    def _exact_step(self, state: State, rows: Rows) -> Tensor:
        """The first begins with the best candidate so far, if there is one."""
        taken = rows.iteration - self.relaxed_steps
        fresh = (taken == 1)[:, None] & (rows.best >= 0)
        state["ids"] = torch.where(fresh, rows.best, state["ids"])
        return self.coordinates.step(state, rows, (taken - 1) % rows.length)
