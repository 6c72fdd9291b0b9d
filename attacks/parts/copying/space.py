"""How well words fit a vector: dot products with the words' own vectors, in a space that training vectors whiten.

    space.fit(training_vectors, word_vectors)
    space.target(vectors) @ space.word(word_vectors).T      # (n, words)

A mean-pooled embedder adds up what its words contribute, so the vectors of the words of a text point along the vector
of the text. All vectors share a mean direction, and vectors of texts vary most in a few directions, those of topics;
both say little about single words. With MiniLM on the built-in corpus, a word that training lacks is the best fit of
24,700 words in 31 % of the texts by the plain dot product, in 41 % by this one; among the best 32, in 82 and 92 %.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_RIDGE = 0.1  # of the mean eigenvalue


class WordSpace(nn.Module):
    """The mean and the whitening of target vectors, and the mean of the words' vectors.

    Args:
        dimension: d, of both.
    """

    centre: Tensor
    word_centre: Tensor
    whitening: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(dimension))
        self.register_buffer("word_centre", torch.zeros(dimension))
        self.register_buffer("whitening", torch.eye(dimension))

    def fit(self, vectors: Tensor, words: Tensor) -> None:
        """Measure target vectors (n, d) and vectors of words (m, d)."""
        vectors = nn.functional.normalize(vectors.double(), dim=1)
        self.centre.copy_(vectors.mean(0))
        self.word_centre.copy_(nn.functional.normalize(words.double(), dim=1).mean(0))
        centred = vectors - vectors.mean(0)
        values, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
        ridge = _RIDGE * values.mean().clamp_min(torch.finfo(torch.float32).tiny)
        self.whitening.copy_(directions / (values.clamp_min(0) + ridge).sqrt() @ directions.T)

    def target(self, vectors: Tensor) -> Tensor:
        """Target vectors of any length, (n, d) -> (n, d) float32."""
        return self._whitened(vectors, self.centre)

    def word(self, vectors: Tensor) -> Tensor:
        """Vectors of words, (m, d) -> (m, d) float32 of length 1."""
        return nn.functional.normalize(self._whitened(vectors, self.word_centre), dim=1)

    def _whitened(self, vectors: Tensor, centre: Tensor) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):
            whitened: Tensor = (nn.functional.normalize(vectors.float(), dim=1) - centre) @ self.whitening
        return whitened
