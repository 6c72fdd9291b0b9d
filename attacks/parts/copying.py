"""A GPT-2 that writes tokens of its vocabulary, or copies one of the words that fit the target vector best.

    "my aunt" -> scores of 4,096 tokens, and of delphine, Delphine, DELPHINE, lupus, Lupus, LUPUS, ...

No weight belongs to a single word: what the decoder knows of a word is the embedder's vector of it. So it copies words
that no training text has, as it learnt to copy those that few have.

A word scores by three things: how its vector agrees with what the decoder expects at this place (a pointer network,
Vinyals et al. 2015), how it fits the target vector, and how far words that are written already explain that fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unembed.attacks.parts.decoders import CausalDecoder, GPT2Beams, StateSteps, cross_entropy
from unembed.datamodules.arrow_examples import IGNORED

CASES = 3  # in which a word can be copied: lower, capitalised, upper
_RIDGE = 0.1  # of the mean eigenvalue
_READ, _KEY = 1.0, 2.0  # lengths of a word's vector, as input and as key: they set the size of the first scores
_EXPLAINED = 4.0  # as much as one whole word, written already, takes from the score of the same word
_FIT, _RARE, _AGAIN = 0.5, -4.0, 0.5  # weight of the fit, score of any word, and weight of what is explained, at first


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The words that may be copied into each text.

    Attributes:
        size: V, of the tokenizer's vocabulary.
        rows: Their rows in the list of words, (n, k).
        words: Their vectors in the word space, (n, k, d).
        fits: How well they fit the target, (n, k).
        keys: What the decoder's expectation is compared with, (n, k, width).
    """

    size: int
    rows: Tensor
    words: Tensor
    fits: Tensor
    keys: Tensor

    def of(self, targets: Tensor) -> Shortlist:
        return Shortlist(self.size, self.rows[targets], self.words[targets], self.fits[targets], self.keys[targets])

    def ids(self, choices: Tensor) -> Tensor:
        """Token ids of choices (n, b): ids of the vocabulary, and above it places in the shortlist."""
        place, case = (choices - self.size).clamp_min(0) // CASES, (choices - self.size) % CASES
        return torch.where(choices < self.size, choices, self.size + CASES * self.rows.gather(1, place) + case)

    def of_target(self, target: int, choices: Sequence[int]) -> list[int]:
        own = torch.tensor(choices, dtype=torch.long, device=self.rows.device)
        ids: list[int] = self.of(self.rows.new_tensor([target])).ids(own[None])[0].tolist()
        return ids

    def choices(self, ids: Tensor) -> Tensor:
        """The reverse, (n, T); every word must be in the shortlist, and what is ignored stays so."""
        row, case = (ids - self.size) // CASES, (ids - self.size) % CASES
        place = (row[..., None] == self.rows[:, None]).float().argmax(-1)
        return torch.where(ids < self.size, ids, self.size + CASES * place + case)


