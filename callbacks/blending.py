"""Blend the weights of a run that was trained further (init_from) with those that it began with.

Few texts of a kind teach an attacker their style, and let it lose some of what it knew. The mean of both weights often
reads such text, and other text, better than either (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.sharding import is_sharded
from unembed.metrics.statistics import evenly
from unembed.metrics.tokens import token_overlap
from unembed.runs.checkpoints import finished_checkpoint, load_checkpoint

SMALLEST = 20  # validation texts from which a share is chosen
SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the trained weights
TOGETHER = 100  # texts decoded at once


class Blending(Callback):
    """Chooses, after training, the share of the trained weights that reads validation texts with the best word F1.

    The texts are decoded without reranking, so the embedder is asked for nothing. Does nothing for attacks that do not
    decode a text from its vector alone, in sharded training, and with fewer than ``SMALLEST`` validation texts.

    Args:
        texts: Validation texts that are read with each share.

    Attributes:
        origin: Directory of the run that the training began with; None: nothing is blended.
    """

    def __init__(self, texts: PositiveInt = 200) -> None:
        self.texts = texts
        self.origin: Path | None = None
        self._ended = False  # whether the weights are those after blending

    def state_dict(self) -> dict[str, Any]:
        """Whether the weights of the checkpoint were blended: a resumed run does it once."""
        return {"ended": self._ended}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._ended = bool(state_dict.get("ended"))

    def on_train_start(self, *_: Any) -> None:
        """A finished training that gets a larger budget is blended again."""
        self._ended = False

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score each share on the first rank, and keep the best one on all; of equals, the most trained.

        Not in ``on_train_end``, which a run that is resumed after its last step does not call.
        """
        if self._ended or self.origin is None or is_sharded(trainer.strategy):
            return
        if not (isinstance(pl_module, GenerativeAttack) and pl_module.decodes_vectors):
            return
        examples = pl_module.data.examples("valid")
        index = evenly(range(len(examples)), self.texts)
        if len(index) < SMALLEST:
            return
        pl_module.data.embed("valid")  # where nothing was validated, they are not yet
        pl_module.to(trainer.strategy.root_device)  # Lightning has moved it away
        begun = load_checkpoint(finished_checkpoint(self.origin))["state_dict"]
        trained = {name: weights.clone() for name, weights in pl_module.state_dict().items() if name in begun}
        scores = {}
        if trainer.is_global_zero:
            vectors = pl_module.data.vectors("valid", index).to(pl_module.device)
            references = [examples[row].text for row in index]
            for share in SHARES:
                _blend(pl_module, begun, trained, share)
                scores[share] = _score(pl_module, vectors, references)
        scores = trainer.strategy.broadcast(scores)
        best = max(SHARES, key=lambda share: scores[share])
        _blend(pl_module, begun, trained, best)
        self._ended = True
        said = ", ".join(f"{score:.1f} % with {share:.0%}" for share, score in scores.items())
        rank_zero_info(
            f"{best:.0%} of the weights are those after the training, {1 - best:.0%} those of {self.origin} before it "
            f"(word F1 on {len(index)} validation texts: {said})"
        )


@torch.no_grad()
def _blend(attack: GenerativeAttack, begun: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> None:
    """Set the weights to ``share`` of the trained ones and the rest of those that the training began with."""
    for name, weights in attack.state_dict().items():
        if name in trained and weights.is_floating_point():
            before = begun[name].to(weights)
            weights.copy_(torch.lerp(before, trained[name], share) if share else before)


@torch.no_grad()
def _score(attack: GenerativeAttack, vectors: Tensor, references: Sequence[str]) -> float:
    """Mean word F1 of what the attack reads without the embedder, in percent."""
    attack.eval()
    total = 0.0
    for start in range(0, len(references), TOGETHER):
        rows = torch.arange(start, min(start + TOGETHER, len(references)))
        read = attack.propose(Targets(vectors[rows], rows), None)
        total += sum(
            token_overlap(references[row], one.candidates[0]).f1 for row, one in zip(rows.tolist(), read, strict=True)
        )
    return total / len(references)
