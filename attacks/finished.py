"""A finished run's attack, as it is, on other vectors: nothing is trained.

python train.py attack=finished attack.source_run=runs/geia defense=int8 defense.adaptive=true
python train.py attack=finished attack.source_run=runs/geia attack/refine=[lexicon] attack.refine.lexicon.max_queries=20

evaluate.py tests a run again, too; this makes a run of it, which a grid of runs can hold beside others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from atomic_files import read_json, write_json
from attacks.base import Attack
from attacks.generative import GenerativeAttack
from defenses.base import Fitted
from defenses.threat import threat_of
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from models.predictions import Prediction, Targets
from models.refining import Refiner
from run_directory.config_file import read_config
from run_directory.embedder_check import check_embedder
from run_directory.stored_attack import attack_of, class_of, keep

COPY, ABOUT = "source", "finished.json"  # among the artifacts
KEY = "attack.source_run"


class Finished(Attack):
    """The decoder of a finished run. Its own run keeps a copy of the weights.

    Vectors of fewer dimensions than the decoder was trained on, as ``defense=truncation`` makes them, are filled up
    with zeros. The run's own refiners are left out.

    Args:
        source_run: A finished run of a decoder of vectors, on the same embedder.
        refine: See Attack.
    """

    trainable = False
    reads_training_text = False

    def __init__(self, source_run: str, refine: Mapping[str, Refiner] | None = None) -> None:
        super().__init__(refine)
        self.source_run = Path(source_run)
        self._held: list[GenerativeAttack] = []  # no submodule: it is not trained
        self._trained = 0  # dimension of the vectors that it was trained on

    def prepare_data(self) -> None:
        """Check before anything is embedded that the run has ended, is of a decoder, and of this embedder.

        Raises:
            InputError: It is not.
        """
        if not self.from_checkpoint:
            assert self.oracle is not None
            source = self.oracle.source
            check_embedder(self.source_run, KEY, source.fingerprint, source.dimension)
            if not issubclass(kind := class_of(self.source_run), GenerativeAttack):
                raise InputError(
                    f"{KEY}={self.source_run}: a trained decoder of vectors is wanted (attack=geia, "
                    f"vec2text_inverter), and that is a run of {kind.__name__}"
                )
        super().prepare_data()

    def setup(self, stage: str) -> None:
        """See Attack; what a defense estimates, it estimates from the training texts, which nothing else reads."""
        if not self.from_checkpoint and isinstance(self.data.defense, Fitted):
            self.data.fit_defense()
        super().setup(stage)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Copy the run, and note the dimension of the vectors that it was trained on."""
        trained = threat_of(read_config(self.source_run).defense).dimension(self.data.embedder.dimension)
        keep(self.source_run, artifacts / COPY)
        write_json(artifacts / ABOUT, {"dimension": trained})

    def build(self, dimension: int) -> None:
        """Read the decoder.

        Raises:
            InputError: It was trained on vectors of fewer dimensions than these have.
        """
        assert self.artifacts is not None
        self._trained = int(read_json(self.artifacts / ABOUT)["dimension"])
        if dimension > self._trained:
            raise InputError(
                f"{KEY}={self.source_run}: was trained on vectors of dimension {self._trained}, and these have "
                f"{dimension}"
            )
        decoder = attack_of(self.artifacts / COPY, self._trained)
        assert isinstance(decoder, GenerativeAttack)
        decoder.decoding.propose(self.refiners.proposals)
        self._held = [decoder.requires_grad_(False)]

    @property
    def decoder(self) -> GenerativeAttack:
        """The decoder, where this attack is."""
        return self._held[0].to(self.device)

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Decode each target; asks the embedder for nothing."""
        short = self._trained - targets.vectors.shape[1]
        vectors = torch.nn.functional.pad(targets.vectors, (0, short))
        found = self.decoder.propose(replace(targets, vectors=vectors), None)
        count = max(1, self.refiners.proposals)
        return [replace(one, candidates=one.candidates[:count]) for one in found]

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Those of the decoder."""
        return self.decoder.tokens(texts)

    def begin_trial(self, number: int) -> None:
        """See GenerativeAttack."""
        self.decoder.begin_trial(number)

    def all_weights(self) -> dict[str, Tensor]:
        """The decoder's weights."""
        held = {f"{COPY}.{name}": tensor for name, tensor in self.decoder.all_weights().items()}
        return super().all_weights() | held