class CopyingDecoder(CausalDecoder):
    """A GPT-2 with a copy head; ``count`` words are in the shortlist of a target."""

    def __init__(self, model: Any, dimension: int, count: int) -> None:
        super().__init__(model)
        width = self.width
        self.count, self.size = count, int(model.config.vocab_size)
        self.space = WordSpace(dimension)
        self.read = nn.Linear(dimension, width)
        self.cases = nn.Embedding(CASES, width)
        self.key = nn.Linear(dimension, width, bias=False)
        self.expectation = nn.Linear(width, width)
        self.weights = nn.Linear(width, 3 + CASES)  # of the fit, of any word, of what is explained, of each case
        nn.init.normal_(self.expectation.weight, std=0.02)
        nn.init.zeros_(self.expectation.bias)
        nn.init.zeros_(self.weights.weight)
        with torch.no_grad():
            self.weights.bias.copy_(torch.tensor([_FIT, _RARE, _AGAIN, *[0.0] * CASES]))
        self._vectors = torch.zeros(0, dimension)
        self._rows = torch.zeros(0, dtype=torch.long)
        self._copied = 0
        self._placed: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._reduced: Tensor | None = None

    def use(self, words: Tensor, copied: int, rows: Tensor) -> None:
        """Set the words by their vectors (m, d); the first ``copied`` can be copied, the others are spelled.

        ``rows`` (V,) has the word that each token of the vocabulary spells, -1 if none.
        """
        self._vectors, self._copied, self._rows, self._placed, self._reduced = words, copied, rows, {}, None

    def measure(self, vectors: Tensor) -> None:
        self.space.fit(vectors.to(self.space.centre.device), self._vectors[: self._copied].to(self.space.centre.device))
        self._placed, self._reduced = {}, None

    def _words(self) -> tuple[Tensor, Tensor]:
        """The words' vectors in the word space and one row of zeros, (m + 1, d), and the word of each token."""
        device = self.space.centre.device
        if device not in self._placed:  # once: the space is measured before training, or read from a checkpoint
            words = self.space.word(self._vectors.to(device))
            self._placed[device] = torch.cat([words, words.new_zeros(1, words.shape[1])]), self._rows.to(device)
        return self._placed[device]

    @torch.no_grad()
    def shortlist_rows(self, targets: Tensor, labels: Tensor | None = None) -> Tensor:
        """Rows of the words that fit targets (n, d) best, (n, k); those of ``labels`` (n, T) are always among them."""
        words = self._words()[0][: self._copied]
        if torch.is_autocast_enabled(targets.device.type):  # mixed precision would convert all of them in every step
            if self._reduced is None:
                self._reduced = words.to(torch.get_autocast_dtype(targets.device.type))
            words = self._reduced
        fits = (self.space.target(targets).to(words.dtype) @ words.T).float()
        if labels is not None:
            copied = labels >= self.size
            fits[copied.nonzero()[:, 0], (labels[copied] - self.size) // CASES] = torch.inf
        return fits.topk(min(self.count, self._copied), dim=1).indices

    def shortlist(self, targets: Tensor, labels: Tensor | None = None) -> Shortlist:
        """The words that may be copied into the texts of targets (n, d); in training, those that are copied too."""
        rows = self.shortlist_rows(targets, labels)
        words = self._words()[0][rows]
        with torch.autocast(targets.device.type, enabled=False):
            fits = (words @ self.space.target(targets)[..., None]).squeeze(-1)
        return Shortlist(self.size, rows, words, fits, self.key(words * _KEY))

    def embedded(self, ids: Tensor) -> Tensor:
        inputs: Tensor = self.model.transformer.wte(ids.clamp(0, self.size - 1))
        copied = ids >= self.size
        above = ids[copied] - self.size
        read = self.read(self._words()[0][above // CASES] * _READ) + self.cases(above % CASES)
        return inputs.masked_scatter(copied[..., None], read.to(inputs.dtype))

    def explained(self, ids: Tensor, shortlist: Shortlist) -> Tensor:
        """What the words of token ids (n, T) explain of each word of the shortlist, (n, T, k)."""
        words, rows = self._words()
        spelled = rows[ids.clamp(0, self.size - 1)].masked_fill(ids == IGNORED, -1)
        return words[torch.where(ids < self.size, spelled, (ids - self.size) // CASES)] @ shortlist.words.mT

    def copy_scores(self, hidden: Tensor, shortlist: Shortlist, explained: Tensor) -> Tensor:
        """Scores of copying each word in each case, (n, T, 3k), from hidden states (n, T, width).

        ``explained`` is what words before each state explain, (n, T, k).
        """
        fit, any_word, again, *cases = self.weights(hidden).split([1, 1, 1, CASES], dim=-1)
        scores = self.expectation(hidden) @ shortlist.keys.mT + fit * shortlist.fits[:, None] + any_word
        scores = scores - _EXPLAINED * again * explained
        in_cases: Tensor = scores[..., None] + cases[0][..., None, :]
        return in_cases.flatten(-2)

    def copying_loss(self, prefix: Tensor, labels: Tensor, smoothing: float, targets: Tensor) -> Tensor:
        """As ``loss``, of labels among which are words that are copied, given targets (n, d)."""
        shortlist = self.shortlist(targets, labels)
        inputs = self.embedded(labels[:, :-1])
        inputs = torch.cat([prefix.to(inputs.dtype), inputs], 1)
        hidden = self.model.transformer(inputs_embeds=inputs, use_cache=False).last_hidden_state
        hidden = hidden[:, -labels.shape[1] :]
        each = self.explained(labels[:, :-1], shortlist).float()
        before = nn.functional.pad(each, (0, 0, 1, 0)).cumsum(1)
        copied = self.copy_scores(hidden, shortlist, before)
        spelled = self.model.lm_head(hidden)
        return cross_entropy(
            torch.cat([spelled, copied.to(spelled.dtype)], -1), shortlist.choices(labels), smoothing
        )  # fmt: skip

    def copying(self, shortlist: Shortlist) -> Copying:
        return Copying(self, shortlist)


class Copying(StateSteps):
    """See decoding.Decoder; tokens are choices of the shortlist."""

    def __init__(self, decoder: CopyingDecoder, shortlist: Shortlist) -> None:
        self.decoder, self.shortlist = decoder, shortlist

    def start(self, prefix: Tensor) -> tuple[Tensor, CopyingBeams]:
        state = CopyingBeams(self.decoder, prefix, self.shortlist)
        return state.logits, state


class CopyingBeams(GPT2Beams):
    """Decoding state with the shortlist of each target, and what each beam has explained of it."""

    def __init__(self, decoder: CopyingDecoder, prefix: Tensor, shortlist: Shortlist) -> None:
        self.decoder, self.shortlist = decoder, shortlist
        self.explained = torch.zeros_like(shortlist.fits)[:, None]
        super().__init__(decoder.model, prefix)

    def embedded(self, tokens: Tensor) -> Tensor:
        ids = self.shortlist.ids(tokens)
        self.explained = self.explained + self.decoder.explained(ids, self.shortlist)
        return self.decoder.embedded(ids)

    def scores(self, hidden: Tensor) -> Tensor:
        beams = hidden.view(*self.explained.shape[:2], -1)
        copied = self.decoder.copy_scores(beams, self.shortlist, self.explained)
        return torch.cat([super().scores(hidden), copied.flatten(0, 1)], -1)

    def select(self, rows: Tensor) -> None:
        width = self.explained.shape[1]
        targets = rows[:, 0] // width
        beams = (rows - targets[:, None] * width)[..., None]
        self.explained = self.explained[targets].gather(1, beams.expand(-1, -1, self.explained.shape[2]))
        self.shortlist = self.shortlist.of(targets)
        super().select(rows)


# -- how well words fit a vector -------------------------------------------------------------------------------------
#
# A mean-pooled embedder adds up what its words contribute, so the vectors of the words of a text point along the vector
# of the text. All vectors share a mean direction, and vectors of texts vary most in a few directions, those of topics;
# both say little about single words. With MiniLM on the built-in corpus, a word that training lacks is the best fit of
# 24,700 words in 31 % of the texts by the plain dot product, in 41 % by this one; among the best 32, in 82 and 92 %.


class WordSpace(nn.Module):
    """The mean and the whitening of target vectors, and the mean of the words' vectors."""

    centre: Tensor
    word_centre: Tensor
    whitening: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(dimension))
        self.register_buffer("word_centre", torch.zeros(dimension))
        self.register_buffer("whitening", torch.eye(dimension))

    def fit(self, vectors: Tensor, words: Tensor) -> None:
        """Measure target vectors (n, d) and vectors of words (m, d)."""
        vectors = nn.functional.normalize(vectors.double(), dim=1)
        self.centre.copy_(vectors.mean(0))
        self.word_centre.copy_(nn.functional.normalize(words.double(), dim=1).mean(0))
        centred = vectors - vectors.mean(0)
        values, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
        ridge = _RIDGE * values.mean().clamp_min(torch.finfo(torch.float32).tiny)
        self.whitening.copy_(directions / (values.clamp_min(0) + ridge).sqrt() @ directions.T)

    def target(self, vectors: Tensor) -> Tensor:
        """Target vectors of any length, (n, d) -> (n, d) float32."""
        return self._whitened(vectors, self.centre)

    def word(self, vectors: Tensor) -> Tensor:
        """Vectors of words, (m, d) -> (m, d) float32 of length 1."""
        return nn.functional.normalize(self._whitened(vectors, self.word_centre), dim=1)

    def _whitened(self, vectors: Tensor, centre: Tensor) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):
            whitened: Tensor = (nn.functional.normalize(vectors.float(), dim=1) - centre) @ self.whitening
        return whitened
