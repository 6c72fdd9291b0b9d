"""Edits of a text, as token ids of a sentence encoder, in the order in which they are worth a forward pass.

    "i has a dog"  ->  Edit(1, 2, have), Edit(1, 2, had), Edit(0, 2, has i), ..., Edit(3, 3, big), ...

The order is predicted from the vectors of single tokens and words (Entries) and from bigrams of the training text
(TokenLanguage). docs/lm_inversion.md compares this with gradients.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unembed.attacks.refine.lexicon.language import END, START, Language
from unembed.attacks.refine.lexicon.moves import distance, exchanges, step_fit
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.transformer import RelaxedEncoder

Ids = tuple[int, ...]

_TOKENS_AT_ONCE = 128  # of a batch, special tokens excluded; larger ones are little faster on a processor
_ON_GPU = 4096
_CONTROL = re.compile(r"\[[^\]]+\]|<[^>]+>")  # [unused7], [MASK], <extra_id_0>


class Encoder:
    """Unit vectors of token ids without special tokens.

    How many inputs a batch has depends on their length alone, so that a vector does not depend on what else is
    computed; a batch that is not full is filled up.
    """

    def __init__(self, model: RelaxedEncoder) -> None:
        self.model = model

    @torch.no_grad()
    def vectors(self, inputs: Sequence[Ids]) -> Tensor:
        """Vectors (n, d), on the CPU, of inputs of one token or more."""
        found = torch.empty(len(inputs), self.model.observation.vocabulary)
        together = _TOKENS_AT_ONCE if self.model.device.type == "cpu" else _ON_GPU
        none = torch.empty(1, 0, dtype=torch.long)
        by_length: dict[int, list[int]] = {}
        for place, ids in enumerate(inputs):
            by_length.setdefault(len(ids), []).append(place)
        for length, places in sorted(by_length.items()):
            size = max(1, together // length)
            for begin in range(0, len(places), size):
                batch = places[begin : begin + size]
                rows = torch.tensor([inputs[place] for place in batch] + [inputs[batch[0]]] * (size - len(batch)))
                vectors = self.model.logits(rows.to(self.model.device), none)[: len(batch), 0]
                found[batch] = torch.nn.functional.normalize(vectors, dim=1).cpu()
        return found

    @cached_property
    def control(self) -> Tensor:
        """Whether a token stands for no text, such as ``[MASK]`` or ``[unused7]``; (V,)."""
        tokenizer = self.model.embedder.tokenizer
        special = set(tokenizer.all_special_ids)
        tokens = tokenizer.convert_ids_to_tokens(range(self.model.inputs))
        return torch.tensor(
            [token is None or place in special or bool(_CONTROL.fullmatch(token)) for place, token in enumerate(tokens)]
        )

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """The tokens of each text, uncut; () where it has none."""
        found = self.model.embedder.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return [tuple(ids) for ids in found]

    def canonical(self, inputs: Sequence[Ids]) -> list[Ids]:
        """Each input as the tokenizer writes its text: "dog", "##s" becomes "dogs"; () where it has none."""
        tokenizer = self.model.embedder.tokenizer
        plain = [list(ids) for ids in inputs]
        return self.ids(tokenizer.batch_decode(plain, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def spans(self, ids: Ids) -> list[tuple[int, int]]:
        """First place, and the place behind the last, of each token, then of each word of several tokens."""
        tokenizer = self.model.embedder.tokenizer
        pairs = [list(pair) for pair in pairwise(ids)]
        joined = [" " not in text.strip() for text in tokenizer.batch_decode(pairs, clean_up_tokenization_spaces=False)]
        begins = [0, *(place for place, one in enumerate(joined, 1) if not one), len(ids)]
        words = [(begin, end) for begin, end in pairwise(begins) if end > begin + 1]
        return [(place, place + 1) for place in range(len(ids))] + words


_LONGEST = 6  # tokens of a word


class Entries:
    """What an edit may write: every token of the embedder, and those of ``words`` that have two to six tokens.

    Those that are texts are embedded under the purpose ``lexicon``: once a cache, and not counted as an attack's
    queries. Tokens that no text gives alone, such as ``##pise``, are run each time. The defense does not count here.

    Attributes:
        ids: Tokens of each entry.
        vectors: Of each entry alone, (V, d).
        first: First token of each entry, (V,).
        last: Last token, (V,).
    """

    def __init__(self, encoder: Encoder, words: Sequence[str], oracle: CachedEmbedder) -> None:
        tokens = (~encoder.control).nonzero().squeeze(1)
        several = [ids for ids in encoder.ids(words) if 1 < len(ids) <= _LONGEST]
        self.ids: list[Ids] = [(token,) for token in tokens.tolist()] + sorted(set(several))
        self.vectors = torch.empty(len(self.ids), encoder.model.observation.vocabulary)
        whole = [own == ids for own, ids in zip(encoder.canonical(self.ids), self.ids, strict=True)]
        texts = [row for row, one in enumerate(whole) if one]
        parts = [row for row, one in enumerate(whole) if not one]
        embedded = oracle.source.embed([encoder.model.decode(self.ids[row]) for row in texts], "lexicon")
        self.vectors[texts] = torch.nn.functional.normalize(embedded, dim=1)
        self.vectors[parts] = encoder.vectors([self.ids[row] for row in parts])
        self.first = torch.tensor([ids[0] for ids in self.ids])
        self.last = torch.tensor([ids[-1] for ids in self.ids])
        self._rows = {ids: row for row, ids in enumerate(self.ids)}
        self._row_of_token = torch.full((len(encoder.control),), -1)
        self._row_of_token[tokens] = torch.arange(len(tokens))
        self._encoder, self._others = encoder, dict[Ids, Tensor]()

    def rows_of_tokens(self, tokens: Tensor) -> Tensor:
        rows = self._row_of_token[tokens]
        return rows[rows >= 0]

    def vectors_of(self, spans: Sequence[Ids]) -> Tensor:
        """Vectors of some tokens, alone, (n, d), entries or not."""
        missing = sorted({ids for ids in spans if ids not in self._rows and ids not in self._others})
        if missing:
            self._others.update(zip(missing, self._encoder.vectors(missing), strict=True))
        return torch.stack([self.vectors[self._rows[ids]] if ids in self._rows else self._others[ids] for ids in spans])


EDGE = -1  # stands before the first token and behind the last
_PRIOR = 5.0  # of the unigram distribution, in bigrams
_UNSEEN = 0.01  # occurrences of every token beside those that were counted
_FREQUENT = 100  # neighbours that are named
_NONE = (torch.empty(0, dtype=torch.long), torch.empty(0))


class TokenLanguage:
    """Smoothed log probabilities of pairs of neighbouring tokens; without any counts, all are zero.

    ``pairs`` counts how often a token follows another; ``EDGE`` is both ends of a text.
    """

    def __init__(self, pairs: Mapping[tuple[int, int], int], vocabulary: int) -> None:
        self.vocabulary, self._pairs = vocabulary, dict(pairs)
        ends = torch.tensor(sorted(self._pairs), dtype=torch.long).view(-1, 2) % (vocabulary + 1)  # EDGE comes last
        counts = torch.tensor([float(self._pairs[pair]) for pair in sorted(self._pairs)])
        followed, following = (torch.zeros(vocabulary + 1).index_add_(0, side, counts) for side in ends.unbind(dim=1))
        unigram = following + _UNSEEN
        self._expected = _PRIOR * unigram / unigram.sum()  # of each token behind any other
        self._base, self._size = self._expected.log(), (followed + _PRIOR).log()
        self._after, self._before = _grouped(ends, counts), _grouped(ends.flip(1), counts)

    @classmethod
    def of(cls, language: Language, encoder: Encoder) -> TokenLanguage:
        """The tokens of the words that ``language`` has counted."""
        words = sorted(set(language.counts) - {START, END})
        tokens = dict(zip(words, encoder.ids(words), strict=True)) | {START: (EDGE,), END: (EDGE,)}
        pairs: Counter[tuple[int, int]] = Counter()
        for (left, right), count in language.pairs.items():
            if tokens[left] and tokens[right]:
                pairs[tokens[left][-1], tokens[right][0]] += count
        for word, count in language.counts.items():
            for neighbours in pairwise(tokens[word]):
                pairs[neighbours] += count
        return cls(pairs, encoder.model.inputs)

    def follows(self, left: int, right: int) -> float:
        if not self._pairs:
            return 0.0
        count = self._pairs.get((left, right), 0)
        return math.log(count + float(self._expected[right])) - float(self._size[left])

    def after(self, left: int) -> Tensor:
        """Log probability of each token behind ``left``, (V,)."""
        if not self._pairs:
            return torch.zeros(self.vocabulary)
        found = self._base.clone()
        tokens, counts = self._after.get(left % len(found), _NONE)
        found[tokens] = (counts + self._expected[tokens]).log()
        return (found - self._size[left])[: self.vocabulary]

    def before(self, right: int) -> Tensor:
        """Log probability of ``right`` behind each token, (V,)."""
        if not self._pairs:
            return torch.zeros(self.vocabulary)
        found = self._base[right].repeat(self.vocabulary + 1)
        tokens, counts = self._before.get(right % len(found), _NONE)
        found[tokens] = (counts + self._expected[right]).log()
        return (found - self._size)[: self.vocabulary]

    def between(self, left: int, right: int) -> Tensor:
        """The tokens that were seen most often behind ``left``, and those before ``right``."""
        behind, ahead = self._after.get(left % len(self._base), _NONE), self._before.get(right % len(self._base), _NONE)
        tokens = torch.cat([behind[0][:_FREQUENT], ahead[0][:_FREQUENT]])
        return tokens[tokens < self.vocabulary]


def _grouped(pairs: Tensor, counts: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Seconds and counts of pairs (n, 2) by their firsts, the most frequent first."""
    order = counts.argsort(descending=True, stable=True)
    order = order[pairs[order, 0].argsort(stable=True)]
    firsts, sizes = torch.unique_consecutive(pairs[order, 0], return_counts=True)
    parts = zip(*(torch.split(side[order], sizes.tolist()) for side in (pairs[:, 1], counts)), strict=True)
    return dict(zip(firsts.tolist(), parts, strict=True))


