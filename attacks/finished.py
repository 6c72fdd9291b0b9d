"""The decoder of a finished run: as it is on other vectors, and as a part of other attacks (attacks/transfer).

python train.py attack=finished attack.source_run=runs/geia defense=int8 defense.adaptive=true
python train.py attack=finished attack.source_run=runs/geia attack/refine=[sentences] datamodule=files ...

evaluate.py tests a run again, too; ``attack=finished`` makes a run of it, which a grid of runs can hold beside others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.writing import Writer
from unembed.attacks.refine.refining import Refiner
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.defenses.base import Fitted
from unembed.defenses.threat import threat_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.config_file import read_config
from unembed.runs.stored_attack import class_of

COPY, ABOUT = "source", "finished.json"  # among the artifacts
KEY = "attack.source_run"


class FrozenDecoder(Attack):
    """Base of attacks that read with the decoder of a finished run, of which their own run keeps a copy.

    A subclass calls ``load_decoder`` in ``build``.
    """

    trainable = False
    reads_training_text = False

    def __init__(self, source_run: str, refine: Mapping[str, Refiner] | None = None) -> None:
        super().__init__(refine)
        self.source_run = Path(source_run)
        self.runs = {COPY: self.source_run}

    def check_kind(self) -> None:
        kind = class_of(self.source_run)
        if not (issubclass(kind, GenerativeAttack) and kind.decodes_vectors):
            raise InputError(
                f"{KEY}={self.source_run}: a trained decoder of vectors is wanted (attack=geia, vec2text_inverter), "
                f"and that is a run of {kind.__name__}"
            )

    def load_decoder(self, dimension: int, proposals: int) -> None:
        """Read the copied decoder, of vectors of this dimension, and let it propose so many texts for a vector."""
        super().build(dimension)
        self.decoder.decoding.propose(proposals)
        self.decoder.requires_grad_(self.trainable)

    @property
    def decoder(self) -> GenerativeAttack:
        decoder = self.frozen[COPY].to(self.device)
        assert isinstance(decoder, GenerativeAttack)
        return decoder

    def decode(self, targets: Targets, vectors: Tensor) -> list[Prediction]:
        """What the decoder makes of ``vectors`` in place of the targets' own, as many texts as the refiners want."""
        count = max(1, self.refiners.proposals)
        predictions = self.decoder.propose(replace(targets, vectors=vectors.to(targets.vectors)), None)
        return [replace(one, candidates=one.candidates[:count]) for one in predictions]

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return self.decoder.tokens(texts)

    def begin_trial(self, number: int) -> None:
        self.decoder.begin_trial(number)


class Finished(FrozenDecoder):
    """The decoder of a finished run on the same embedder; nothing is trained.

    Vectors of fewer dimensions than the decoder was trained on, as ``defense=truncation`` makes them, are filled up
    with zeros. The run's own refiners are left out.
    """

    _trained = 0  # dimension of the vectors that it was trained on

    def check_inputs(self) -> None:
        super().check_inputs()
        self.check_kind()

    def setup(self, stage: str) -> None:
        """What a defense estimates, it estimates from the training texts, which nothing else reads."""
        if not self.from_checkpoint and isinstance(self.data.defense, Fitted):
            self.data.fit_defense()
        super().setup(stage)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        trained = threat_of(read_config(self.source_run).defense).dimension(self.data.embedder.dimension)
        super().prepare(texts, artifacts)
        write_json(artifacts / ABOUT, {"dimension": trained})

    def build(self, dimension: int) -> None:
        self._trained = int(read_json(self.artifacts / ABOUT)["dimension"])
        if dimension > self._trained:
            raise InputError(
                f"{KEY}={self.source_run}: was trained on vectors of dimension {self._trained}, and these have "
                f"{dimension}"
            )
        self.load_decoder(self._trained, self.refiners.proposals)

    @property
    def writer(self) -> Writer | None:
        if COPY in self.frozen and self.decoder.writer is None:  # before it is built, nobody knows
            return None
        return Writer(lambda: self.decoder, self._filled)

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        return self.decode(targets, self._filled(targets.vectors))

    def _filled(self, vectors: Tensor) -> Tensor:
        return torch.nn.functional.pad(vectors, (0, self._trained - vectors.shape[1]))
