"""A small network that predicts the vector of a text from the vectors of its words.

    surrogate = fit(training_texts, oracle, steps=1000)
    surrogate.predict([("ada", "went", "to", "oslo", ".")], lexicon.vectors_of)   # (1, d)

It learns from the texts that the attack is trained on and their vectors, so it costs no queries but those of single
words. Lexicon search uses differences of predictions: how a change of a text, word order included, moves its vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from pydantic import NonNegativeInt, PositiveInt
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional

from unembed.attacks.parts.optimizers import MuonAdamW, schedule
from unembed.attacks.refine.lexicon.language import Units
from unembed.attacks.refine.lexicon.words import unit_vectors
from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder, Purpose
from unembed.runs.checkpoints import load_tensors

Words = Sequence[str]
VectorsOf = Callable[[Sequence[str]], Tensor]

_WIDTH = 160
_HEAD = 64  # numbers of an attention head
_PLACES = 64  # later units have the position vector of the last
_SCALE = 4.0  # word vectors have small coordinates
_BATCH, _GROUP = 256, 8  # texts of a step; steps whose texts are sorted by length together
_TEXTS = 200_000  # texts that are learned from at the most
_ROWS = 256  # texts that are predicted at a time


class Surrogate(nn.Module):
    """Two convolutions over neighbouring words with a look at the whole text between them, and a weighted mean.

    ``attention`` is a number of transformer layers in their place, for the time and the texts that a GPU has.
    """

    mean: Tensor

    def __init__(self, dimension: PositiveInt, width: PositiveInt = _WIDTH, attention: NonNegativeInt = 0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dimension))  # of the vectors of words
        self.inputs = nn.Linear(dimension, width)
        self.positions = nn.Parameter(0.02 * torch.randn(_PLACES, width))
        convolutions = [_Block(width, _neighbors, 3), _Block(width, _whole, 2), _Block(width, _neighbors, 3)]
        self.blocks = nn.ModuleList([_Attention(width) for _ in range(attention)] or convolutions)
        self.norm = nn.LayerNorm(width)
        self.weight = nn.Linear(width, 1)
        self.output = nn.Linear(width, dimension)
        self.word = nn.Linear(dimension, dimension)  # what a word adds wherever it stands
        with torch.no_grad():
            self.word.weight.copy_(torch.eye(dimension))

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Unit vectors (B, d) of texts, from the vectors of their words (B, n, d) and a mask (B, n), 0 for padding."""
        words = words - self.mean
        hidden = self.hidden(words, torch.arange(words.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, mask)
        hidden = self.norm(hidden)
        share = self.shares(hidden) * mask
        share = share / share.sum(1, keepdim=True).clamp_min(1e-6)
        pooled = self.output(torch.einsum("bn,bnh->bh", share, hidden))
        vectors: Tensor = pooled + self.word(torch.einsum("bn,bnd->bd", share, words))
        return functional.normalize(vectors, dim=1)

    def hidden(self, words: Tensor, places: Tensor) -> Tensor:
        """What the first block reads of words (..., d), less their mean, at places (...)."""
        hidden: Tensor = _SCALE * self.inputs(words) + self.positions[places.clamp_max(_PLACES - 1)]
        return hidden

    def shares(self, normed: Tensor) -> Tensor:
        """The weights of words (...) in the mean, from what the last norm gives (..., width), not yet of sum 1."""
        return functional.softplus(self.weight(normed).squeeze(-1))

    @torch.no_grad()
    def predict(self, texts: Sequence[Words], vectors_of: VectorsOf) -> Tensor:
        """Unit vectors (B, d) of texts given as lower-case words."""
        table, found = _Table(texts, vectors_of), torch.zeros(len(texts), len(self.mean))
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for begin in range(0, len(order), _ROWS):  # what a block needs of memory is used again by the next
            rows = order[begin : begin + _ROWS]
            found[rows] = self(*_padded([texts[row] for row in rows], table))
        return found

    def save(self, path: Path) -> None:
        """In half precision: an attacker that is shipped holds it."""
        halves = {name: tensor.half() for name, tensor in self.state_dict().items()}
        write_file(path, lambda file: torch.save(halves, file))

    @classmethod
    def read(cls, path: Path, dimension: int) -> Surrogate:
        weights = load_tensors(path, "the weights of a surrogate")
        attention = sum(name.endswith(".states.weight") for name in weights)
        surrogate = cls(dimension, len(weights["inputs.weight"]), attention)
        surrogate.load_state_dict(weights)
        return surrogate.eval()


class _Block(nn.Module):
    """Adds to each word what a view of the text, ``views`` words wide, says from its place."""

    def __init__(self, width: int, view: Callable[[Tensor, Tensor], Tensor], views: int) -> None:
        super().__init__()
        self.view = view
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(views * width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        nn.init.zeros_(self.outer.weight)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        view = self.view(self.norm(hidden) * mask[..., None], mask)
        changed: Tensor = hidden + self.outer(functional.gelu(self.inner(view)))
        return changed


class _Attention(nn.Module):
    """A transformer layer: each word looks at all words of the text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.states = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.second = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)
        for last in (self.mixed, self.outer):
            nn.init.zeros_(last.weight)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.states_of(hidden).movedim(-2, 1).unbind(-2)  # (B, heads, n, size) each
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None] > 0)
        return self.finished(hidden, mixed.transpose(1, 2))

    def states_of(self, hidden: Tensor) -> Tensor:
        """Queries, keys and values (..., 3, heads, size) of hidden states (..., width)."""
        states: Tensor = self.states(self.norm(hidden))
        return states.view(*states.shape[:-1], 3, -1, _HEAD)

    def finished(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output, from what attention gives (..., heads, size)."""
        hidden = hidden + self.mixed(mixed.flatten(-2))
        changed: Tensor = hidden + self.outer(functional.gelu(self.inner(self.second(hidden))))
        return changed


def _neighbors(words: Tensor, _: Tensor) -> Tensor:
    padded = functional.pad(words, (0, 0, 1, 1))
    return torch.cat([padded[:, :-2], words, padded[:, 2:]], dim=-1)


def _whole(words: Tensor, mask: Tensor) -> Tensor:
    """Each word and the sum of all words, (B, n, 2 * width)."""
    whole = words.sum(1, keepdim=True) / mask.sum(1).clamp_min(1).sqrt()[:, None, None]
    return torch.cat([words, whole.expand_as(words)], dim=-1)


class _Table:
    """Vectors of the distinct words of some texts."""

    def __init__(self, texts: Sequence[Words], vectors_of: VectorsOf) -> None:
        self.rows = {word: row for row, word in enumerate(dict.fromkeys(word for text in texts for word in text))}
        self.vectors = vectors_of(list(self.rows))


def _padded(texts: Sequence[Words], table: _Table) -> tuple[Tensor, Tensor]:
    longest = max(1, max(map(len, texts)))
    rows = torch.tensor([[table.rows[word] for word in text] + [0] * (longest - len(text)) for text in texts])
    mask = torch.arange(longest)[None] < torch.tensor([len(text) for text in texts])[:, None]
    words = table.vectors[rows] if len(table.rows) else table.vectors.new_zeros(*rows.shape, table.vectors.shape[1])
    return words, mask.float()


@torch.inference_mode(False)
@torch.enable_grad()
def fit(
    texts: Sequence[str], oracle: CachedEmbedder, steps: PositiveInt, key: str = "steps", seed: int = 0
) -> Surrogate:
    """Train a surrogate for ``steps`` steps of 256 texts; of many training texts, at most 200,000 are taken.

    ``key`` names the setting in messages.

    Raises:
        InputError: There is no text, or a limit of the embedder is reached.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(texts), generator=generator)[: min(_TEXTS, _BATCH * steps)].tolist()
    units = {place: Units.of(texts[place]).words for place in chosen}
    places = [place for place in chosen if units[place]]
    if not places:
        raise InputError(
            f"{key}={steps}: learns from the training text, and none is known: train the attack with this refiner"
        )
    words = [units[place] for place in places]

    def embedded(texts: Sequence[str], purpose: Purpose) -> Tensor:
        why = "Words of the training text are embedded, each once"
        return unit_vectors(texts, oracle, purpose, key=key, why=why)

    table = _Table(words, lambda distinct: embedded(distinct, "lexicon"))
    targets = embedded([texts[place] for place in places], "training")

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        surrogate = Surrogate(oracle.dimension)
    surrogate.mean.copy_(table.vectors.mean(0))
    optimizer = MuonAdamW(muon_lr=0.02, adamw_lr=2e-3).build(surrogate)
    rates = [group["lr"] for group in optimizer.param_groups]
    batches = _batches(words, steps, generator)
    for step, rows in enumerate(track(batches, "training the surrogate")):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule(step / steps, step, 100)
        found = surrogate(*_padded([words[row] for row in rows], table))
        loss = 1 - (found * targets[rows]).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return surrogate.eval()


def _batches(words: Sequence[Words], steps: int, generator: torch.Generator) -> list[list[int]]:
    """Rows of each step; every text once before any comes again, texts of a batch of similar length."""
    wanted = _BATCH * steps
    order = torch.cat(
        [torch.randperm(len(words), generator=generator) for _ in range(-(-wanted // len(words)))]
    ).tolist()
    batches: list[list[int]] = []
    for begin in range(0, wanted, _BATCH * _GROUP):
        group = sorted(order[begin : min(wanted, begin + _BATCH * _GROUP)], key=lambda row: len(words[row]))
        own = [group[first : first + _BATCH] for first in range(0, len(group), _BATCH)]
        batches += [own[place] for place in torch.randperm(len(own), generator=generator).tolist()]
    return batches
