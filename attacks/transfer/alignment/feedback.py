"""Better texts for a target by what the attacker's own encoder says of those found so far; the victim is not asked.

    feedback = Feedback(back, forth, rounds=3)
    found = feedback(targets, start, decode, embed)     # start (m, k) in the own space -> texts of each target

A decoded text lies, by the own encoder, at v in the own space, and so about at forth(v) in the victim's. What is left
of the target, back(target) - back(forth(v)), is added to v and decoded again: what the map cannot see is kept from the
text. Of all texts of a target, the one whose forth(v) has the highest cosine with the target is best.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from unembed.attacks.transfer.alignment.maps import Map

Proposals = list[list[str]]


class Feedback:
    """Rounds of decoding and comparing.

    Args:
        back: From the victim's space to the own, a regression without scaling.
        forth: From the own space to the victim's.
        rounds: How often the best text of each target is decoded again.
    """

    def __init__(self, back: Map, forth: Map, rounds: NonNegativeInt) -> None:
        self.back, self.forth, self.rounds = back, forth, rounds

    def __call__(
        self,
        targets: Tensor,
        start: Tensor,
        decode: Callable[[Tensor], Proposals],
        embed: Callable[[list[str]], Tensor],
    ) -> Proposals:
        """The distinct texts found for each target, closest first.

        Args:
            targets: (m, d) in the victim's space.
            start: (m, k) in the own space, decoded first.
            decode: Texts, best first, for each vector of the own space.
            embed: Vectors of texts by the own encoder.
        """
        targets = targets.cpu().double()
        found: list[dict[str, _Text]] = [{} for _ in targets]
        wanted = start
        for number in range(self.rounds + 1):
            self._add(found, decode(wanted), embed)
            ranked = [_ranked(target, texts) for target, texts in zip(targets, found, strict=True)]
            if number < self.rounds:
                best = [texts[ranking[0]] for texts, ranking in zip(found, ranked, strict=True)]
                theirs = self.back(torch.stack([one.there for one in best]))
                wanted = torch.stack([one.own for one in best]) + self.back(targets) - theirs
        return ranked

    def _add(self, found: list[dict[str, _Text]], decoded: Proposals, embed: Callable[[list[str]], Tensor]) -> None:
        new = list(dict.fromkeys(t for texts, more in zip(found, decoded, strict=True) for t in more if t not in texts))
        if not new:
            return
        own = embed(new).double()
        known = dict(zip(new, map(_Text, own, self.forth(own)), strict=True))
        for texts, more in zip(found, decoded, strict=True):
            texts.update((text, known[text]) for text in more if text not in texts)


class _Text(NamedTuple):
    """Vectors of a text: by the own encoder, and mapped to the victim's space."""

    own: Tensor
    there: Tensor


def _ranked(target: Tensor, texts: dict[str, _Text]) -> list[str]:
    """The texts by cosine; of equals, the one that was found first."""
    there = torch.stack([one.there for one in texts.values()])
    cosines = torch.cosine_similarity(there, target[None]).tolist()
    return [text for _, text in sorted(zip(cosines, texts, strict=True), key=lambda one: -one[0])]
