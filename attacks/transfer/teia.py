"""Surrogate transfer (TEIA; Huang et al., ACL 2024): a decoder trained on a surrogate of the victim's embedder.

python train.py attack=teia attack.source_run=runs/own embedder=minilm datamodule=files datamodule.limit_train=100 ...

public text --own encoder, head--> vector like the victim's --decoder--> the same text        (training)
victim vector --the same decoder--> text

The training texts are the known pairs, as for attack=algen; no other victim vectors are read but the attacked ones.
The head is trained on the pairs, and against a discriminator that learns to tell its vectors from the victim's. The
decoder is that of ``attack.source_run`` behind the map of attack=algen, which is fixed, and is trained further, on the
vectors of the head and of the pairs. A known text enters the decoder as the map without this text has it: the map is
much closer on the texts that it was fitted to than on those that are attacked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import mse_loss, normalize, softplus

from unembed.attacks.parts.optimizers import OptimizerSettings, scheduled
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.transfer.aligned import START, Paired
from unembed.attacks.transfer.aligners import LeaveOneOut
from unembed.core.atomic_files import write_file
from unembed.datamodules.arrow_examples import IGNORED, TokenIds
from unembed.embedders.cache.cached import CachedEmbedder

FORTH = "forth"  # from the own space to the victim's
HELD_OUT = "held_out.npy"  # among the artifacts: the known texts as they enter the decoder in training


class TEIA(Paired):
    """A decoder of the victim's vectors, trained with a surrogate of the victim's embedder.

    ``known_part`` bounds how many known texts the decoder reads in a step: few texts, read too often, are learnt by
    heart.
    """

    option = "teia"
    trainable = True
    validated = False

    def __init__(
        self,
        surrogate: Surrogate,
        optimizer: OptimizerSettings,
        public_batch: PositiveInt = 64,
        known_share: Annotated[float, Field(ge=0)] = 0.5,
        known_part: Annotated[float, Field(ge=0, le=1)] = 0.08,
        **paired: Any,
    ) -> None:
        super().__init__(**paired)
        self.surrogate, self.optimizer_settings = surrogate, optimizer
        self.public_batch, self.known_share, self.known_part = public_batch, known_share, known_part

    # -- before training ------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """In training, the attacked vectors are known, and their texts are not."""
        if stage == "fit":
            self.data.embed("test")
            self.data.fit_denoiser()  # on every rank: prepare, which reads these vectors, is called on one
        super().setup(stage)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        source = self.source()
        known = self.known(source, self.public_texts(self.public))
        start, forth = LeaveOneOut().fit(known), LeaveOneOut().fit(known.reversed())
        assert start.held_out is not None
        held_out = start.held_out.float().numpy()
        write_file(artifacts / HELD_OUT, lambda file: np.save(file, held_out))
        about = {**forth.about, "encoder": source.fingerprint}
        self.write(artifacts, {START: start.map, FORTH: forth.map}, about, "surrogate")

    def build(self, dimension: int) -> None:
        super().build(dimension)
        self.reader = self.decoder.train()
        self.surrogate.build(own=self._maps[START].dimensions[1], victim=dimension)

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return self.reader.encode(texts)

    def configure_optimizers(self) -> Any:
        return scheduled(self.optimizer_settings, self)

    def on_fit_start(self) -> None:
        """Read what the attacker has beside the batches of known texts."""
        super().on_fit_start()
        source = self.source()
        public = self.public_texts(self.public)
        known, start, forth = self.known(source, public), self._maps[START], self._maps[FORTH]
        # In the victim's space, vectors are standardised: mean 0, and mean variance 1 of a coordinate.
        real = torch.cat([known.store, known.victim])
        center = real.mean(0)
        self._center, self._spread = center.float(), max(float((real - center).square().mean().sqrt()), 1e-12)
        self._real = ((real - center) / self._spread).float()
        mapped = forth(known.public)
        self._public = known.public.float(), ((mapped - center) / self._spread).float()
        self._pairs = known.own.float(), ((forth(known.own) - center) / self._spread).float()
        # From where the public texts' surrogate vectors lie in the decoder's space to where their own vectors lie. The
        # discriminator has them lie where the store does, whose texts may be of another domain.
        self._shift = (known.public.mean(0) - start(mapped).mean(0)).float()
        self._labels = TokenIds(public, self.encode)
        self._held_out = torch.from_numpy(np.load(self.artifacts / HELD_OUT))

    # -- training and inversion -----------------------------------------------------------------------------------

    def batch_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Of the decoder on public texts and some known ones, and of the surrogate on all of the batch."""
        rows = self._sampled(len(self._labels.lengths), self.public_batch)
        made = self._surrogate(self._public, rows)
        shown = math.ceil(min(self.known_share * self.public_batch, self.known_part * len(self._held_out)))
        index = batch["index"].cpu()
        read = torch.randperm(len(index))[:shown]  # a batch is sorted by length: its first texts are the shortest
        center, shift = self._center.to(made), self._shift.to(made)
        moved = self._entered(made.detach() * self._spread + center) + shift
        both = [*self._labels.padded(rows.numpy()).to(batch["labels"]), *batch["labels"][read]]
        labels = nn.utils.rnn.pad_sequence(both, batch_first=True, padding_value=IGNORED)
        loss = self.reader.loss(torch.cat([moved, self._held_out[index[read]].to(made)]), labels)
        real = self._real[self._sampled(len(self._real), self.public_batch)].to(made)
        victim = (batch["vectors"] - center) / self._spread
        return loss + self.surrogate.loss(made, real, self._surrogate(self._pairs, index), victim)

    def _surrogate(self, texts: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        """Surrogate vectors of some texts, from their own vectors (n, k) and what the map makes of them (n, d)."""
        made: Tensor = self.surrogate(*(vectors[rows].to(self.device) for vectors in texts))
        return made

    def _sampled(self, count: int, size: int) -> Tensor:
        """Random rows of ``count``, other ones on each rank."""
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        return torch.randint(count, (ranks, size))[rank]

    def _entered(self, vectors: Tensor) -> Tensor:
        return self._maps[START](vectors).to(vectors)

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        return self.decode(targets, self._entered(targets.vectors))


class Surrogate(nn.Module):
    """The head, and the discriminator that it is trained against.

    Both have one hidden layer, as the authors' have. The head's result is added to that of the closed-form map, and is
    0 at first.
    """

    def __init__(
        self,
        pivot_weight: NonNegativeFloat = 1.0,
        adversarial_weight: NonNegativeFloat = 1.0,
        discriminator: PositiveInt = 128,
    ) -> None:
        super().__init__()
        self.pivot_weight, self.adversarial_weight, self.hidden = pivot_weight, adversarial_weight, discriminator

    def build(self, own: int, victim: int) -> None:
        middle, last = nn.Linear(own, (own + victim) // 2), nn.Linear((own + victim) // 2, victim)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(middle, nn.ReLU(), last)
        self.discriminator = nn.Sequential(nn.Linear(victim, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1))

    def forward(self, own: Tensor, mapped: Tensor) -> Tensor:
        """Surrogate vectors: own ones, (n, k), and what the closed-form map makes of them, (n, d) -> (n, d)."""
        corrected: Tensor = mapped + self.head(own)
        return corrected

    def loss(self, made: Tensor, real: Tensor, known: Tensor, victim: Tensor) -> Tensor:
        """Both losses below: surrogate vectors of any texts and real ones, and those of known texts in both spaces."""
        return self.pivot_weight * pivot(known, victim) + self.adversarial_weight * self.adversarial(made, real)

    def adversarial(self, made: Tensor, real: Tensor) -> Tensor:
        """The discriminator's loss plus the head's, (n, d), (m, d) -> scalar.

        The discriminator is to tell vectors of the victim from the head's, and the head's are to be taken for the
        victim's; the gradient of each loss reaches its own weights only.
        """
        of_real, of_made = self.discriminator(real), self.discriminator(made.detach())
        fixed = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        of_head = softplus(-torch.func.functional_call(self.discriminator, fixed, (made,))).mean()
        loss: Tensor = softplus(-of_real).mean() + softplus(of_made).mean() + of_head
        return loss


def pivot(made: Tensor, victim: Tensor) -> Tensor:
    """Mean squared distance of a coordinate, and of the cosines of all pairs of texts, (n, d), (n, d) -> scalar."""
    return mse_loss(made, victim) + mse_loss(_cosines(made), _cosines(victim))


def _cosines(vectors: Tensor) -> Tensor:
    vectors = normalize(vectors, dim=-1)
    return vectors @ vectors.T
