"""SODA against a sentence embedder with known weights: recovers the wordpieces of a vector.

    attack=soda_embedder embedder=minilm                                # from scratch
    attack=soda_embedder embedder=minilm attack.start_run=<geia run>    # from the predictions of another attack

Uses the same relaxation and steps as against a language model; the vector is the logits of the only observed "token".
The last iterations are exact steps, see Coordinates. This attack is not from a paper; docs/lm_inversion.md has
measurements.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.lm_inversion.base import Loss
from unembed.attacks.lm_inversion.discrete_steps import relaxed_encoder
from unembed.attacks.lm_inversion.gcg import best_of, distinct, losses_of, promising_tokens
from unembed.attacks.lm_inversion.search import Rows, State
from unembed.attacks.lm_inversion.soda import SODA
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.transformer import WhiteBox

_INPUTS_AT_ONCE = 128  # of one pass: gradients keep all activations


class Coordinates:
    """Exact steps: at one place after another, the tokens that gradients point to are run, and the best input is kept.

        "i have two cats" -> 64 tokens for the second place, the second exchanged with or moved to each other place
                          -> run them all -> the best, also if it is none of them; then the third place

    A relaxed search settles where mixtures of tokens come close to the target and no input does; these steps know
    inputs only. The gradient at the token that stands at a place says little of others, as it lies in a valley of its
    own: it is taken half-way between the mean of all tokens and each token of the input, and averaged. (On
    all-MiniLM-L6-v2, one place of a chat sentence wrong: the right token was among the first 64 of 30,522 in 43 % of
    the places by the first, in 79 % by the second, of three tokens.)

    Where a whole round of n steps has changed nothing, two places of the best input so far get other tokens.
    """

    def __init__(self, loss: Loss, candidates: int) -> None:
        self.loss, self.candidates = loss, candidates

    def begin(self, ids: Tensor) -> State:
        """The state of inputs (B, n)."""
        return {"ids": ids, "unchanged": torch.zeros_like(ids[:, 0]), "spent": torch.zeros_like(ids[:, 0])}

    def step(self, state: State, rows: Rows, places: Tensor) -> Tensor:
        """One step for all inputs, each at its place of ``places`` (B,); the best of what was tried, (B, n)."""
        before = state["ids"]
        tokens = promising_tokens(self._gradient(before, rows, places), self.candidates)
        candidates, owners = distinct(neighbours(before, places, tokens))
        found = best_of(candidates, owners, losses_of(candidates, owners, rows, self.loss, _INPUTS_AT_ONCE))
        state["spent"] = owners.bincount(minlength=len(rows)) + 3 * rows.length
        same = (found == before).all(dim=1)
        unchanged = torch.where(same, state["unchanged"] + 1, 0)
        settled = unchanged >= rows.length
        state["ids"] = found.clone()
        for row in settled.nonzero().squeeze(1).tolist():
            state["ids"][row] = self._disturbed(rows, row, int(places[row]), tokens[row])
        state["unchanged"] = torch.where(settled, 0, unchanged)
        return found

    def _gradient(self, ids: Tensor, rows: Rows, places: Tensor) -> Tensor:
        """Mean gradient of the loss in the one-hot token at each input's place, (B, inputs)."""
        size, length = ids.shape
        table = rows.model.input_vectors
        every = torch.arange(size, device=ids.device)
        points = table[ids][:, None].repeat(1, length, 1, 1)  # (B, points, n, width)
        points[every, :, places] = (table[ids] + table.mean(dim=0)) / 2
        owners = every.repeat_interleave(length)
        slopes = []
        parts = (torch.split(whole, _INPUTS_AT_ONCE) for whole in (points.flatten(0, 1), owners))
        for part, of in zip(*parts, strict=True):
            part.requires_grad_()
            seen = rows.seen[of]
            logits = rows.model.relaxed(part, seen.continuation, seen.ids.shape[1])
            loss = self.loss(rows.model.observation, seen, logits).sum()
            (gradient,) = torch.autograd.grad(loss, part)
            slopes.append(gradient[torch.arange(len(of)), places[of]])
        return torch.cat(slopes).view(size, length, -1).mean(dim=1) @ table.T

    def _disturbed(self, rows: Rows, row: int, place: int, tokens: Tensor) -> Tensor:
        """The best input so far with other tokens at a given and at a sampled position."""
        generator = rows.generator(row, int(rows.iteration[row]))
        ids = rows.best[row].clone()
        sampled = torch.randint(len(tokens), (2,), generator=generator)
        ids[place] = tokens[sampled[0]]
        ids[int(torch.randint(rows.length, (1,), generator=generator))] = tokens[sampled[1]]
        return ids


def neighbours(ids: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
    """Inputs that differ at a place: (B, n), (B,), (B, k) -> (B, k + 2n, n).

    Another token stands there, or the one that does has changed places with another, or was moved to another place;
    the input itself is among them.
    """
    size, length = ids.shape
    every = torch.arange(size, device=ids.device)
    other = ids[:, None].repeat(1, tokens.shape[1], 1)
    other[every, :, places] = tokens
    orders = torch.stack([_orders(length, place, ids.device) for place in range(length)])[places]  # (B, 2n, n)
    return torch.cat([other, ids[every[:, None, None], orders]], dim=1)


def _orders(length: int, place: int, device: torch.device) -> Tensor:
    """Orders of n places in which one was exchanged with each, and moved to each, (2n, n)."""
    orders = []
    for to in range(length):
        exchanged = list(range(length))
        exchanged[place], exchanged[to] = to, place
        moved = [at for at in range(length) if at != place]
        moved.insert(to, place)
        orders += [exchanged, moved]
    return torch.tensor(orders, device=device)


START = "start"  # attack.start_run


class SodaEmbedder(SODA):
    """White-box inversion of sentence vectors; the exact steps begin with the best candidate so far, or the start."""

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
        self.start_weight = start_weight
        self.relaxed_steps = iterations - exact_steps
        self.coordinates = Coordinates(loss, candidates)
        self.runs = {} if start_run is None else {START: Path(start_run)}
        self._starts: dict[int, list[int]] = {}

    def white_box(self, oracle: CachedEmbedder | None) -> WhiteBox:
        return relaxed_encoder(oracle)

    def query(self, prediction: Prediction) -> str:
        return prediction.candidates[0]

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Search from what the other attack reads, where there is one; see LanguageModelAttack.invert."""
        model = self.white_box(oracle)
        said: dict[int, str] = {}
        for attack in self.frozen.values():
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
