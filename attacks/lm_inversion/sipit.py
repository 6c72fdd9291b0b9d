"""SIPIT (Nikolaou et al. 2025, "Language Models are Injective and Hence Invertible"): exact prompts from hidden states.

    attack=sipit embedder=language_model embedder.observe=hidden_state embedder.layer=15 embedder.model=<folder>

Token after token: the state of position t depends on the tokens up to t alone, and different tokens give different
states. So with the recovered prefix in a key-value cache, candidates for position t are run up to the observed layer,
many in one forward pass, until the state of one is the observed one (the paper's algorithm 1). The paper orders them by
gradients; here a reader of states does (token_reader.py), and after a first round in vain the model's own prediction of
the next token as well.

    z = root mean square of (state of the candidate - observed state) / sigma, sigma the error of a stored number

A candidate is accepted where z is at most ``tolerance``, and it is the closest of those that were run, at least 32 for
noisy states. Without one the prediction ends with the closest token. It is verified if at each position exactly one
candidate was within the tolerance.

Against secret permutations (``unknown``): the states of a text out of order are a set, and at each position candidates
are compared with all that are left. Permuted dimensions leave the sorted numbers of a state as they are, which name the
first token of a text; the first states of a batch then give the order, one for all texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.lm_inversion.base import language_model_of
from unembed.attacks.lm_inversion.token_reader import TOGETHER, TokenReader
from unembed.attacks.parts.predictions import Prediction, SearchRecord, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.core.errors import InputError
from unembed.core.examples import written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.hidden_states import CODES, NOTHING, Cache, Precision
from unembed.embedders.language_model import LanguageModelEmbedder

_COMPUTED = 2.0**-16  # error of a float32 state, of its root mean square: sums in another order
_STORED = {"float32": 2.0**-16, "bf16": 2.0**-8, "fp16": 2.0**-11}  # largest error, of a number
_NEAR = 128  # first tokens that a first state is compared with exactly
_NOISY = 32  # candidates at least that a noisy state is compared with: the closest may not be the first within it
_FAR = 1e6  # squared errors beyond it say no more: the first token of a text may be taken for another


def sigma(observed: Tensor, precision: Precision, noise: float = 0.0) -> Tensor:
    """Standard deviation of what storage and computation add to each number of states (..., d)."""
    size = observed.square().mean(dim=-1, keepdim=True).sqrt()
    variance = (_COMPUTED * size).square() + (_STORED.get(precision, 0.0) * observed).square() / 3
    if precision in CODES:  # evenly within half a step
        variance = variance + (observed.abs().amax(dim=-1, keepdim=True) / CODES[precision]).square() / 12
    return (variance + noise**2).sqrt().clamp(min=1e-12)  # the embedding of a padding token may be zero


class Sipit(Attack):
    """Recovers prompts exactly; the arguments are those of configs/attack/sipit.yaml."""

    trainable = False
    reads_training_text = False

    def __init__(
        self,
        order: Literal["nearest", "exhaustive"] = "nearest",
        candidates: PositiveInt = 8,
        most: PositiveInt | None = None,
        tolerance: PositiveFloat = 1.5,
        noise: NonNegativeFloat = 0.0,
        unknown: Literal["none", "positions", "dimensions"] = "none",
        active_targets: PositiveInt = 32,
        reader_texts: PositiveInt = 384,
        reader_steps: PositiveInt = 400,
        refine: Mapping[str, Refiner] | None = None,
    ) -> None:
        super().__init__(refine)
        self.order, self.candidates, self.most = order, candidates, most
        self.tolerance, self.noise, self.active_targets = tolerance, noise, active_targets
        self.unknown = unknown
        self.reader_texts, self.reader_steps = reader_texts, reader_steps
        self._firsts: Tensor | None = None
        self._sorted: Tensor | None = None
        self._reader: TokenReader | None = None

    def prepare_data(self) -> None:
        self.check(language_model_of(self.oracle))
        super().prepare_data()

    def check(self, model: LanguageModelEmbedder) -> None:
        """Check that the states of all positions are observed."""
        if model.layout.last:
            raise InputError("embedder.positions=last: attack=sipit reads every position; take embedder.positions=all")

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        model = language_model_of(self.oracle)
        return [model.ids(text) for text in texts]

    def query(self, prediction: Prediction) -> str:
        assert prediction.tokens is not None
        return written_ids(prediction.tokens)

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        model = language_model_of(oracle)
        self.check(model)
        layout = model.layout
        width, rest = divmod(targets.vectors.shape[1], layout.tokens)
        whole = layout.cached is not None or self.unknown == "dimensions"
        if rest or width > layout.width or (whole and width < layout.width):
            raise InputError(
                f"the targets have shape {tuple(targets.vectors.shape)}; what is observed of {model.name} has width "
                f"{layout.dimension} ({layout})"
            )
        if not targets.vectors.isfinite().all():
            raise InputError("the targets hold NaN or infinity")
        predictions = []
        # A test runs in inference mode, whose tensors take no gradients; the reader is trained.
        with torch.inference_mode(False), torch.no_grad():
            for begin in range(0, len(targets.vectors), self.active_targets):
                rows = targets.vectors[begin : begin + self.active_targets].to(model.device).clone()
                predictions += self._inverted(*model.layout.parse(rows), model)
        return predictions

    def _inverted(self, states: Tensor, lengths: Tensor, model: LanguageModelEmbedder) -> list[Prediction]:
        """Predictions from states (B, T, w) of texts of ``lengths`` (B,)."""
        if self.unknown == "dimensions":
            states = states[..., self._dimensions(states[:, 0], model)]
        count, most = len(states), max(int(lengths.max()), 1)
        left = torch.arange(most, device=states.device) < lengths[:, None]  # states without a token, (B, T)
        ids = torch.zeros(count, most, dtype=torch.long, device=states.device)
        known = torch.zeros_like(lengths)  # tokens until now, the one that ended the search included
        passes, worst = torch.zeros_like(lengths), torch.zeros(count, device=states.device)
        certain = torch.ones(count, dtype=torch.bool, device=states.device)
        rows, cache = torch.arange(count, device=states.device), NOTHING
        for position in range(most):
            goes_on = lengths[rows] > position
            rows, cache = rows[goes_on], cache[goes_on.nonzero().squeeze(1)]
            if not len(rows):
                break
            among = slice(position, position + 1) if self.unknown != "positions" else slice(0, most)
            step = _Step(self, model, states[rows, among], left[rows, among], ids[rows, :position], cache)
            step.run()
            left[rows, step.state + among.start] = False
            passes[rows] += step.passes
            ids[rows, position], worst[rows] = step.best, torch.maximum(worst[rows], step.distance)
            certain[rows] &= step.within == 1
            known[rows] = position + 1
            found = (step.distance <= self.tolerance).nonzero().squeeze(1)
            rows, cache = rows[found], cache[found]
            if model.layout.layer and len(rows) and position + 1 < most:
                last = model.blocks.run(ids[rows, position][:, None], cache).cache
                cache = cache.extended(last, torch.zeros_like(rows))
                passes[rows] += 1
            else:
                cache = Cache(position + 1, (), ())
        verified = (known == lengths) & certain
        predictions = []
        for row in range(count):
            found_ids = ids[row, : max(1, int(known[row]))].tolist()
            record = SearchRecord(bool(verified[row]), int(known[row]), int(passes[row]), float(worst[row]))
            predictions.append(Prediction((model.decode(found_ids),), tokens=tuple(found_ids), search=record))
        return predictions

    def _dimensions(self, observed: Tensor, model: LanguageModelEmbedder) -> Tensor:
        """The places (w,) of the model's dimensions in permuted first states (B, w) of different texts."""
        from scipy.optimize import linear_sum_assignment

        firsts = self.firsts(model)
        if self._sorted is None:
            self._sorted = firsts.sort(dim=1).values
        error = sigma(observed, model.layout.precision, self.noise)
        cost = torch.zeros(observed.shape[1], observed.shape[1], device=observed.device)
        for state, unit in zip(observed, error, strict=True):
            values, order = state.sort()
            token = ((self._sorted - values) / unit[order]).square().mean(dim=1).argmin()
            cost += ((firsts[token][:, None] - state) / unit).square().clamp(max=_FAR)
        _, places = linear_sum_assignment(cost.cpu().numpy())
        return torch.from_numpy(places).to(observed.device)

    def firsts(self, model: LanguageModelEmbedder) -> Tensor:
        """What every token gives as the first of a text, (V, w): all texts share these V forward passes."""
        if self._firsts is None:
            self._firsts = _of_every_token(model)
        return self._firsts

    def reader(self, model: LanguageModelEmbedder, width: int) -> TokenReader:
        if self._reader is None:
            self._reader = TokenReader.of(model, self.reader_texts, self.reader_steps, width)
        return self._reader


