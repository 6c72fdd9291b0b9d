"""Multi-set prediction: the words of a text, one per step, in any order (Li et al. 2023, section 4.1, "MSP").

    vector (d,) -> GRU, 10 steps -> "i", "love", "my", "dog", end -> "i love my dog"                    (end=True)
                                    "i", "love", "my", "dog", "cat", "have", ...   always ten words     (end=False)

The loss is that of Welleck et al. (2018): the target of a step is the uniform distribution over the remaining words of
the text, with repetitions. Predicting a remaining word removes one copy of it, and predicting a wrong word removes
nothing. When no word remains, the target is the end. Without an end, as in GEIA, the step then has no target.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from unembed.attacks.bag_of_words import WordSetAttack
from unembed.attacks.parts.backbones import Dropout
from unembed.attacks.parts.optimizers import OptimizerSettings
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.parts.vocabulary import Vocabulary
from unembed.datamodules.arrow_examples import IGNORED
from unembed.embedders.cache.cached import CachedEmbedder


class Multiset(WordSetAttack):
    """A GRU that reads the projected vector at every step and predicts one entry of a vocabulary, or the end.

    Without ``repeats``, a step predicts the best new entry, in training too; the loss still counts repeated words.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        optimizer: OptimizerSettings,
        prefix: Prefix,
        steps: PositiveInt = 10,
        end: bool = True,
        width: PositiveInt = 192,
        repeats: bool = False,
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__(vocabulary, optimizer)
        if prefix.vectors != 1:
            raise ValueError(f"prefix.vectors={prefix.vectors}: the GRU reads one vector a step, so it must be 1")
        self.prefix = prefix
        self.steps, self.end, self.width, self.dropout = steps, end, width, dropout
        self.repeats = repeats

    def build(self, dimension: int) -> None:
        """Make the layers; the output's bias starts at the frequency of the words."""
        super().build(dimension)
        size = self.vocabulary.size
        self.prefix.build(dimension, self.width)
        self.gru = nn.GRU(self.width, self.width, batch_first=True)
        self.drop = nn.Dropout(self.dropout)
        self.output = nn.Linear(self.width, size + self.end)
        with torch.no_grad():
            self.output.bias[:size] = self.vocabulary.frequency.log()
            self.output.bias[size:] = 0.0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The known words of each text with repetitions; unknown words cannot be predicted."""
        return [[number for number in row if number < self.vocabulary.size] for row in self.tokens(texts)]

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Run all steps: vectors (B, d) -> logits (B, steps, V + 1), the last class being the end if there is one, and
        the entry that each step names, (B, steps)."""
        states, _ = self.gru(self.prefix(vectors).expand(-1, self.steps, -1))
        logits: Tensor = self.output(self.drop(states)).float()
        named = torch.empty(len(vectors), 0, dtype=torch.long, device=vectors.device)
        end = torch.arange(self.vocabulary.size, logits.shape[2], device=vectors.device)
        for scores in logits.detach().unbind(1):
            if not self.repeats:  # but the end may come again: nothing follows it
                scores = scores.scatter(1, named, -torch.inf).index_copy(1, end, scores[:, end])
            named = torch.cat([named, scores.argmax(1, keepdim=True)], 1)
        return logits, named

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        logits, named = self(vectors)
        return multiset_loss(logits, labels, named, end=self.end)

    @torch.no_grad()
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """The most probable entry of each step up to the end; if the end is first, the most probable word instead."""
        size = self.vocabulary.size
        logits, named = self(targets.vectors)
        ends = (named == size).cumsum(1).logical_not().sum(1).clamp(min=1).tolist()
        named[:, 0] = logits[:, 0, :size].argmax(1)
        return [self.prediction(row[:end]) for row, end in zip(named.tolist(), ends, strict=True)]


def multiset_loss(logits: Tensor, labels: Tensor, named: Tensor, *, end: bool) -> Tensor:
    """Cross-entropy against the uniform distribution over the remaining words, mean over steps and texts.

    Args:
        logits: (B, S, V + 1) with the end as the last class, (B, S, V) without an end.
        labels: The entries of each text with repetitions, (B, T), padded with -100.
        named: The predicted entry of each step, (B, S), which is removed for the following steps.
        end: Whether the end is the target of a step at which no word remains. If not, the step adds 0 to the sum.
    """
    remaining = remaining_words(labels, named)
    left = remaining.sum(2, keepdim=True)
    weights, classes = remaining / left.clamp(min=1), labels.clamp(min=0)
    if end:
        weights = torch.cat([weights, left == 0], 2)
        classes = torch.nn.functional.pad(classes, (0, 1), value=logits.shape[2] - 1)
    # One gather and one normalisation: each is a pass over all logits, forward and backward.
    found = logits.log_softmax(2).gather(2, classes[:, None].expand(-1, logits.shape[1], -1))
    return -(found * weights).sum() / named.numel()


def remaining_words(labels: Tensor, named: Tensor) -> Tensor:
    """Which labels (B, T) remain before each step, given the predicted entries (B, S): (B, S, T).

    A predicted entry removes one of its labels.
    """
    remaining, steps = labels != IGNORED, []
    for entry in named.unbind(1):
        steps.append(remaining)
        found = remaining & (labels == entry[:, None])
        remaining = remaining & ~(found & (found.cumsum(1) == 1))
    return torch.stack(steps, 1)
