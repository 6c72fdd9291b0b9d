"""Word order of the training text in tokens of the embedder: smoothed bigrams.

language = TokenLanguage.of(Language.read(path), encoder)     # its counts are of words; "parisian" is "paris", "##ian"
language.after(ids[0])                                      # (V,) log probability of each token behind that one
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.encoder import Encoder
from unembed.attacks.refine.lexicon.language import END, START, Language

EDGE = -1  # stands before the first token and behind the last
_PRIOR = 5.0  # of the unigram distribution, in bigrams
_UNSEEN = 0.01  # occurrences of every token beside those that were counted
_FREQUENT = 100  # neighbours that are named
_NONE = (torch.empty(0, dtype=torch.long), torch.empty(0))


class TokenLanguage:
    """Smoothed log probabilities of pairs of neighbouring tokens; without any counts, all are zero.

    Args:
        pairs: How often a token follows another; ``EDGE`` is both ends of a text.
        vocabulary: Number of tokens, V.
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
        """Log probability of ``right`` behind ``left``."""
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
