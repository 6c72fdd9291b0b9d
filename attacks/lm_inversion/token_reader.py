"""A reader of states: which tokens is a hidden state, a key or a value likely to be of, whatever precedes it?

    reader = TokenReader.of(model)          # a minute of one core for SmolLM2-135M, without any text
    reader.scores(states, position)         # (n, w) -> (n, V): log-probabilities of the tokens

It is a perceptron of one hidden layer from states to input embeddings, trained with the model alone: on text that the
model writes itself, and on tokens sampled evenly after its prefixes, since texts hold few of the rare ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unembed.embedders.language_model import LanguageModelEmbedder

TOGETHER = 512  # tokens of a forward pass to a layer: more are no faster on a CPU
_TOKENS = 32  # of a text that the model writes
_PREFIXES = (1, 2, 4, 7, 12, 16, 20, 25)  # of some texts, after which sampled tokens are run
_AFTER_EACH, _SAMPLED = 32, 48  # texts and tokens of each
_HIDDEN, _BATCH, _NEGATIVES, _LR = 1024, 512, 2048, 2e-3
_MOST = 6.0  # standard deviations: beyond them a coordinate is cut off
_TEMPERATURE = 10.0  # of the cosine-like products, which have about unit size


@dataclass(frozen=True, slots=True)
class TokenReader:
    """The trained network with its units of states, (w,) each, and normalised input embeddings ``keys`` (V, d).

    Attributes:
        passes: Forward passes that its training data took.
    """

    model: LanguageModelEmbedder
    network: nn.Module
    mean: Tensor
    scale: Tensor
    keys: Tensor
    passes: int

    @classmethod
    def of(
        cls, model: LanguageModelEmbedder, texts: int = 384, steps: int = 400, width: int | None = None, seed: int = 0
    ) -> TokenReader:
        """Train one for the observed layer, on so many texts that the model writes; the same in every process.

        ``width``: the first dimensions of a state that are observed; None: all.
        """
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            states, ids, passes = _pairs(model, texts, generator)
            states = states[:, :width]
            mean, scale = states.mean(dim=0), states.std(dim=0).clamp(min=1e-9)
            keys = model.input_vectors - model.input_vectors.mean(dim=0)
            keys = keys / (keys.square().mean().sqrt() * keys.shape[1] ** 0.5)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = nn.Sequential(
                nn.Linear(states.shape[1], _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, keys.shape[1])
            ).to(states.device)
        reader = cls(model, network, mean, scale, keys, passes)
        reader._train(states, ids, steps, generator)
        network.requires_grad_(False)
        return reader

    @torch.no_grad()
    def scores(self, states: Tensor, position: int) -> Tensor:
        """Log-probabilities (n, V) of the tokens behind states (n, w) of a position."""
        read: Tensor = self.network(self._scaled(unturned(states, position, self.model)))
        return (_TEMPERATURE * read @ self.keys.T).log_softmax(dim=-1)

    def _scaled(self, states: Tensor) -> Tensor:
        return ((states - self.mean) / self.scale).clamp(-_MOST, _MOST)

    @torch.enable_grad()
    def _train(self, states: Tensor, ids: Tensor, steps: int, generator: torch.Generator) -> None:
        """Cross-entropy of the true token among those of the batch and sampled ones."""
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=_LR, weight_decay=0.01)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = _LR * min(1.0, (step + 1) / 20) * (1 - step / steps)
            rows = torch.randint(len(ids), (_BATCH,), generator=generator).to(ids.device)
            others = torch.randint(len(self.keys), (_NEGATIVES,), generator=generator).to(ids.device)
            among, places = torch.unique(torch.cat([ids[rows], others]), return_inverse=True)
            products = _TEMPERATURE * self.network(self._scaled(states[rows])) @ self.keys[among].T
            loss = nn.functional.cross_entropy(products, places[:_BATCH])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def unturned(states: Tensor, position: int, model: LanguageModelEmbedder) -> Tensor:
    """States (..., w) of a position; keys among them without what the position adds to them."""
    cached = model.layout.cached
    if cached == "k":
        return model.blocks.unturned(states, position)
    if cached == "both":
        keys, values = states.chunk(2, dim=-1)
        return torch.cat([model.blocks.unturned(keys, position), values], dim=-1)
    return states


def _pairs(model: LanguageModelEmbedder, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, int]:
    """States (N, w), their tokens (N,), and the forward passes that it took."""
    texts = model.written(count, min(_TOKENS, model.max_tokens))
    blocks, device = model.blocks, model.device
    states, ids = [], []
    for part in torch.split(texts.to(device), max(1, TOGETHER // texts.shape[1])):
        whole = blocks.run(part).observed(model.layout.cached)
        for position in range(1, texts.shape[1]):  # the first state is often unlike all others
            states.append(unturned(whole[:, position], position, model))
            ids.append(part[:, position])
    for position in (place for place in _PREFIXES if place < texts.shape[1]):
        prefixes = texts[torch.randint(len(texts), (_AFTER_EACH,), generator=generator), :position].to(device)
        sampled = torch.randint(model.inputs, (_AFTER_EACH, _SAMPLED), generator=generator).to(device)
        for rows in torch.split(torch.arange(_AFTER_EACH, device=device), TOGETHER // _SAMPLED):
            cache = blocks.run(prefixes[rows]).cache
            after = blocks.run(sampled[rows], cache).observed(model.layout.cached)
            states.append(unturned(after, position, model).flatten(0, 1))
            ids.append(sampled[rows].flatten())
    return torch.cat(states), torch.cat(ids), texts.numel() + sum(map(len, ids))
