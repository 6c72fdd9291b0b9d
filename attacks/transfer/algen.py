"""Few-shot alignment (ALGEN; Chen, Xu and Bjerva 2025, arXiv 2502.11308): few known texts instead of the embedder.

python train.py attack=algen attack.source_run=runs/own embedder=minilm datamodule=files datamodule.limit_train=100 ...

victim vector --map fitted to n pairs--> vector in the attacker's own space --its decoder--> text

The training texts are the known pairs: texts whose vectors in the victim's space the attacker has. No victim vectors
are read but theirs and the attacked ones. The decoder was trained on the own encoder's vectors of public text before
(``attack.source_run``). The victim's embedder is asked for nothing: texts are compared with a target by the own encoder
and a map from its space to the victim's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_info
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.finished import COPY
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.attacks.transfer.aligned import ABOUT, MAPS, START, Paired
from unembed.attacks.transfer.aligners import Aligner, LeaveOneOut, Map, write_maps
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.config_file import read_config
from unembed.runs.stored_attack import keep
from unembed.runs.trust import check_trusted

BACK, FORTH = "back", "forth"


class ALGEN(Paired):
    """A trained decoder of another embedder, behind a map from the victim's space.

    Its run keeps a copy of the decoder's run and the maps.

    Args:
        source_run: See Aligned.
        aligner: How the map is fitted.
        cache_dir: Cache of the own encoder.
        rounds: Rounds of feedback by the own encoder (see attacks/transfer/algen.py); 0: the map alone.
        proposals: Texts decoded for a target in each round.
        public: Training texts of ``source_run`` whose own vectors say how vectors of that space are distributed.
        refine: See Attack; these refiners ask the victim's embedder.
    """

    def __init__(
        self,
        source_run: str,
        aligner: Aligner,
        cache_dir: str,
        rounds: NonNegativeInt = 3,
        proposals: PositiveInt = 4,
        public: PositiveInt = 4000,
        refine: Mapping[str, Refiner] | None = None,
    ) -> None:
        super().__init__(source_run, cache_dir, public, refine)
        self.aligner, self.rounds, self.proposals = aligner, rounds, proposals
        self._encoder: CachedEmbedder | None = None

    # -- fitting --------------------------------------------------------------------------------------------------

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Fit the maps, and copy the decoder's run."""
        source = self.source()
        known = self.known(source, self.public_texts(self.public))
        found = self.aligner.fit(known)
        maps: dict[str, Map] = {START: found.map}
        if self.rounds:
            maps |= {BACK: found.plain, FORTH: LeaveOneOut().fit(known.reversed()).plain}
        keep(self.source_run, artifacts / COPY)
        write_maps(artifacts / MAPS, maps)
        write_json(artifacts / ABOUT, {**found.about, "encoder": source.fingerprint})
        rank_zero_info("aligned: " + ", ".join(f"{name} {value:.4g}" for name, value in found.about.items()))

    # -- inversion ------------------------------------------------------------------------------------------------

    @property
    def map_names(self) -> Collection[str]:
        """See Aligned; feedback needs two more."""
        return [START, BACK, FORTH] if self.rounds else [START]

    @property
    def decoded(self) -> int:
        """See Aligned; feedback chooses among them."""
        return self.proposals if self.rounds else super().decoded

    @property
    def encoder(self) -> CachedEmbedder:
        """The attacker's own encoder."""
        if self._encoder is None:
            assert self.artifacts is not None
            folder = self.artifacts / COPY
            config = read_config(folder)
            check_trusted(config, folder, built=["embedder"])
            encoder = self.encoder_of(config)
            if encoder.fingerprint != read_json(self.artifacts / ABOUT)["encoder"]:
                raise InputError(f"{folder}: the attacker's own encoder has changed since the maps were fitted")
            self._encoder = encoder
        return self._encoder

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Map, decode, and compare by the own encoder; asks the victim's embedder for nothing."""

        def decode(vectors: Tensor) -> Proposals:
            aligned = replace(targets, vectors=vectors.to(targets.vectors))
            return [list(one.candidates) for one in self.decoder.propose(aligned, None)]

        start = self._maps[START](targets.vectors)
        if self.rounds:
            feedback = Feedback(self._maps[BACK], self._maps[FORTH], self.rounds)
            texts = feedback(targets.vectors, start, decode, lambda new: self.encoder.embed(new, "attack"))
        else:
            texts = decode(start)
        count = max(1, self.refiners.proposals)
        return [Prediction(tuple(found[:count])) for found in texts]


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
