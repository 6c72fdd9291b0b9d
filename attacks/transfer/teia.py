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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import mse_loss, normalize, softplus

from unembed.attacks.base import Attack
from unembed.attacks.finished import COPY
from unembed.attacks.parts.optimizers import OptimizerSettings, scheduled
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.attacks.transfer.aligned import ABOUT, MAPS, START, Paired
from unembed.attacks.transfer.aligners import Known, LeaveOneOut, Map, read_maps, write_maps
from unembed.core.atomic_files import write_file, write_json
from unembed.datamodules.token_ids import IGNORED, TokenIds
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.stored_attack import keep

FORTH = "forth"  # from the own space to the victim's
HELD_OUT = "held_out.npy"  # among the artifacts: the known texts as they enter the decoder in training


class TEIA(Paired):
    """A decoder of the victim's vectors, trained with a surrogate of the victim's embedder.

    Its run keeps a copy of the decoder's run, where the decoder starts, and the two maps.

    Args:
        source_run: See Aligned; its training text is the attacker's public text.
        surrogate: Head and discriminator.
        optimizer: Optimiser settings, of decoder, head and discriminator.
        cache_dir: Cache of the own encoder.
        public: See Paired.
        public_batch: Public texts in a training step, beside the known ones of the batch.
        known_share: Known texts that the decoder reads in a step, as a share of ``public_batch``; at most the whole
            batch of the data module.
        known_part: The same as a share of all known texts: few texts, read too often, are learnt by heart.
        refine: See Attack; these refiners ask the victim's embedder.
    """

    trainable = True
    validated = False

    def __init__(
        self,
        source_run: str,
        surrogate: Surrogate,
        optimizer: OptimizerSettings,
        cache_dir: str,
        public: PositiveInt = 24_000,
        public_batch: PositiveInt = 64,
        known_share: Annotated[float, Field(ge=0)] = 0.5,
        known_part: Annotated[float, Field(ge=0, le=1)] = 0.08,
        refine: Mapping[str, Refiner] | None = None,
    ) -> None:
        super().__init__(source_run, cache_dir, public, refine)
        self.surrogate, self.optimizer_settings = surrogate, optimizer
        self.public_batch, self.known_share, self.known_part = public_batch, known_share, known_part

    # -- before training ------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """See Aligned; in training, the attacked vectors are known, and their texts are not."""
        if stage == "fit":
            self.data.embed("test")
            self.data.fit_denoiser()  # on every rank: prepare, which reads these vectors, is called on one
        super().setup(stage)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Fit the maps, and copy the decoder's run."""
        source = self.source()
        known = self.known(source, self.public_texts(self.public))
        start, forth = LeaveOneOut().fit(known), LeaveOneOut().fit(known.reversed())
        keep(self.source_run, artifacts / COPY)
        write_file(artifacts / HELD_OUT, lambda file: np.save(file, start.held_out.float().numpy()))
        write_maps(artifacts / MAPS, {START: start.map, FORTH: forth.map})
        write_json(artifacts / ABOUT, {**forth.about, "encoder": source.fingerprint})
        rank_zero_info("surrogate: " + ", ".join(f"{name} {value:.4g}" for name, value in forth.about.items()))

    def build(self, dimension: int) -> None:
        """Make the decoder and the surrogate."""
        super().build(dimension)
        self.reader = self._held[0].train()
        self.surrogate.build(own=self._maps[START].dimensions[1], victim=dimension)

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Those of the decoder."""
        return self.reader.encode(texts)

    def configure_optimizers(self) -> Any:
        return scheduled(self.optimizer_settings, self)

    def on_fit_start(self) -> None:
        """Read what the attacker has beside the batches of known texts."""
        super().on_fit_start()
        assert self.artifacts is not None
        source = self.source()
        public = self.public_texts(self.public)
        maps = read_maps(self.artifacts / MAPS, [START, FORTH])
        entered = torch.from_numpy(np.load(self.artifacts / HELD_OUT))
        labels, known = TokenIds(public, self.encode), self.known(source, public)
        self._attacker = _Attacker.of(labels, known, maps[START], maps[FORTH], entered)

    # -- training and inversion -----------------------------------------------------------------------------------

    def batch_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Of the decoder on public texts and some known ones, and of the surrogate on all of the batch."""
        has, rows = self._attacker, self._sampled(len(self._attacker.public), self.public_batch)
        made = self._surrogate(has.public, rows)
        shown = math.ceil(min(self.known_share * self.public_batch, self.known_part * len(has.pairs)))
        index = batch["index"].cpu()
        read = torch.randperm(len(index))[:shown]  # a batch is sorted by length: its first texts are the shortest
        moved = self._entered(has.moved_back(made.detach())) + has.shift.to(made)
        labels = _stacked(has.labels.padded(rows.numpy()), batch["labels"][read])
        loss = self.reader.loss(torch.cat([moved, has.held_out[index[read]].to(made)]), labels)
        real = has.real[self._sampled(len(has.real), self.public_batch)].to(made)
        known, victim = self._surrogate(has.pairs, index), has.standard(batch["vectors"])
        return loss + self.surrogate.loss(made, real, known, victim)

    def _surrogate(self, texts: _Texts, rows: Tensor) -> Tensor:
        made: Tensor = self.surrogate(texts.own[rows].to(self.device), texts.mapped[rows].to(self.device))
        return made

    def _sampled(self, count: int, size: int) -> Tensor:
        """Random rows of ``count``, other ones on each rank."""
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        return torch.randint(count, (ranks, size))[rank]

    def _entered(self, vectors: Tensor) -> Tensor:
        """Victim vectors, (n, d), in the decoder's space, (n, k)."""
        return self._maps[START](vectors).to(vectors)

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Decode each target; asks the victim's embedder for nothing."""
        found = self.reader.propose(replace(targets, vectors=self._entered(targets.vectors)), None)
        count = max(1, self.refiners.proposals)
        return [replace(one, candidates=one.candidates[:count]) for one in found]

    def all_weights(self) -> dict[str, Tensor]:
        """See Aligned; the decoder is one of its modules."""
        maps = {f"{START}.{part}": one for part, one in self._maps[START].tensors().items()}
        return Attack.all_weights(self) | maps


