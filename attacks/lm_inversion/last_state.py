"""attack=last_state: the text behind one state, that of the last position, of a language model's layer.

    state (d,) -> whitened -> MLP -> 8 vectors -> T5 -> 16 texts -> changed in turn, run, and compared with the state

A trained decoder writes texts. The weights of the model are known, so each can be run, and the search changes the
closest ones. A token is too large a step for gradients: those of the state with respect to input vectors predict
nothing of what another token does. So changes come from what the other texts have at that place, and from the language
model itself, and are run. Distances are between whitened states: plain ones are nearly those of the last token alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.lm_inversion.base import language_model_of
from unembed.attacks.lm_inversion.pils import PILS
from unembed.attacks.parts.predictions import Prediction, SearchRecord, Targets
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder

Ids = tuple[int, ...]
FOUND = 1e-4  # squared whitened distance, per dimension, of two runs of one text in float32
LIKELY = 8  # tokens that the language model proposes for a place
POOL = 32  # closest texts, whose tokens and ends are tried


@dataclass
class StateSearch:
    """Changes texts until one has the state; ``candidates`` of them are run in each of ``steps`` rounds.

    ``proposals`` are the decoded texts that it begins with.
    """

    steps: NonNegativeInt = 0
    candidates: PositiveInt = 64
    proposals: PositiveInt = 16


class LastState(PILS):
    """A decoder trained on pairs of last states and texts, and the search from what it writes."""

    def __init__(self, search: StateSearch, **generative: Any) -> None:
        super().__init__(**generative)
        self.search = search
        if search.steps:
            self.decoding.propose(search.proposals)

    def model(self, oracle: CachedEmbedder | None) -> LanguageModelEmbedder:
        """The language model; InputError unless the state of the last position is observed."""
        model = language_model_of(oracle)
        if not model.layout.last:
            raise InputError("embedder.positions=all: attack=last_state reads one state; take embedder.positions=last")
        return model

    @torch.no_grad()
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Decode each target, and search from there."""
        model, decoded = self.model(oracle), self.decoded(targets)
        wanted = self.prefix.whitened(targets.vectors)[:, 0]
        predictions = []
        for candidates, state in zip(decoded, wanted, strict=True):
            texts = [tuple(self.input_ids(ids, model)[: model.max_tokens]) for ids in candidates]
            best, record = self._searched(texts, state, model) if self.search.steps else (texts, None)
            shown = best[: self.decoding.candidates]
            predictions.append(
                Prediction(tuple(model.decode(ids) for ids in shown), tokens=tuple(shown[0]), search=record)
            )
        return predictions

    def _searched(
        self, texts: Sequence[Ids], state: Tensor, model: LanguageModelEmbedder
    ) -> tuple[list[Ids], SearchRecord]:
        """The texts that were run, the closest first."""
        distances: dict[Ids, float] = {}

        def run(some: Sequence[Ids]) -> None:
            for length in sorted(set(map(len, some))):
                own = [ids for ids in some if len(ids) == length]
                states = self.prefix.whitened(model.observe(torch.tensor(own)).to(state.device))[:, 0]
                distances.update(zip(own, (states - state).square().mean(1).tolist(), strict=True))

        run(list(dict.fromkeys(ids for ids in texts if ids)) or [tuple(model.ids(""))])
        steps, exhausted = 0, set[Ids]()
        while steps < self.search.steps and min(distances.values()) > FOUND:
            order = sorted(distances, key=lambda ids: distances[ids])
            best = next((ids for ids in order if ids not in exhausted), None)
            if best is None:
                break
            untried = (ids for ids in changes(best, order, model) if ids not in distances)
            new = list(islice(untried, self.search.candidates))
            if len(new) < self.search.candidates:
                exhausted.add(best)
            run(list(dict.fromkeys(new)))
            steps += 1
        order = sorted(distances, key=lambda ids: distances[ids])
        closest = distances[order[0]]
        return order, SearchRecord(closest <= FOUND, steps, len(distances), closest)


def changes(text: Ids, pool: Sequence[Ids], model: LanguageModelEmbedder) -> Iterator[Ids]:
    """Changes of ``text``, those first that the language model finds likely: tokens put, added or removed at one place,
    and the ends of other texts of the ``pool``, the closest first.

    Tokens are those of other texts there or one place aside, and the likeliest of the language model.
    """
    others = [other for other in pool[:POOL] if other != text]
    log_p = model.next_tokens(torch.tensor(text))  # (n, V): of each place, given those before
    scored: dict[Ids, float] = {}
    for place in range(len(text)):
        options = {other[at] for other in others for at in (place - 1, place, place + 1) if 0 <= at < len(other)}
        options.update(log_p[place].topk(LIKELY).indices.tolist())
        for token in options - {text[place]}:
            score = float(log_p[place, token])
            scored[(*text[:place], token, *text[place + 1 :])] = score
            scored[(*text[:place], token, *text[place:])] = score - float(log_p[place, text[place]].clamp(min=-3))
        scored[text[:place] + text[place + 1 :]] = 0.0
    ends = (
        text[:place] + other[place + shift :]
        for other in others
        for shift in (0, -1, 1)
        for place in range(1, len(text))
        if 0 <= place + shift < len(other)
    )
    ranked = sorted(scored, key=lambda ids: -scored[ids])
    for one, two in zip_longest(ranked, ends):
        yield from (ids for ids in (one, two) if ids is not None and 0 < len(ids) <= model.max_tokens)
