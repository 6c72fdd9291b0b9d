"""Changes of a text, as token ids, in the order in which they are worth a forward pass.

    "i has a dog"  ->  "i have a dog", "i had a dog", ..., "i has a cat", "has i a dog", "i has a big dog", ...

Replacements and insertions of all places and tokens are ranked by the sum of three scores, each divided by its standard
deviation: how the vector of the token alone fits the difference of target and text, how it fits the difference of target
and the text without the place, and how fluent it is between its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attacks.lm_inversion.encoder import Encoder
from attacks.lm_inversion.token_language import EDGE, TokenLanguage

Ids = tuple[int, ...]

_REACH, _SHARE = 5.0, 2.5  # of a token in the vector of n tokens, in 1 / (n + 2): of an exchange, of an insertion
_TOO_LONG, _TOO_SHORT = 0.25, 0.1  # score that a predicted step loses by each factor e of length
_MOST = 400  # replacements, and insertions, of a text
_ORDERS = 200  # other orders of it
_SPAN = 3  # tokens that are moved together
_TURNS = "ssossiosso"  # in which order kinds of changes are tried
_LEAST = 1e-4


class Edits:
    """Changed texts of one text, the most promising first.

    Args:
        ids: The text, n tokens.
        vector: Its own, (d,).
        shorter: Vectors of the text without each of its tokens, (n, d).
        target: The vector to reach, (d,).
        encoder: Its vectors of single tokens.
        language: Of the training text.
    """

    def __init__(
        self, ids: Ids, vector: Tensor, shorter: Tensor, target: Tensor, encoder: Encoder, language: TokenLanguage
    ) -> None:
        self.ids, self.language = ids, language
        alone, here = encoder.alone, torch.tensor(ids)
        residual = target - vector
        length = residual.norm().clamp_min(_LEAST)
        along, toward = alone @ residual, alone @ target
        context = (EDGE, *ids, EDGE)
        # (n, V)
        steps = _distance(alone[here] @ alone.T)
        excess = (steps * (_REACH / (len(ids) + 2)) / length).log()
        fits = (along - along[here][:, None]) / steps / length
        fits -= _TOO_LONG * excess.clamp_min(0) + _TOO_SHORT * (-excess).clamp_min(0)
        joined = _joined(shorter, toward, shorter @ target, shorter @ alone.T, len(ids))
        fluent = torch.stack(
            [
                language.after(left) + language.before(right) - language.follows(left, own) - language.follows(own, right)
                for left, own, right in zip(context, ids, context[2:], strict=False)
            ]
        )
        scores = _standard(fits) + _standard(joined) + _standard(fluent)
        scores[:, encoder.control] = -torch.inf
        scores[torch.arange(len(ids)), here] = -torch.inf
        self._substitutes = _best(scores, _MOST)
        # (n + 1, V)
        own = alone @ vector
        joined = _joined(vector[None], toward, (target @ vector)[None], own[None], len(ids))
        fits = ((along - residual @ vector) / _distance(own) / length)[None]
        fluent = torch.stack(
            [
                language.after(left) + language.before(right) - language.follows(left, right)
                for left, right in zip(context, context[1:], strict=False)
            ]
        )
        scores = _standard(fits) + _standard(joined) + _standard(fluent)
        scores[:, encoder.control] = -torch.inf
        self._insertions = _best(scores, _MOST)

    def __iter__(self) -> Iterator[Ids]:
        """Kinds of changes take turns."""
        kinds = {"s": self.substitutes(), "i": self.insertions(), "o": self.orders()}
        while kinds:
            for kind in _TURNS:
                if kind in kinds:
                    changed = next(kinds[kind], None)
                    if changed is None:
                        del kinds[kind]
                    else:
                        yield changed

    def substitutes(self) -> Iterator[Ids]:
        """Another token at a place."""
        for place, token in self._substitutes:
            yield (*self.ids[:place], token, *self.ids[place + 1 :])

    def insertions(self) -> Iterator[Ids]:
        """One more token."""
        for place, token in self._insertions:
            yield (*self.ids[:place], token, *self.ids[place:])

    def orders(self) -> Iterator[Ids]:
        """Two tokens in each other's place, or up to three neighbours somewhere else; the more fluent, the earlier."""
        found = sorted(set(orders(self.ids)) - {self.ids})
        found.sort(key=lambda ids: -round(self.language.score(ids), 3))
        yield from found[:_ORDERS]


def orders(ids: Ids) -> Iterator[Ids]:
    """A text with two tokens exchanged, or with up to three neighbours moved; some come twice."""
    count = len(ids)
    for one in range(count):
        for other in range(one + 1, count):
            yield (*ids[:one], ids[other], *ids[one + 1 : other], ids[one], *ids[other + 1 :])
        for end in range(one + 1, min(one + _SPAN, count) + 1):
            rest = ids[:one] + ids[end:]
            for to in range(len(rest) + 1):
                yield rest[:to] + ids[one:end] + rest[to:]


def _joined(rests: Tensor, toward: Tensor, near: Tensor, alike: Tensor, count: int) -> Tensor:
    """Predicted cosine of the target with texts to which a token is added.

    Args:
        rests: Vectors of the texts, (k, d).
        toward: Cosine of the target with each token, (V,).
        near: Of the target with each text, (k,).
        alike: Of each text with each token, (k, V).
        count: Tokens of a text.
    """
    share = _SHARE / (count + 2)
    length = (1 + share**2 + 2 * share * alike).clamp_min(_LEAST).sqrt()
    return (near[:, None] + share * toward) / length


def _distance(cosines: Tensor) -> Tensor:
    """Of unit vectors with these cosines."""
    return (2 - 2 * cosines).clamp_min(_LEAST).sqrt()


def _standard(scores: Tensor) -> Tensor:
    """With standard deviation 1, or all 0."""
    return (scores - scores.mean()) / scores.std().clamp_min(_LEAST)


def _best(scores: Tensor, most: int) -> Sequence[tuple[int, int]]:
    """Places and tokens of the highest scores (places, V), the highest first."""
    found = scores.flatten().topk(min(most, scores.numel())).indices.tolist()
    return [divmod(flat, scores.shape[1]) for flat in found]
