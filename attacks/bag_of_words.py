"""Multi-label classification of the words of a text (Li et al. 2023, section 4.1, "MLC").

    vector (d,) -> one linear layer -> a probability for each word -> those above a threshold: "dog love my i"

The baseline of Song and Raghunathan (2020): binary cross-entropy over the vocabulary. The threshold is the one of 0.05,
0.10, ... 0.95 with the best micro F1 on the validation texts. It is chosen whenever a checkpoint is written, so it
always matches the stored weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from unembed.attacks.base import Attack
from unembed.attacks.parts.backbones import Dropout
from unembed.attacks.parts.optimizers import OptimizerSettings, scheduled
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.vocabulary import Vocabulary
from unembed.core.atomic_files import write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder

THRESHOLDS = tuple(step / 20 for step in range(1, 20))
BLOCK = 512  # validation texts processed at once
CURVE = "threshold.json"  # among the artifacts: the threshold, and precision and recall at all of them


class WordSetAttack(Attack):
    """Base of the attacks whose predictions are sets."""

    def __init__(self, vocabulary: Vocabulary, optimizer: OptimizerSettings) -> None:
        super().__init__()
        self.vocabulary, self.optimizer_settings = vocabulary, optimizer

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        self.vocabulary.prepare(texts, artifacts)

    def build(self, dimension: int) -> None:
        self.vocabulary.load(self.artifacts)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return self.vocabulary.ids(texts)

    def validation_weight(self, batch: dict[str, Tensor]) -> int:
        return len(batch["index"])

    def prediction(self, ids: Sequence[int]) -> Prediction:
        return Prediction((self.vocabulary.text(ids),), kind="set", tokens=tuple(ids))

    def configure_optimizers(self) -> Any:
        return scheduled(self.optimizer_settings, self)


class BagOfWords(WordSetAttack):
    """One linear layer, or an MLP, from a vector to the probability of each entry of a vocabulary."""

    threshold: Tensor

    def __init__(
        self,
        vocabulary: Vocabulary,
        optimizer: OptimizerSettings,
        hidden: PositiveInt | None = None,
        dropout: Dropout = 0.0,
        positive_weight: PositiveFloat = 1.0,
        normalize: bool = True,
    ) -> None:
        super().__init__(vocabulary, optimizer)
        self.hidden, self.dropout, self.positive_weight = hidden, dropout, positive_weight
        self.normalize = normalize

    # -- the model ------------------------------------------------------------------------------------------------

    def build(self, dimension: int) -> None:
        """Make the layers; each word's bias is initialised to the log odds of its frequency."""
        super().build(dimension)
        width = self.hidden or dimension
        between = [] if self.hidden is None else [nn.Linear(dimension, width), nn.GELU(), nn.Dropout(self.dropout)]
        output = nn.Linear(width, self.vocabulary.size)
        with torch.no_grad():
            output.weight.zero_()
            output.bias.copy_(self.vocabulary.frequency.logit())
        self.layers = nn.Sequential(nn.Dropout(self.dropout), *between, output)
        self.register_buffer("threshold", torch.tensor(0.5))

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.layers(scaled(vectors) if self.normalize else vectors)
        return logits

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The distinct entries of each text, and one number beyond the vocabulary for each distinct unknown word."""
        return [_distinct(row, self.vocabulary.size) for row in self.tokens(texts)]

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Binary cross-entropy, summed over the vocabulary, mean over texts: nats a text.

        Computed as if all entries were absent, then corrected for the few present ones, to avoid a matrix of labels.
        """
        logits = self(vectors).float()
        known = (labels >= 0) & (labels < self.vocabulary.size)
        present = logits.gather(1, labels.where(known, 0))
        correction = self.positive_weight * nn.functional.softplus(-present) - nn.functional.softplus(present)
        return (nn.functional.softplus(logits).sum() + correction[known].sum()) / len(logits)

    @torch.no_grad()
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """The words whose probability reaches the threshold, or else the most probable word."""
        probabilities = self(targets.vectors).sigmoid()
        counts = (probabilities >= self.threshold).sum(1).clamp(min=1).tolist()
        order = probabilities.topk(max(counts, default=0), dim=1).indices.tolist()
        return [self.prediction(row[:count]) for row, count in zip(order, counts, strict=True)]

    # -- the threshold --------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if not self.data.examples("valid"):
            raise InputError(
                "attack=bag_of_words chooses its threshold on validation text, and there is none: give "
                "datamodule.valid, or datamodule.valid_fraction or datamodule.split_field with datamodule.path"
            )
        self.data.embed("valid")  # the threshold needs them also with trainer.limit_val_batches=0
        if not any(self._known(number) for ids, _ in self._validation() for row in ids for number in row):
            raise InputError(
                f"attack.vocabulary.limit: none of the {self.vocabulary.size} entries occurs in the validation "
                "text, so no threshold can be chosen: is it in the language of the training text?"
            )

    def on_train_end(self) -> None:
        self.choose_threshold()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        self.choose_threshold()
        checkpoint["state_dict"]["threshold"] = self.threshold.clone()

    @torch.no_grad()
    def choose_threshold(self) -> None:
        """Set ``threshold`` to the best on the validation texts, the lowest of ties, and write the curve."""
        training, device = self.training, self.threshold.device
        self.eval()
        thresholds = torch.tensor(THRESHOLDS, device=device)
        named, right = torch.zeros(2, len(THRESHOLDS), dtype=torch.long, device=device)
        wanted = 0
        # Every rank reads all validation texts, so the result needs no reduction and does not depend on their number.
        for ids, vectors in self._validation():
            with torch.autocast(device.type, enabled=False):
                probabilities = self(vectors.to(device)).sigmoid()
            known = [(row, number) for row, present in enumerate(ids) for number in present if self._known(number)]
            rows, entries = torch.tensor(known, dtype=torch.long, device=device).view(-1, 2).T
            named += _reached(probabilities, thresholds)
            right += _reached(probabilities[rows, entries], thresholds)
            wanted += sum(map(len, ids))
        self.train(training)
        f1 = 2 * right / (named + wanted)
        self.threshold.copy_(thresholds[f1.argmax()])
        if self.trainer.is_global_zero:
            curve = [
                {"threshold": at, "precision": hits / count if count else None, "recall": hits / wanted, "f1": harmonic}
                for at, count, hits, harmonic in zip(
                    THRESHOLDS, named.tolist(), right.tolist(), f1.tolist(), strict=True
                )
            ]
            write_json(self.artifacts / CURVE, {"threshold": THRESHOLDS[int(f1.argmax())], "curve": curve})

    def _validation(self) -> Iterator[tuple[list[list[int]], Tensor]]:
        examples = self.data.examples("valid")
        for start in range(0, len(examples), BLOCK):
            block = range(start, min(start + BLOCK, len(examples)))
            yield self.encode([examples[i].text for i in block]), self.data.vectors("valid", block)

    def _known(self, number: int) -> bool:
        return number < self.vocabulary.size


def _distinct(ids: Sequence[int], unknown: int) -> list[int]:
    """The distinct known ids, and all unknown ones, since two unknown words are rarely equal."""
    return [*dict.fromkeys(number for number in ids if number != unknown), *(n for n in ids if n == unknown)]


def _reached(probabilities: Tensor, thresholds: Tensor) -> Tensor:
    """How many of the probabilities reach each of the rising thresholds, (k,)."""
    likely = probabilities[probabilities >= thresholds[0]]
    highest = torch.bucketize(likely, thresholds, right=True)  # 1 ... k: number of thresholds reached
    return highest.bincount(minlength=len(thresholds) + 1).flip(0).cumsum(0).flip(0)[1:]


def scaled(vectors: Tensor) -> Tensor:
    """Vectors (n, d) brought to norm sqrt(d), so that a coordinate is of size 1 whatever the embedder's scale."""
    return torch.nn.functional.normalize(vectors, dim=-1) * math.sqrt(vectors.shape[-1])
