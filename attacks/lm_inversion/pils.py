"""attack=pils: a T5 that is trained to write the input behind the log-probabilities of several generated tokens.

    m log-ratio vectors (d,) -> standardised -> one MLP per step -> m vectors -> T5 encoder, decoder -> " Wheel adop"

PILS (Nazir et al. 2025, arXiv 2506.17090, section 4). What a model says after its first token tells of inputs that the
first token alone does not; and d numbers of each step say all that the V log-probabilities do (see
embedders/log_ratios.py), so that several steps fit into a prefix. Access is black-box but for the choice of tokens;
predictions are not verified with the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unembed.attacks.lm_inversion.base import embedder_of
from unembed.attacks.lm_inversion.logits_inverter import TextLogitsInverter
from unembed.attacks.parts.prefix import Prefix
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.log_ratios import LogRatioEmbedder
from unembed.metrics.statistics import evenly

FITTED_ON = 4096  # training rows: enough for a mean and d x d covariances
RIDGE = 1e-3  # of the mean variance, added to each: rounding of the smallest directions is not blown up to 1


class WhitenedSteps(Prefix):
    """Vectors for the log-ratios of each step, whitened, by an MLP that all steps share.

    Log-ratios have one reference, so they are far from independent, and their means say little of the input. Whitening
    by the mean and covariance of training rows, all steps together, gives each direction of the hidden states the same
    weight at first.

    ``each`` is the number of vectors of a step.
    """

    mean: Tensor
    whitening: Tensor

    def __init__(
        self,
        steps: PositiveInt = 8,
        each: PositiveInt = 1,
        hidden: PositiveInt = 1024,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ) -> None:
        super().__init__(steps * each, "mlp", normalize=False, dropout=dropout)
        self.steps, self.each, self.hidden = steps, each, hidden

    def build(self, dimension: int, width: int) -> None:
        """Make the layers for ``steps`` of ``dimension`` / ``steps`` numbers each."""
        self.width, numbers = width, dimension // self.steps
        self.layers = nn.Sequential(
            nn.Linear(numbers, self.hidden),
            nn.GELU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden, self.each * width),
        )
        self.places = nn.Parameter(torch.zeros(self.vectors, width))
        self.register_buffer("mean", torch.zeros(self.steps, numbers))
        self.register_buffer("whitening", torch.eye(numbers))

    def fit(self, rows: Tensor, groups: Tensor | None = None) -> None:
        """Take mean and covariance of ``rows`` (n, dimension); the covariance within ``groups`` (n,), if given."""
        steps = rows.view(len(rows), self.steps, -1)
        self.mean.copy_(steps.mean(0))
        numbers = np.zeros(len(rows), np.int64) if groups is None else groups.numpy()
        inverse = torch.from_numpy(np.unique(numbers, return_inverse=True)[1])
        sums = steps.new_zeros(int(inverse.max()) + 1, *steps.shape[1:]).index_add_(0, inverse, steps)
        means = sums / inverse.bincount()[:, None, None]
        centred = (steps - means[inverse]).flatten(0, 1)
        variances, directions = torch.linalg.eigh((centred.T @ centred / len(centred)).double())
        self.whitening.copy_(directions / (variances + RIDGE * variances.mean()).sqrt())

    def whitened(self, rows: Tensor) -> Tensor:
        """(n, dimension) -> (n, steps, dimension / steps)"""
        whitened: Tensor = (rows.reshape(len(rows), self.steps, -1) - self.mean) @ self.whitening
        return whitened

    def forward(self, embeddings: Tensor) -> Tensor:
        """(n, dimension) -> (n, vectors, width)"""
        projected: Tensor = self.layers(self.whitened(embeddings)).view(len(embeddings), self.vectors, self.width)
        return projected + self.places


class PILS(TextLogitsInverter):
    """A decoder trained on pairs of log-ratios and inputs."""

    prefix: WhitenedSteps

    def model(self, oracle: CachedEmbedder | None) -> LanguageModelEmbedder:
        """The language model behind the log-ratios; InputError unless they are of as many steps as the prefix reads."""
        model = embedder_of(
            oracle, LogRatioEmbedder, "attack=pils reads log-ratios; {} gives none; take embedder=log_ratios"
        ).language_model
        if (steps := model.observation.output_tokens) != self.prefix.steps:
            raise InputError(
                f"attack.prefix.steps={self.prefix.steps}: log-ratios of {steps} output tokens are observed; take "
                f"attack.prefix.steps={steps}"
            )
        return model

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.origin is not None:
            return  # the weights that it begins with were trained behind a whitening of their own
        texts = self.data.examples("train").queries
        rows = evenly(range(len(texts)), FITTED_ON)  # sources may be sorted
        self.prefix.fit(self.data.vectors("train", rows), self.groups([texts[row] for row in rows]))

    def groups(self, texts: Sequence[str]) -> Tensor | None:
        """Numbers (n,) of groups of training texts between which differences are not to set the scale."""
        return None
