"""Decoding from prefix vectors: beam search, nucleus sampling and consensus, batched over targets.

    BeamSearch(beams=5)(decoder, prefix, eos=1, index=index)      # [[best ids, ...], ...] one list a target

All rows start from a prefix of one length, so no row is ever padded. Targets whose search has ended leave the batch,
and their rows leave the key-value cache in the same gather that reorders the beams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

State = TypeVar("State")
BLOCK = 64  # elements of the vocabulary whose largest is looked at first
GAIN = 1e-6  # of expected F1, from 0 to 1; smaller differences count as none
LIKELY = 64  # tokens that are sorted before the whole vocabulary is


class Decoder(Protocol):
    """The interface of decoders (attacks/parts/decoders.py)."""

    def start(self, prefix: Tensor) -> tuple[Tensor, object]:
        """Prefix vectors (n, k, width) -> next-token logits (n, V) and the state to continue from."""
        ...

    def step(self, tokens: Tensor, state: object) -> Tensor:
        """One token a beam, (n, b) -> logits (n, b, V), which may be written over; the state is extended in place."""
        ...

    def select(self, rows: Tensor, state: object) -> None:
        """Keep these ``rows`` (m, b) of the state, in that order, repeats allowed.

        Before the first step there are n rows, then n * b, with the beams of a target adjacent; each row of ``rows``
        belongs to one target.
        """
        ...


class Decoding(Protocol):
    """Turns prefix vectors into candidates.

    Attributes:
        max_new_tokens: Longest text that is decoded, its end token included.
        candidates: Texts to return per target.
        rerank: Texts to decode per target and rerank by their vectors (see attacks/refine/refining.py); 0: return the
            most probable ones.
    """

    max_new_tokens: int
    candidates: int
    rerank: int

    def propose(self, count: int) -> None:
        """Return at least ``count`` candidates per target, for a refiner to choose from."""
        ...

    def __call__(self, decoder: Decoder, prefix: Tensor, *, eos: int, index: Tensor) -> list[list[list[int]]]:
        """Candidates of each target (or what is to be reranked), best first, as token ids without the end token."""
        ...


class BeamSearch:
    """Beam search with scores sum(log p) / length ** length_penalty; one beam is greedy decoding.

    A target is finished when ``beams`` texts have ended and no running beam can beat the worst of them at its current
    length, as in transformers' ``generate`` with ``early_stopping=False``.
    """

    def __init__(
        self,
        beams: PositiveInt = 5,
        max_new_tokens: PositiveInt = 64,
        length_penalty: float = 1.0,
        candidates: PositiveInt = 1,
        rerank: NonNegativeInt = 0,
    ) -> None:
        if not rerank and candidates > beams:
            raise ValueError(f"candidates={candidates}: at most as many as beams={beams}")
        self.proposals = _proposals(candidates, rerank)
        self.beams, self.max_new_tokens = max(beams, self.proposals), max_new_tokens
        self.length_penalty, self.candidates, self.rerank = length_penalty, candidates, rerank

    def propose(self, count: int) -> None:
        self.proposals = max(self.proposals, count)
        self.beams = max(self.beams, self.proposals)

    @torch.no_grad()
    def __call__(
        self, decoder: Decoder, prefix: Tensor, *, eos: int, index: Tensor, wanted: WantedWords | None = None
    ) -> list[list[list[int]]]:
        n, b, device = len(prefix), self.beams, prefix.device
        limit = self.max_new_tokens
        ended = torch.full((n, b, limit), eos, dtype=torch.long, device=device)
        ended_scores = torch.full((n, b), -torch.inf, device=device)

        logits, state = decoder.start(prefix)
        logits = logits[:, None]
        active = torch.arange(n, device=device)  # targets that are still searched
        running = torch.empty((n, 1, 0), dtype=torch.long, device=device)
        scores = torch.zeros((n, 1), device=device)  # of running beams; a single one before the first token
        for length in range(1, limit + 1):
            width, vocabulary = logits.shape[1:]
            # In place where the type allows: on a CPU, fresh memory of this size costs more than the arithmetic.
            log_p = logits.float()
            torch.log_softmax(log_p, -1, out=log_p)
            if wanted is not None:
                wanted.reward(log_p, running, active)
            # 2b candidates: even if b of them end here, b are left to run on.
            top, flat = _largest(log_p, scores, min(2 * b, width * vocabulary))
            parents, tokens = flat // vocabulary, flat % vocabulary
            parents_of = parents[..., None].expand(-1, -1, length - 1)
            texts = (
                torch.cat([running.gather(1, parents_of), tokens[..., None]], -1) if length > 1 else tokens[..., None]
            )

            ends = (tokens == eos) | (length == limit)
            # Only the b best candidates may end; the rest are there as a reserve for running on.
            ending = top[:, :b].masked_fill(~ends[:, :b], -torch.inf) / length**self.length_penalty
            pool = torch.cat([ended_scores[active], ending], 1)
            padded = torch.nn.functional.pad(texts[:, :b], (0, limit - length), value=eos)
            best, order = pool.topk(b, dim=1)
            ended_scores[active] = best
            ended[active] = torch.cat([ended[active], padded], 1).gather(1, order[..., None].expand(-1, -1, limit))

            scores, order = top.masked_fill(ends, -torch.inf).topk(min(b, top.shape[1]), dim=1)
            keep = scores[:, 0] / length**self.length_penalty > best[:, -1]
            if length == limit or not bool(keep.any()):
                break
            kept = _packed(keep)
            active, scores, order = active[kept], scores[kept], order[kept]
            running = texts[kept].gather(1, order[..., None].expand(-1, -1, length))
            rows = kept[:, None] * width + parents[kept].gather(1, order)
            decoder.select(rows, state)
            logits = decoder.step(running[:, :, -1], state)

        results = []
        for texts_of, scores_of in zip(ended.tolist(), ended_scores.tolist(), strict=True):
            texts_ended = [
                _until(ids, eos) for ids, score in zip(texts_of, scores_of, strict=True) if score > float("-inf")
            ]
            results.append(texts_ended[: self.proposals])
        return results


class WantedWords:
    """Words that the texts of a beam search should have, each as often as it stands in a given text.

    Args:
        kinds: A number for each token of the vocabulary, equal for tokens that are written alike, (V,).
        texts: Token ids of a text for each target.
        nats: What a wanted token is worth.
    """

    def __init__(self, kinds: Tensor, texts: Sequence[Sequence[int]], nats: float) -> None:
        self.kinds, self.nats = kinds, nats
        # How often the word of each token is wanted, (V,) for each target.
        wanted = [kinds[list(ids)].bincount(minlength=len(kinds))[kinds] for ids in texts]
        columns = [own.nonzero()[:, 0] for own in wanted]
        counts = [own[tokens] for own, tokens in zip(wanted, columns, strict=True)]
        self._tokens, self._counts = (pad_sequence(rows, batch_first=True) for rows in (columns, counts))

    def reward(self, log_p: Tensor, texts: Tensor, rows: Tensor) -> None:
        """Add to log probabilities (n, b, V) of what follows the ids ``texts`` (n, b, length) of targets ``rows``."""
        tokens = self._tokens[rows]
        used = (self.kinds[texts][..., None] == self.kinds[tokens][:, None, None]).sum(2)
        left = self._counts[rows][:, None] > used
        log_p.scatter_add_(2, tokens[:, None].expand_as(left), left * self.nats)


class NucleusSampling:
    """Sampling from the smallest set of tokens whose probability reaches ``p`` (Holtzman et al. 2020).

    Random numbers depend only on (seed, trial, index of the target, candidate), not on batch or rank.

    Attributes:
        trial: Number of the trial, 0 at first; each has random numbers of its own.
    """

    def __init__(
        self,
        p: Annotated[float, Field(gt=0, le=1)] = 0.9,
        temperature: PositiveFloat = 0.9,
        max_new_tokens: PositiveInt = 64,
        candidates: PositiveInt = 1,
        seed: NonNegativeInt = 0,
        rerank: NonNegativeInt = 0,
    ) -> None:
        self.proposals = _proposals(candidates, rerank)
        self.p, self.temperature, self.max_new_tokens = p, temperature, max_new_tokens
        self.candidates, self.rerank, self.seed, self.trial = candidates, rerank, seed, 0

    def propose(self, count: int) -> None:
        self.proposals = max(self.proposals, count)

    @torch.no_grad()
    def __call__(self, decoder: Decoder, prefix: Tensor, *, eos: int, index: Tensor) -> list[list[list[int]]]:
        n, device = len(prefix), prefix.device
        uniforms = torch.stack([self._uniforms(i) for i in index.tolist()]).flatten(0, 1).to(device)
        logits, state = decoder.start(prefix)
        rows = torch.arange(n, device=device).repeat_interleave(self.proposals)
        decoder.select(rows[:, None], state)
        logits = logits[rows]
        active = torch.arange(len(rows), device=device)
        texts = torch.full((len(rows), self.max_new_tokens), eos, dtype=torch.long, device=device)
        for position in range(self.max_new_tokens):
            tokens = self._draw(logits.float() / self.temperature, uniforms[active, position])
            texts[active, position] = tokens
            kept = _packed(tokens != eos)
            if position + 1 == self.max_new_tokens or not len(kept):
                break
            active = active[kept]
            decoder.select(kept[:, None], state)
            logits = decoder.step(tokens[kept, None], state)[:, 0]
        flat = [_until(ids, eos) for ids in texts.tolist()]
        return [flat[i * self.proposals : (i + 1) * self.proposals] for i in range(n)]

    def _uniforms(self, index: int) -> Tensor:
        seed = self.seed * 1_000_003 + index
        if self.trial > 0:  # torch looks at 32 bits of a seed: no room for a third number, so mix them
            seed = int(np.random.SeedSequence((self.seed, self.trial, index)).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        return torch.rand((self.proposals, self.max_new_tokens), generator=generator)

    def _draw(self, logits: Tensor, uniforms: Tensor) -> Tensor:
        """Inverse-CDF samples, (n, V) and (n,) -> (n,) token ids."""
        probabilities = torch.softmax(logits, -1)
        # To sort the vocabulary takes longer than a small model's layers, and a nucleus is rarely larger than this.
        likely, order = probabilities.topk(min(LIKELY, probabilities.shape[1]))
        tokens = order.gather(1, self._picked(likely, uniforms)[:, None])[:, 0]
        if bool((wide := likely.sum(-1) < self.p).any()):
            sorted_, order = probabilities[wide].sort(dim=-1, descending=True)
            tokens[wide] = order.gather(1, self._picked(sorted_, uniforms[wide])[:, None])[:, 0]
        return tokens

    def _picked(self, probabilities: Tensor, uniforms: Tensor) -> Tensor:
        """Places of the samples in descending ``probabilities`` (n, k), which reach ``p``: (n,)."""
        before = probabilities.cumsum(-1) - probabilities
        nucleus = probabilities.masked_fill(before >= self.p, 0.0)  # the token that crosses p is kept
        # Rounding may move a sample past the last token of the nucleus.
        return torch.minimum(drawn(nucleus, uniforms), (nucleus > 0).sum(-1) - 1)


class ConsensusSampling(NucleusSampling):
    """Samples texts, and puts those first whose tokens have most in common with the other samples.

    A text that is right in part shares that part with other samples; what it got wrong, it rarely shares. In
    translation the rule is called minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020): the first
    text has the highest expected F1 if the true text is one of the samples.
    """

    def __init__(self, samples: PositiveInt = 16, **nucleus: Any) -> None:
        super().__init__(**nucleus)
        self.propose(samples)

    def __call__(self, decoder: Decoder, prefix: Tensor, *, eos: int, index: Tensor) -> list[list[list[int]]]:
        sampled = super().__call__(decoder, prefix, eos=eos, index=index)
        return [[texts[place] for place in by_expected_f1(texts)] for texts in sampled]


def by_expected_f1(texts: Sequence[Sequence[Hashable]]) -> list[int]:
    """Places of texts (lists of tokens) by their mean F1 with all of them, the highest first; equal ones in order."""
    places = {item: place for place, item in enumerate(dict.fromkeys(item for text in texts for item in text))}
    counts = np.zeros((len(texts), len(places)))
    for row, text in zip(counts, texts, strict=True):
        for item, count in Counter(text).items():
            row[places[item]] = count
    lengths, f1 = counts.sum(1), np.zeros(len(texts))
    for own, length in zip(counts, lengths, strict=True):
        f1 += 2 * np.minimum(counts, own).sum(1) / np.maximum(lengths + length, 1)
    steps = np.round(f1 / max(len(texts), 1) / GAIN)
    return sorted(range(len(texts)), key=lambda place: -steps[place])


def drawn(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Samples by the inverse of the distribution function: weights (n, k), numbers from 0 to 1 (n,) -> places (n,).

    Rounding may move a sample to a place behind the last of weight, or to k.
    """
    mass = weights.cumsum(-1)
    return torch.searchsorted(mass, (uniforms * mass[:, -1])[:, None], right=True)[:, 0]


