"""Better texts for a target by what the attacker's own encoder says of those found so far; the victim is not asked.

    feedback = Feedback(back, forth, center, rounds=3)
    found = feedback(targets, start, decode, embed)     # start (m, k) in the own space -> texts of each target

A decoded text lies, by the own encoder, at v in the own space, and so about at forth(v) in the victim's. What is left
of the target, back(target) - back(forth(v)), is added to v and decoded again: what the map cannot see is kept from the
text. Of all texts of a target, the one whose forth(v) has the highest cosine with the target is best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from models.alignment.maps import Map

Proposals = list[list[str]]


class Feedback:
    """Rounds of decoding and comparing.

    Args:
        back: From the victim's space to the own, a regression without scaling.
        forth: From the own space to the victim's.
        center: Mean of the victim's vectors, (d,), from which cosines are taken.
        rounds: How often the best text of each target is decoded again.
    """

    def __init__(self, back: Map, forth: Map, center: Tensor, rounds: NonNegativeInt) -> None:
        self.back, self.forth, self.center, self.rounds = back, forth, center, rounds

    def __call__(
        self,
        targets: Tensor,
        start: Tensor,
        decode: Callable[[Tensor], Proposals],
        embed: Callable[[Sequence[str]], Tensor],
    ) -> Proposals:
        """The distinct texts found for each target, closest first.

        Args:
            targets: (m, d) in the victim's space.
            start: (m, k) in the own space, decoded first.
            decode: Texts, best first, for each vector of the own space.
            embed: Vectors of texts by the own encoder.
        """
        targets = targets.cpu().double()
        found: list[dict[str, Tensor]] = [{} for _ in targets]  # own vectors of the texts of each target
        wanted = start
        for number in range(self.rounds + 1):
            self._add(found, decode(wanted), embed)
            ranked = [self._ranked(target, texts) for target, texts in zip(targets, found, strict=True)]
            if number < self.rounds:
                best = torch.stack([texts[ranking[0]] for texts, ranking in zip(found, ranked, strict=True)])
                wanted = best + self.back(targets) - self.back(self.forth(best))
        return ranked

    def _add(
        self, found: list[dict[str, Tensor]], decoded: Proposals, embed: Callable[[Sequence[str]], Tensor]
    ) -> None:
        new = list(dict.fromkeys(t for own, texts in zip(found, decoded, strict=True) for t in texts if t not in own))
        vectors = dict(zip(new, embed(new).double() if new else [], strict=True))
        for own, texts in zip(found, decoded, strict=True):
            own.update((text, vectors[text]) for text in texts if text not in own)

    def _ranked(self, target: Tensor, texts: dict[str, Tensor]) -> list[str]:
        """The texts by cosine, both vectors centred at the victim's mean; of equals, the one that was found first."""
        there = self.forth(torch.stack(list(texts.values()))) - self.center
        cosines = torch.cosine_similarity(there, (target - self.center)[None]).tolist()
        return [text for _, text in sorted(zip(cosines, texts, strict=True), key=lambda one: -one[0])]