_PAIRS = 100  # of a text
_LEAST_SQUARE = 1e-6


class Edit(NamedTuple):
    """What is written instead of the tokens from ``begin`` up to ``end``; nothing where tokens are removed.

    Edit(1, 2, (2031,)).of((1045, 2038, 1037, 3899))    # "i has a dog" -> "i have a dog"
    """

    begin: int
    end: int
    written: Ids

    def of(self, ids: Ids) -> Ids:
        return ids[: self.begin] + self.written + ids[self.end :]


def pairs(ids: Ids, vector: Tensor, tried: Sequence[tuple[Edit, Tensor]], target: Tensor) -> Iterator[Edit]:
    """Two edits of one text as one, the best first: the changes that each made are taken to add up.

    ``tried`` are edits of the text, with the vectors (d,) of the edited texts.
    """
    if len(tried) < 2:
        return
    changes = torch.stack([after for _, after in tried]) - vector
    begins, ends = torch.tensor([edit[:2] for edit, _ in tried]).unbind(dim=1)
    along, toward, inner = changes @ vector, changes @ target, changes @ changes.T
    squares = inner.diagonal()
    length = 1 + 2 * (along[:, None] + along) + squares[:, None] + squares + 2 * inner
    cosines = (target @ vector + toward[:, None] + toward) / length.clamp_min(_LEAST_SQUARE).sqrt()
    apart = (ends[:, None] <= begins) & ((begins[:, None] < begins) | (ends[:, None] < ends))
    cosines[~apart] = -torch.inf
    best = cosines.flatten().topk(min(_PAIRS, int(apart.sum()))).indices.tolist()
    for one, other in ((tried[flat // len(tried)][0], tried[flat % len(tried)][0]) for flat in best):
        yield Edit(one.begin, other.end, one.written + ids[one.end : other.begin] + other.written)


_SHARE = 2.5  # how far an added token moves the vector of n tokens, by 1 / (n + 2)
_FLUENCY = 1.5  # weight of the neighbours
_NEAREST = 3000  # tokens that are looked at, beside those that were seen with these neighbours
_MOST, _ORDERS = 400, 200  # replacements, and insertions; other orders
_TURNS = "ssossiosso"  # in which order kinds of edits are tried
_LEAST = 1e-4


class RankedEdits:
    """Edits of one text of n tokens, the most promising first; those that only remove a span are not among them.

    Replacements and insertions are ranked by the sum of three scores, each in standard deviations: how the vector of
    the token alone fits the difference of target and text, how it fits the target together with what is left of the
    text, and how often it stands between these neighbours. ``shorter`` are vectors of the text without each of the
    ``spans`` that may be replaced, (spans, d).
    """

    def __init__(
        self,
        ids: Ids,
        vector: Tensor,
        spans: Sequence[tuple[int, int]],
        shorter: Tensor,
        target: Tensor,
        entries: Entries,
        language: TokenLanguage,
    ) -> None:
        self.ids, self.entries, self.language = ids, entries, language
        context, count = (EDGE, *ids, EDGE), len(ids)
        residual = target - vector
        length = residual.norm().clamp_min(_LEAST)
        seen = [language.between(context[begin], context[end + 1]) for begin, end in spans]
        seen += [language.between(left, right) for left, right in pairwise(context)]
        near = (entries.vectors @ residual).topk(min(_NEAREST, len(entries.ids))).indices
        pool = torch.unique(torch.cat([near, entries.rows_of_tokens(torch.cat(seen))]))
        vectors, own = entries.vectors[pool], entries.vectors_of([ids[begin:end] for begin, end in spans])
        first, last = entries.first[pool], entries.last[pool]
        along, toward = vectors @ residual, vectors @ target
        after = torch.stack([language.after(left)[first] for left in context[:-1]])  # (n + 1, pool)
        before = torch.stack([language.before(right)[last] for right in context[1:]])
        usual = torch.tensor([language.follows(left, right) for left, right in pairwise(context)])
        begins, ends = torch.tensor(spans).unbind(dim=1)

        step = distance(own @ vectors.T)  # (spans, pool)
        fits = step_fit(along - (own @ residual)[:, None], step, length, count)
        joined = _joined(shorter @ target, toward, shorter @ vectors.T, count)
        fluent = after[begins] + before[ends] - (usual[begins] + usual[ends])[:, None]
        self._substitutes = [(*spans[place], row) for place, row in _best(pool, fits, joined, fluent)]

        alike = (vectors @ vector)[None]  # (1, pool)
        fits = (along - residual @ vector)[None] / distance(alike) / length
        joined = _joined((target @ vector)[None], toward, alike, count)
        fluent = after + before - usual[:, None]  # (n + 1, pool)
        self._insertions = [(place, place, row) for place, row in _best(pool, fits, joined, fluent)]

    def __iter__(self) -> Iterator[Edit]:
        substitutes, insertions = (
            (Edit(begin, end, self.entries.ids[row]) for begin, end, row in changes)
            for changes in (self._substitutes, self._insertions)
        )
        kinds: dict[str, Iterator[Edit]] = {"s": substitutes, "i": insertions, "o": self.orders()}
        while kinds:
            for kind in _TURNS:
                changed = next(kinds.get(kind, iter(())), None)
                if changed is None:
                    kinds.pop(kind, None)
                else:
                    yield changed

    def orders(self) -> Iterator[Edit]:
        """Two spans of tokens in each other's place; the more fluent, the earlier."""
        context = (EDGE, *self.ids, EDGE)
        follows = np.array([[self.language.follows(left, right) for right in context] for left in context])
        for _, places in exchanges(follows, _ORDERS):
            moved = [place for place, other in enumerate(places) if place != other]
            begin, end = moved[0], moved[-1] + 1
            yield Edit(begin, end, tuple(self.ids[place] for place in places[begin:end]))


def _joined(near: Tensor, toward: Tensor, alike: Tensor, count: int) -> Tensor:
    """Predicted cosine of the target with texts to which a token is added, (k, pool).

    From the cosines of the target with each text (k,) and each token (pool,), and of each text with each token.
    """
    share = _SHARE / (count + 2)
    return (near[:, None] + share * toward) / (1 + share**2 + 2 * share * alike).clamp_min(_LEAST).sqrt()


def _standard(scores: Tensor) -> Tensor:
    return (scores - scores.mean()) / scores.std(correction=0).clamp_min(_LEAST)


def _best(pool: Tensor, fits: Tensor, joined: Tensor, fluent: Tensor) -> Sequence[tuple[int, int]]:
    """Places and entries of the highest sums of three scores (places, pool), the highest first."""
    scores = _standard(fits) + _standard(joined) + _FLUENCY * _standard(fluent)
    found = scores.flatten().topk(min(_MOST, scores.numel())).indices
    return list(zip((found // len(pool)).tolist(), pool[found % len(pool)].tolist(), strict=True))