def _largest(log_p: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest scores of each target's continuations, best first, and their places among b * V.

    ``topk`` over all continuations takes longer than most of the model's layers. The largest scores are in the
    ``count`` blocks with the largest maxima, so only those are searched.

    ``log_p`` (n, b, V) is of the next token, ``scores`` (n, b) of the beams; ``count`` is at most b * V.
    """
    n, b, vocabulary = log_p.shape
    blocks = vocabulary // BLOCK
    if b * blocks <= count:
        return (log_p + scores[..., None]).view(n, -1).topk(count, dim=1)
    end = blocks * BLOCK
    largest = log_p[..., :end].view(n, b, blocks, BLOCK).amax(-1) + scores[..., None]
    found = largest.view(n, -1).topk(count, dim=1, sorted=False).indices
    first = found // blocks * vocabulary + found % blocks * BLOCK
    places = (first[..., None] + torch.arange(BLOCK, device=log_p.device)).flatten(1)
    if end < vocabulary:  # what no block holds is searched in any case
        beams = torch.arange(b, device=log_p.device)[:, None] * vocabulary
        rest = (beams + torch.arange(end, vocabulary, device=log_p.device)).flatten()
        places = torch.cat([places, rest.expand(n, -1)], 1)
    values = log_p.view(n, -1).gather(1, places) + scores.gather(1, places // vocabulary)
    top, order = values.topk(count, dim=1)
    return top, places.gather(1, order)


def _packed(keep: Tensor) -> Tensor:
    """Indices of the true elements, in an order that leaves as many as possible at their positions.

    Later elements fill the gaps, so that an in-place state is moved as little as possible.
    """
    kept = keep.nonzero()[:, 0]
    packed = torch.arange(len(kept), device=keep.device)
    packed[~keep[: len(kept)]] = kept[kept >= len(kept)]
    return packed


def _until(ids: list[int], eos: int) -> list[int]:
    return ids[: ids.index(eos)] if eos in ids else ids


def _proposals(candidates: int, rerank: int) -> int:
    if rerank and candidates > rerank:
        raise ValueError(f"candidates={candidates}: at most as many as rerank={rerank}")
    return rerank or candidates
