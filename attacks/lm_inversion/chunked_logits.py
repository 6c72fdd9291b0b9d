"""From next-token logits to the vectors that an encoder reads (Skapars et al. 2025, appendix D; Morris et al. 2023b).

    logits (V,) - their moving average -> 64 chunks of V / 64 -> one MLP per chunk -> 64 vectors
                                                              -> sums of word embeddings -> one MLP -> 64 vectors

Logits mostly reflect token frequencies, independent of the input. Subtracting their moving average over the training
batches (unigram adaptation) leaves the effect of the input.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unembed.attacks.parts.prefix import Prefix


class ChunkedLogits(Prefix):
    """Logits split into chunks, each with its own MLP, since each chunk belongs to different tokens.

    Args:
        vectors: Chunks, and so vectors.
        hidden: Width inside an MLP.
        adaptation: Share of a training batch in the moving average; 0 leaves the logits as they are.
        dropout: Dropout inside the MLPs.
        shared: One MLP for all chunks, each of which weights the word embeddings of its own part of the encoder's
            vocabulary: the paper's head, by its authors' code. The embeddings are those before training.
    """

    unigram: Tensor
    batches: Tensor
    words: Tensor
    inner: nn.Module
    outer: nn.Module

    def __init__(
        self,
        vectors: PositiveInt = 64,
        hidden: PositiveInt = 256,
        adaptation: Annotated[float, Field(ge=0, lt=1)] = 0.01,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        shared: bool = False,
    ) -> None:
        super().__init__(vectors, "mlp", normalize=False, dropout=dropout)
        self.hidden, self.adaptation, self.shared = hidden, adaptation, shared

    def build(self, dimension: int, width: int) -> None:
        """Make the layers for ``dimension`` logits (fewer than ``vectors`` leave chunks of zeros) and an encoder of
        ``width``."""
        self.width, self.chunk = width, math.ceil(dimension / self.vectors)
        self.drop = nn.Dropout(self.dropout)
        if self.shared:
            self.inner, self.outer = nn.Linear(width, self.hidden), nn.Linear(self.hidden, width)
            self.register_buffer("words", torch.zeros(self.vectors, self.chunk, width))
        else:
            self.inner = _Layers(self.vectors, self.chunk, self.hidden)
            self.outer = _Layers(self.vectors, self.hidden, width)
        self.register_buffer("unigram", torch.zeros(dimension))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, embeddings: Tensor) -> Tensor:
        """(n, V) -> (n, vectors, width); in training, the batch moves the average first."""
        if self.adaptation:
            if self.training:
                self._adapt(embeddings.detach().mean(0))
            embeddings = embeddings - self.unigram
        missing = self.vectors * self.chunk - embeddings.shape[1]
        chunks = nn.functional.pad(embeddings, (0, missing)).view(len(embeddings), self.vectors, self.chunk)
        if self.shared:
            chunks = torch.einsum("nki,kiw->nkw", chunks, self.words)
        projected: Tensor = self.outer(nn.functional.gelu(self.drop(self.inner(chunks))))
        return projected

    def take_words(self, table: Tensor) -> None:
        """Word embeddings (words, width), dealt to the chunks in order.

        Where a chunk has more logits than words, which are as many as the vocabulary of the encoder is smaller than
        the language model's, its last logits have none and are not read, as in the authors' code.
        """
        each = math.ceil(len(table) / self.vectors)
        dealt = nn.functional.pad(table.detach(), (0, 0, 0, each * self.vectors - len(table)))
        count = min(each, self.chunk)
        self.words.zero_()[:, :count] = dealt.view(self.vectors, each, -1)[:, :count]

    @torch.no_grad()
    def _adapt(self, mean: Tensor) -> None:
        """The first batch begins the average: from zero it would take hundreds."""
        share = torch.where(self.batches == 0, 1.0, self.adaptation)
        self.unigram.lerp_(mean, share)
        self.batches += 1


class _Layers(nn.Module):
    """A linear layer for each of k chunks: (n, k, input) -> (n, k, output)."""

    def __init__(self, chunks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(chunks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(chunks, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """All chunks in one batched product."""
        return torch.einsum("nki,kio->nko", inputs, self.weight) + self.bias
