"""Unpaired translation (vec2vec, Jha et al. 2025, arXiv 2505.12540): vectors alone, no text, no embedder.

    python train.py attack=unpaired attack.source_run=runs/own datamodule=files datamodule.path=store.jsonl ...

victim vector --map fitted without pairs--> vector in the attacker's own space --decoder of attack.source_run--> text

The victim's vectors are those of the training and the test texts, as the store holds them; no training text is read.
The attacker's own texts are the training texts of ``attack.source_run``, which its own encoder embeds. What is compared
are the two sets of vectors (translation.py). A secret rotation of the vectors is one case of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.finished import KEY
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.transfer.aligned import ABOUT, START, Aligned
from unembed.attacks.transfer.translation import Translator
from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder

FEWEST = 1000  # vectors of a set: with fewer, no map was found in our measurements


class Unpaired(Aligned):
    """A trained decoder behind a map that is fitted to unpaired vectors."""

    def __init__(self, translator: Translator, vectors: PositiveInt = 50_000, **aligned: Any) -> None:
        super().__init__(**aligned)
        self.translator, self.vectors = translator, vectors

    def check_inputs(self) -> None:
        defended = not isinstance(self.data.defense, Identity)
        if defended and not self.data.adaptive:
            raise InputError(
                "defense.adaptive=false: attack=unpaired compares vectors as they lie in the store, and the training "
                "vectors would be undefended; set defense.adaptive=true"
            )
        self.check_other_space(self.source(), defended=defended)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Fit the map, unless an interrupted run has fitted it to the same vectors; copy the decoder's run."""
        source = self.source()
        victim = self._store()
        public = self.public_texts(self.vectors)
        self._check_enough(len(victim), len(public))
        own = source.embed(public, "training").float()
        key = blake2b(victim.numpy().tobytes() + own.numpy().tobytes(), digest_size=16)
        key.update(repr(sorted(vars(self.translator).items())).encode())
        if not (artifacts / ABOUT).is_file() or read_json(artifacts / ABOUT).get("key") != key.hexdigest():
            found = self.translator.fit(victim, own)
            self.write(
                artifacts,
                {START: found.map},
                {**found.about, "encoder": source.fingerprint, "key": key.hexdigest()},
                "translated",
            )

    def _store(self) -> Tensor:
        """The victim's vectors, (m, d): those of the training texts, then those of the test texts."""
        training, tests = len(self.data.examples("train")), len(self.data.examples("test"))
        first = range(min(training, self.vectors))
        rest = range(min(tests, self.vectors - len(first)))
        return torch.cat([self.data.vectors("train", first, epoch=0), self.data.vectors("test", rest)]).float()

    def _check_enough(self, victim: int, own: int) -> None:
        least = self.translator.axes
        for count, what in (
            (victim, "the store's vectors, those of datamodule.train and datamodule.test,"),
            (own, f"the training texts of {KEY}={self.source_run}"),
        ):
            if count < least:
                raise InputError(f"attack.translator.axes={least}: {what} are {count}, too few for so many axes")
            if count < FEWEST:
                rank_zero_warn(f"{what} are {count}; with fewer than {FEWEST:,} a map is rarely found")

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        return self.decode(targets, torch.nn.functional.normalize(self._maps[START](targets.vectors), dim=-1))
