"""Correction as a refiner: a trained corrector rewrites the texts of any attack towards their vectors.

python train.py attack=geia attack/refine=[correction] attack.refine.correction.corrector_run=runs/corrector
python evaluate.py run=<dir> attack/refine=[rerank,correction] attack.refine.correction.corrector_run=runs/corrector

An attack's run keeps a copy of the corrector's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.attacks.vec2text.corrector import Corrector
from unembed.attacks.vec2text.search import CorrectionSearch
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.embedder_check import check_embedder
from unembed.runs.stored_attack import attack_of, class_of, keep

KEY = "attack.refine.correction.corrector_run"
COPY, SOURCE = "corrector", "source.json"  # among the artifacts


class Correction(Refiner):
    """Rewrites the best candidate of each target; the others stand behind it.

    Args:
        corrector_run: A finished run of attack=vec2text_corrector on the same embedder.
        search: How corrections are searched.
    """

    def __init__(self, corrector_run: str, search: CorrectionSearch) -> None:
        self.corrector_run, self.search = Path(corrector_run), search
        self._source = {"corrector_run": corrector_run}
        self._corrector: Corrector | None = None

    def check(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        """See Refiner.

        Raises:
            InputError: The run is none of a corrector, or was trained on another embedder.
        """
        super().check(dimension, oracle)
        assert oracle is not None
        if self.corrector_run.is_dir():  # else the attack's run has a copy, or ``prepare`` says what is missing
            check_corrector(self.corrector_run, KEY, oracle)

    def prepare(self, texts: Sequence[str], artifacts: Path, oracle: CachedEmbedder | None) -> None:
        """Copy the run."""
        keep(self.corrector_run, artifacts / COPY)
        write_json(artifacts / SOURCE, self._source)

    def prepared(self, artifacts: Path) -> bool:
        """Whether the copied run is the configured one."""
        return (artifacts / SOURCE).is_file() and read_json(artifacts / SOURCE) == self._source

    def load(self, artifacts: Path, dimension: int) -> None:
        """Read the corrector."""
        corrector = attack_of(artifacts / COPY, dimension)
        assert isinstance(corrector, Corrector)
        corrector.search, self._corrector = self.search, corrector

    def all_weights(self) -> dict[str, Tensor]:
        """The corrector's."""
        return {} if self._corrector is None else self._corrector.all_weights()

    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        """See Refiner."""
        assert self._corrector is not None
        corrector = self._corrector.to(targets.vectors.device)
        start = corrector.rewriter.read([prediction.candidates[0] for prediction in predictions])
        last = [rounds[-1] for rounds in corrector.correct(targets, oracle, start=start)]
        return [
            before.refined((one.text, *before.candidates), partial=one.partial)
            for before, one in zip(predictions, last, strict=True)
        ]


def check_corrector(run: Path, key: str, oracle: CachedEmbedder) -> None:
    """Whether ``run`` is that of a corrector on the same embedder; ``key`` names it in messages.

    Raises:
        InputError: It is not.
    """
    check_embedder(run, key, oracle.source.fingerprint, oracle.source.dimension)
    if not issubclass(kind := class_of(run), Corrector):
        raise InputError(
            f"{key}={run}: a run of attack=vec2text_corrector is wanted, and that is one of {kind.__name__}"
        )