@dataclass(frozen=True, slots=True)
class _Texts:
    """Vectors of texts in float32: own ones, (n, k), and what the map makes of them, standardised, (n, d)."""

    own: Tensor
    mapped: Tensor

    def __len__(self) -> int:
        return len(self.own)


@dataclass(frozen=True, slots=True)
class _Attacker:
    """What the attacker has in training.

    Attributes:
        labels: Of the public texts.
        public: Their vectors.
        pairs: Those of the known texts.
        real: Vectors of the victim, of the store and the known texts, standardised, (m, d).
        center: Their mean, (d,).
        spread: Root of the mean variance of their coordinates.
        held_out: The known texts as they enter the decoder, (n, k): mapped without having been fitted to.
        shift: From where the public texts' surrogate vectors lie in the decoder's space to where their own vectors lie,
            (k,). The discriminator has them lie where the store does, whose texts may be of another domain.
    """

    labels: TokenIds
    public: _Texts
    pairs: _Texts
    real: Tensor
    center: Tensor
    spread: float
    held_out: Tensor
    shift: Tensor

    @classmethod
    def of(cls, labels: TokenIds, known: Known, start: Map, forth: Map, held_out: Tensor) -> _Attacker:
        """From vectors in float64."""
        real = torch.cat([known.store, known.victim])
        center = real.mean(0)
        spread = max(float((real - center).square().mean().sqrt()), 1e-12)
        made = forth(known.public)
        public, pairs = (
            _Texts(own.float(), ((mapped - center) / spread).float())
            for own, mapped in ((known.public, made), (known.own, forth(known.own)))
        )
        shift = known.public.mean(0) - start(made).mean(0)
        standard = ((real - center) / spread).float()
        return cls(labels, public, pairs, standard, center.float(), spread, held_out, shift.float())

    def standard(self, vectors: Tensor) -> Tensor:
        """Vectors of the victim's space with mean 0, and mean variance 1 of a coordinate."""
        standard: Tensor = (vectors - self.center.to(vectors)) / self.spread
        return standard

    def moved_back(self, vectors: Tensor) -> Tensor:
        """The inverse of ``standard``."""
        moved: Tensor = vectors * self.spread + self.center.to(vectors)
        return moved


def _stacked(first: Tensor, others: Tensor) -> Tensor:
    """Labels of both below each other, padded with -100 to one length, on the device of the others."""
    first = first.to(others)
    longest = max(first.shape[1], others.shape[1])
    padded = [nn.functional.pad(one, (0, longest - one.shape[1]), value=IGNORED) for one in (first, others)]
    return torch.cat(padded)


class Surrogate(nn.Module):
    """The head, and the discriminator that it is trained against.

    Both have one hidden layer, as the authors' have. The head's result is added to that of the closed-form map, and is
    0 at first.

    Args:
        pivot_weight: Of the distance from the victim's vectors of the known texts.
        adversarial_weight: Of the discriminator's judgement.
        discriminator: Hidden units of the discriminator.
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
        """Make the layers for spaces of these dimensions."""
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