class _Step:
    """The search for the token of one position of n texts, whose tokens before it are ``ids`` (n, t).

    Its state is one of ``observed`` (n, M, w) that are ``left`` (n, M).

    Attributes:
        best: The closest token until now, (n,).
        state: The place of the state that it is closest to, (n,).
        distance: Its z, (n,).
        within: Candidates within the tolerance, (n,); of several none is certain.
        passes: Candidates that were run, (n,).
    """

    def __init__(
        self, attack: Sipit, model: LanguageModelEmbedder, observed: Tensor, left: Tensor, ids: Tensor, cache: Cache
    ) -> None:
        self.attack, self.model, self.ids, self.cache = attack, model, ids, cache
        self.observed, self.left = observed, left
        self.sigma = sigma(observed, model.layout.precision, attack.noise)
        self.best = torch.zeros(len(observed), dtype=torch.long, device=observed.device)
        self.state = torch.zeros_like(self.best)
        self.distance = torch.full((len(observed),), torch.inf, device=observed.device)
        self.within = torch.zeros_like(self.best)
        self.passes = torch.zeros_like(self.best)

    def run(self) -> None:
        if not self.ids.shape[1]:
            self._first()
            return
        limit = min(self.attack.most or self.model.inputs, self.model.inputs)
        rows = torch.arange(len(self.best), device=self.best.device)
        noisy = self.model.layout.precision != "float32" or self.attack.noise > 0
        nearest = self.attack.order == "nearest"
        scores = torch.zeros(len(rows), self.model.inputs, device=rows.device)
        if nearest:
            scores.fill_(-torch.inf)
            reader = self.attack.reader(self.model, self.observed.shape[2])
            for place in range(self.observed.shape[1]):
                own = reader.scores(self.observed[:, place], self.ids.shape[1])
                scores = torch.maximum(scores, own.masked_fill(~self.left[:, place, None], -torch.inf))
        tried, size = 0, max(self.attack.candidates, _NOISY * noisy) if nearest else TOGETHER
        while len(rows) and tried < limit:
            size = min(size, limit - tried)
            ids = scores.topk(size, dim=1).indices if nearest else torch.arange(tried, tried + size).to(rows)[None]
            self._try(rows, ids.expand(len(rows), -1))
            unsolved = self.distance[rows] > self.attack.tolerance
            if noisy and not nearest:  # the closest of all tokens
                unsolved[:] = True
            if nearest:
                scores = scores.scatter(1, ids, -torch.inf)[unsolved]
            rows = rows[unsolved]
            if nearest and not tried and len(rows):
                scores = scores + self._predicted(rows)
            tried, size = tried + size, size * 4

    def _predicted(self, rows: Tensor) -> Tensor:
        """The model's own log-probabilities of the next token, (m, V)."""
        ids = self.ids[rows]
        self.passes[rows] += ids.shape[1]
        none = ids.new_zeros(len(rows), 0)
        return self.model.logits(ids, none)[:, -1, : self.model.inputs].log_softmax(dim=-1)

    def _first(self) -> None:
        """Compare all texts with all first tokens, which are run once: exactly with those that are near."""
        table = self.attack.firsts(self.model)[:, : self.observed.shape[2]]
        center = table.mean(dim=0)  # large numbers that all have would cancel in what follows
        keys = table - center
        half = keys.square().sum(dim=1) / 2
        near = torch.full((len(self.best), len(table)), -torch.inf, device=table.device)
        for place in range(self.observed.shape[1]):
            own = self.observed[:, place] - center
            closeness = own @ keys.T - half - own.square().sum(dim=1, keepdim=True) / 2
            near = torch.maximum(near, closeness.masked_fill(~self.left[:, place, None], -torch.inf))
        ids = near.topk(min(_NEAR, len(table)), dim=1).indices
        self._compare(torch.arange(len(ids), device=ids.device), ids, table[ids])

    def _compare(self, rows: Tensor, ids: Tensor, states: Tensor) -> None:
        """Keep the closest of candidates ids (m, C) with states (m, C, w) of texts ``rows``."""
        closest = torch.full(ids.shape, torch.inf, device=ids.device)
        at = torch.zeros_like(ids)
        for place in range(self.observed.shape[1]):
            apart = (states - self.observed[rows, None, place]) / self.sigma[rows, None, place]
            distances = apart.square().mean(dim=-1).sqrt().masked_fill(~self.left[rows, place, None], torch.inf)
            at = torch.where(distances < closest, place, at)
            closest = torch.minimum(distances, closest)
        self.within[rows] += (closest <= self.attack.tolerance).sum(dim=1)
        least, number = closest.min(dim=1)
        better, chosen = least < self.distance[rows], number[:, None]
        self.best[rows] = torch.where(better, ids.gather(1, chosen).squeeze(1), self.best[rows])
        self.state[rows] = torch.where(better, at.gather(1, chosen).squeeze(1), self.state[rows])
        self.distance[rows] = torch.minimum(least, self.distance[rows])

    def _try(self, rows: Tensor, ids: Tensor) -> None:
        """Run candidates ids (m, C) of texts ``rows``, and keep the closest."""
        together = max(1, TOGETHER // ids.shape[1])
        width = self.observed.shape[2]  # a defense may have left the first dimensions alone
        for begin in range(0, len(rows), together):
            some = rows[begin : begin + together]
            cache = self.cache[some]
            for part in torch.split(ids[begin : begin + together], TOGETHER, dim=1):
                states = self.model.blocks.run(part, cache).observed(self.model.layout.cached)
                self._compare(some, part, states[..., :width])
        self.passes[rows] += ids.shape[1]


def _of_every_token(model: LanguageModelEmbedder) -> Tensor:
    """What every token gives as the first of a text, (V, w)."""
    parts = torch.split(torch.arange(model.inputs, device=model.device), TOGETHER // 2)
    return torch.cat([model.blocks.run(part[None], NOTHING).observed(model.layout.cached)[0] for part in parts])
