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

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.tokenizing import token_ids
from unembed.attacks.vec2text.correction import check_corrector
from unembed.attacks.vec2text.corrector import Corrector
from unembed.attacks.vec2text.iterative import IterativeAttack
from unembed.attacks.vec2text.network import NetworkRewriter
from unembed.attacks.vec2text.published import Published, load_published
from unembed.attacks.vec2text.published_space import check_space
from unembed.attacks.vec2text.search import Proposal
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.embedder_check import check_embedder
from unembed.runs.stored_attack import attack_of, keep

CORRECTOR, INVERTER = "corrector", "inverter"


class Vec2Text(IterativeAttack):
    """The whole attack; its run keeps copies of the runs that it is made of.

    Args:
        corrector_run: A finished run of attack=vec2text_corrector; or else ``pretrained``.
        inverter_run: A finished run whose texts are the first hypotheses; None: those of the corrector's own inverter.
        pretrained: A released checkpoint, by folder or name on the hub (docs/vec2text.md).
        revision: Branch, tag or commit of that name.
        iterative: See IterativeAttack.
    """

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
        self.runs = {} if corrector_run is None else {CORRECTOR: Path(corrector_run)}
        if inverter_run is not None:
            self.runs[INVERTER] = Path(inverter_run)
        self._held: dict[str, Attack] = {}

    def prepare_data(self) -> None:
        """Check before anything is embedded that the runs, or the released weights, fit the embedder."""
        if not self.from_checkpoint:
            self._check()
        self._load_published()
        super().prepare_data()

    def _check(self) -> None:
        assert self.oracle is not None
        for name, run in self.runs.items():
            if name == CORRECTOR:
                check_corrector(run, f"attack.{name}_run", self.oracle)
            else:
                source = self.oracle.source
                check_embedder(run, f"attack.{name}_run", source.fingerprint, source.dimension)

    def _load_published(self) -> None:
        if self.pretrained is not None and not self._published:
            self._published = [load_published(self.pretrained, self.revision)]
            if self.oracle is not None:
                check_space(self._published[0], self.oracle.source)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Copy the runs.

        Raises:
            InputError: One does not go with the embedder, or the corrector's is none of a corrector.
        """
        self._check()
        for name, run in self.runs.items():
            keep(run, artifacts / name)

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
        """Read corrector and inverter."""
        assert self.artifacts is not None
        self._load_published()
        self._held = {name: attack_of(self.artifacts / name, dimension) for name in self.runs}

    def all_weights(self) -> dict[str, Tensor]:
        """Include the weights of inverter and corrector."""
        parts = [(name, attack.all_weights()) for name, attack in self._held.items()]
        parts += [("pretrained", published.state_dict()) for published in self._published]
        held = {f"{part}.{name}": tensor for part, weights in parts for name, tensor in weights.items()}
        return super().all_weights() | held

    @property
    def corrector(self) -> Corrector:
        """The corrector, on the attack's device."""
        corrector = self._held[CORRECTOR].to(self.device)
        assert isinstance(corrector, Corrector)
        return corrector

    @property
    def rewriter(self) -> NetworkRewriter:
        """That of the corrector."""
        return self._published[0].to(self.device).rewriter if self._published else self.corrector.rewriter

    def guess(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Proposal]:
        """The inverter's text."""
        if INVERTER not in self._held:
            if self._published:
                return self._published[0].to(self.device).guess(targets.vectors)
            return self.corrector.guess(targets, oracle)
        found = self._held[INVERTER].to(self.device).invert(targets, oracle)
        return self.rewriter.read([prediction.candidates[0] for prediction in found])
