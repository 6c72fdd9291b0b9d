"""Few-shot alignment (ALGEN; Chen, Xu and Bjerva 2025, arXiv 2502.11308): few known texts instead of the embedder.

python train.py attack=algen attack.source_run=runs/own embedder=minilm datamodule=files datamodule.limit_train=100 ...

victim vector --map fitted to n pairs--> vector in the attacker's own space --its decoder--> text

The training texts are the known pairs: texts whose vectors in the victim's space the attacker has. No victim vectors
are read but theirs and the attacked ones. The decoder was trained on the own encoder's vectors of public text before
(``attack.source_run``). The victim's embedder is asked for nothing: texts are compared with a target by the own encoder
and a map from its space to the victim's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.transfer.aligned import START, Paired
from unembed.attacks.transfer.aligners import Aligner, LeaveOneOut, Map
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder

BACK, FORTH = "back", "forth"
Proposals = list[list[str]]


class ALGEN(Paired):
    """A trained decoder of another embedder, behind a map from the victim's space."""

    option = "algen"

    def __init__(self, aligner: Aligner, rounds: NonNegativeInt = 3, proposals: PositiveInt = 4, **paired: Any) -> None:
        super().__init__(**paired)
        self.aligner, self.rounds, self.proposals = aligner, rounds, proposals

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        source = self.source()
        known = self.known(source, self.public_texts(self.public))
        found = self.aligner.fit(known)
        maps: dict[str, Map] = {START: found.map}
        if self.rounds:
            maps |= {BACK: found.plain, FORTH: LeaveOneOut().fit(known.reversed()).plain}
        self.write(artifacts, maps, {**found.about, "encoder": source.fingerprint}, "aligned")

    @property
    def decoded(self) -> int:
        return self.proposals if self.rounds else super().decoded

    def build(self, dimension: int) -> None:
        super().build(dimension)
        if self.rounds and BACK not in self._maps:
            raise InputError(f"attack.rounds={self.rounds}: the run was trained with attack.rounds=0, without feedback")

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Map, decode, and compare by the own encoder; asks the victim's embedder for nothing."""

        def write(vectors: Tensor) -> Proposals:
            mapped = replace(targets, vectors=vectors.to(targets.vectors))
            return [list(one.candidates) for one in self.decoder.propose(mapped, None)]

        def embed(texts: list[str]) -> Tensor:
            return self.encoder.embed(texts, "attack")

        start = self._maps[START](targets.vectors)
        if not self.rounds:
            return self.decode(targets, start)
        back, forth = self._maps[BACK], self._maps[FORTH]
        texts = feedback(targets.vectors, start, back, forth, self.rounds, write, embed)
        return [Prediction(tuple(found[: max(1, self.refiners.proposals)])) for found in texts]


def feedback(
    targets: Tensor,
    start: Tensor,
    back: Map,
    forth: Map,
    rounds: int,
    write: Callable[[Tensor], Proposals],
    embed: Callable[[list[str]], Tensor],
) -> Proposals:
    """Better texts for targets by what the attacker's own encoder says of those found so far; closest first.

    A decoded text lies, by the own encoder, at v in the own space, and so about at forth(v) in the victim's. What is
    left of the target, back(target) - back(forth(v)), is added to v and decoded again: what the map cannot see is kept
    from the text. Of all texts of a target, the one whose forth(v) has the highest cosine with the target is best.

    Args:
        targets: (m, d) in the victim's space.
        start: (m, k) in the own space, decoded first.
        back: From the victim's space to the own, a regression without scaling.
        forth: From the own space to the victim's.
        rounds: How often the best text of each target is decoded again.
        write: Texts, best first, for each vector of the own space.
        embed: Vectors of texts by the own encoder.
    """
    targets = targets.cpu().double()
    own: dict[str, Tensor] = {}  # vectors of all texts by the own encoder
    there: dict[str, Tensor] = {}  # the same, mapped to the victim's space
    found: list[list[str]] = [[] for _ in targets]
    wanted = start
    for number in range(rounds + 1):
        written = write(wanted)
        new = list(dict.fromkeys(text for texts in written for text in texts if text not in own))
        if new:
            vectors = embed(new).double()
            own |= zip(new, vectors, strict=True)
            there |= zip(new, forth(vectors), strict=True)
        found = [list(dict.fromkeys([*texts, *more])) for texts, more in zip(found, written, strict=True)]
        ranked = [_ranked(target, texts, there) for target, texts in zip(targets, found, strict=True)]
        if number < rounds:
            best = [texts[0] for texts in ranked]
            seen = back(torch.stack([there[text] for text in best]))
            wanted = torch.stack([own[text] for text in best]) + back(targets) - seen
    return ranked


def _ranked(target: Tensor, texts: list[str], there: dict[str, Tensor]) -> list[str]:
    """The texts by cosine; of equals, the one that was found first."""
    cosines = torch.cosine_similarity(torch.stack([there[text] for text in texts]), target[None]).tolist()
    return [text for _, text in sorted(zip(cosines, texts, strict=True), key=lambda one: -one[0])]
