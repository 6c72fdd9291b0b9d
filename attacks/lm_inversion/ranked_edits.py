"""Edits of a text in the order in which they are worth a forward pass, predicted from single tokens and bigrams.

    "i has a dog"  ->  Edit(1, 2, have), Edit(1, 2, had), Edit(0, 2, has i), ..., Edit(3, 3, big), ...

Replacements and insertions are ranked by the sum of three scores, each in standard deviations: how the vector of the
token alone fits the difference of target and text, how it fits the target together with what is left of the text, and
how often it stands between these neighbours. docs/lm_inversion.md compares this with gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from unembed.attacks.lm_inversion.edits import Edit
from unembed.attacks.lm_inversion.encoder import Ids
from unembed.attacks.lm_inversion.entries import Entries
from unembed.attacks.lm_inversion.token_language import EDGE, TokenLanguage
from unembed.attacks.refine.lexicon.moves import distance, exchanges, step_fit

_SHARE = 2.5  # how far an added token moves the vector of n tokens, by 1 / (n + 2)
_FLUENCY = 1.5  # weight of the neighbours
_NEAREST = 3000  # tokens that are looked at, beside those that were seen with these neighbours
_MOST, _ORDERS = 400, 200  # replacements, and insertions; other orders
_TURNS = "ssossiosso"  # in which order kinds of edits are tried
_LEAST = 1e-4


class RankedEdits:
    """Edits of one text, the most promising first; those that only remove a span are not among them.

    Args:
        ids: The text, n tokens.
        vector: Its own, (d,).
        spans: Begin and end of each of its tokens and words that may be replaced.
        shorter: Vectors of the text without each span, (spans, d).
        target: The vector to reach, (d,).
        entries: What may be written.
        language: Of the training text.
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
        scores = _standard(fits) + _standard(joined) + _FLUENCY * _standard(fluent)
        self._substitutes = [(*spans[place], row) for place, row in _best(scores, pool)]

        alike = (vectors @ vector)[None]  # (1, pool)
        fits = (along - residual @ vector)[None] / distance(alike) / length
        joined = _joined((target @ vector)[None], toward, alike, count)
        fluent = after + before - usual[:, None]  # (n + 1, pool)
        scores = _standard(fits) + _standard(joined) + _FLUENCY * _standard(fluent)
        self._insertions = [(place, place, row) for place, row in _best(scores, pool)]

    def __iter__(self) -> Iterator[Edit]:
        """Kinds of edits take turns."""
        kinds = {"s": self.written(self._substitutes), "i": self.written(self._insertions), "o": self.orders()}
        while kinds:
            for kind in _TURNS:
                changed = next(kinds.get(kind, iter(())), None)
                if changed is None:
                    kinds.pop(kind, None)
                else:
                    yield changed

    def written(self, changes: Sequence[tuple[int, int, int]]) -> Iterator[Edit]:
        """Another entry between two places."""
        for begin, end, row in changes:
            yield Edit(begin, end, self.entries.ids[row])

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

    Args:
        near: Cosine of the target with each text, (k,).
        toward: Of the target with each token, (pool,).
        alike: Of each text with each token, (k, pool).
        count: Tokens of a text.
    """
    share = _SHARE / (count + 2)
    return (near[:, None] + share * toward) / (1 + share**2 + 2 * share * alike).clamp_min(_LEAST).sqrt()


def _standard(scores: Tensor) -> Tensor:
    """With mean 0 and standard deviation 1; 0 where all are equal."""
    return (scores - scores.mean()) / scores.std(correction=0).clamp_min(_LEAST)


def _best(scores: Tensor, pool: Tensor) -> Sequence[tuple[int, int]]:
    """Places and entries of the highest scores (places, pool), the highest first."""
    found = scores.flatten().topk(min(_MOST, scores.numel())).indices
    return list(zip((found // len(pool)).tolist(), pool[found % len(pool)].tolist(), strict=True))
