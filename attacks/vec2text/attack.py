"""attack=vec2text: a trained inverter and a trained corrector, or released ones (Morris et al. 2023).

python train.py attack=vec2text attack.corrector_run=runs/corrector                 # nothing is trained: it is tested
python train.py attack=vec2text attack.corrector_run=runs/c attack.inverter_run=runs/other
python train.py attack=vec2text attack.pretrained=jxm/gtr__nq__32__correct embedder=gtr
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from unembed.attacks.parts.backbones import token_ids
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.attacks.vec2text.corrector import Corrector
from unembed.attacks.vec2text.network import NetworkRewriter
from unembed.attacks.vec2text.published import Published, check_space, load_published
from unembed.attacks.vec2text.search import CorrectionSearch, IterativeAttack, Proposal
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.stored_attack import attack_of, check_embedder, class_of, keep

CORRECTOR, INVERTER = "corrector", "inverter"


class Vec2Text(IterativeAttack):
    """The whole attack; its run keeps copies of the runs that it is made of."""

    trainable = False

    def __init__(
        self,
        corrector_run: str | None = None,
        inverter_run: str | None = None,
        pretrained: str | None = None,
        revision: str | None = None,
        **iterative: Any,
    ) -> None:
        super().__init__(**iterative)
        if (corrector_run is None) == (pretrained is None):
            raise ValueError("give either corrector_run=<run> or pretrained=<name or folder>")
        self.pretrained, self.revision = pretrained, revision
        self._published: list[Published] = []  # no submodule: it is not in the checkpoint
        runs = {CORRECTOR: corrector_run, INVERTER: inverter_run}
        self.runs = {name: Path(run) for name, run in runs.items() if run is not None}

    def check_inputs(self) -> None:
        self._load_published()
        super().check_inputs()
        if CORRECTOR in self.runs:
            check_corrector(self.runs[CORRECTOR], f"attack.{CORRECTOR}_run")

    def _load_published(self) -> None:
        if self.pretrained is not None and not self._published:
            self._published = [load_published(self.pretrained, self.revision)]
            if self.oracle is not None:
                check_space(self._published[0], self.oracle.source)

    def setup(self, stage: str) -> None:
        """Warn where test texts are longer than a released checkpoint writes."""
        super().setup(stage)
        if stage == "test" and self._published:
            texts, most = self.data.examples("test").texts, self._published[0].max_new_tokens
            longer = sum(len(ids) > most for ids in token_ids(self._published[0].tokenizer, texts))
            if longer:
                rank_zero_warn(
                    f"attack.pretrained={self.pretrained}: writes {most} tokens at most, and {longer:,} of "
                    f"{len(texts):,} test texts have more; cut them by its own tokenizer: datamodule.tokenizer=<its "
                    f"language model, such as t5-base> datamodule.max_tokens={most}"
                )

    def build(self, dimension: int) -> None:
        self._load_published()
        super().build(dimension)

    def all_weights(self) -> dict[str, Tensor]:
        weights = super().all_weights()
        for published in self._published:
            weights |= {f"pretrained.{name}": tensor for name, tensor in published.state_dict().items()}
        return weights

    @property
    def corrector(self) -> Corrector:
        corrector = self.frozen[CORRECTOR].to(self.device)
        assert isinstance(corrector, Corrector)
        return corrector

    @property
    def rewriter(self) -> NetworkRewriter:
        return self._published[0].to(self.device).rewriter if self._published else self.corrector.rewriter

    def guess(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Proposal]:
        if INVERTER not in self.frozen:
            if self._published:
                return self._published[0].to(self.device).guess(targets.vectors)
            return self.corrector.guess(targets, oracle)
        found = self.frozen[INVERTER].to(self.device).invert(targets, oracle)
        return self.rewriter.read([prediction.candidates[0] for prediction in found])


KEY = "attack.refine.correction.corrector_run"
COPY, SOURCE = "corrector", "source.json"  # among the artifacts


class Correction(Refiner):
    """Rewrites the best candidate of each target; the others stand behind it."""

    def __init__(self, corrector_run: str, search: CorrectionSearch) -> None:
        self.corrector_run, self.search = Path(corrector_run), search
        self._source = {"corrector_run": corrector_run}
        self._corrector: Corrector | None = None

    def check(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        super().check(dimension, oracle)
        assert oracle is not None
        if self.corrector_run.is_dir():  # else the attack's run has a copy, or ``prepare`` says what is missing
            check_embedder(self.corrector_run, KEY, oracle.source.fingerprint, oracle.source.dimension)
            check_corrector(self.corrector_run, KEY)

    def prepare(self, texts: Sequence[str], artifacts: Path, oracle: CachedEmbedder | None) -> None:
        keep(self.corrector_run, artifacts / COPY)
        write_json(artifacts / SOURCE, self._source)

    def prepared(self, artifacts: Path) -> bool:
        return (artifacts / SOURCE).is_file() and read_json(artifacts / SOURCE) == self._source

    def load(self, artifacts: Path, dimension: int) -> None:
        corrector = attack_of(artifacts / COPY, dimension)
        assert isinstance(corrector, Corrector)
        corrector.search, self._corrector = self.search, corrector

    def all_weights(self) -> dict[str, Tensor]:
        return {} if self._corrector is None else self._corrector.all_weights()

    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        assert self._corrector is not None
        corrector = self._corrector.to(targets.vectors.device)
        start = corrector.rewriter.read([prediction.candidates[0] for prediction in predictions])
        last = [rounds[-1] for rounds in corrector.correct(targets, oracle, start=start)]
        return [
            before.refined((one.text, *before.candidates), partial=one.partial)
            for before, one in zip(predictions, last, strict=True)
        ]


def check_corrector(run: Path, key: str) -> None:
    """Whether ``run`` is that of a corrector on the same embedder; ``key`` names it in messages."""
    if not issubclass(kind := class_of(run), Corrector):
        raise InputError(
            f"{key}={run}: a run of attack=vec2text_corrector is wanted, and that is one of {kind.__name__}"
        )
