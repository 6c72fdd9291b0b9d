"""White-box access to a model: a differentiable map from token weights to the observed output.

    box = RelaxedEncoder(MiniLM())                                # or a LanguageModelEmbedder, itself a WhiteBox
    box.relaxed(weights @ box.input_vectors, continuation, keep=1)  # (B, 1, d)

A sentence embedder is treated as a language model with one output token whose d "logits" are the vector, so that the
same search inverts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from unembed.embedders.observation import Observation
from unembed.embedders.transformer import TransformerEmbedder


class WhiteBox(Protocol):
    """A model with access to its weights.

    Attributes:
        name: For messages.
        observation: Which part of the output is observed.
        max_tokens: Tokens of the longest input.
        device: The model's device.
        inputs: Number of token ids that an input may have.
        input_vectors: Their input embeddings, (inputs, hidden).
    """

    @property
    def name(self) -> str: ...

    @property
    def observation(self) -> Observation: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def inputs(self) -> int: ...

    @property
    def input_vectors(self) -> Tensor: ...

    def ids(self, text: str) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...

    def logits(self, ids: Tensor, continuation: Tensor) -> Tensor:
        """Output logits of candidates (B, n) followed by ``continuation`` (B, m - 1); (B, m, V)."""
        ...

    def relaxed(self, vectors: Tensor, continuation: Tensor, keep: int) -> Tensor:
        """Logits (B, keep, V) at the last ``keep`` positions for relaxed inputs (B, n, hidden); differentiable."""
        ...


class RelaxedEncoder:
    """A transformer encoder as a white box; inputs are token ids without special tokens.

    Args:
        embedder: The encoder; its prefix and special tokens are added to each input.
    """

    def __init__(self, embedder: TransformerEmbedder) -> None:
        self.embedder = embedder

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def observation(self) -> Observation:
        return Observation(self.embedder.dimension)

    @cached_property
    def max_tokens(self) -> int:
        before, after = self._around
        return self.embedder.max_tokens - len(before) - len(after)

    @property
    def device(self) -> torch.device:
        return self.embedder.device

    @property
    def inputs(self) -> int:
        return len(self.input_vectors)

    @cached_property
    def input_vectors(self) -> Tensor:
        return self.embedder.input_vectors.float()

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, truncated to ``max_tokens``; an empty text becomes one unknown token."""
        tokenizer = self.embedder.tokenizer
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"][: self.max_tokens]
        return found or [tokenizer.unk_token_id or 0]

    def decode(self, ids: Sequence[int]) -> str:
        decoded: str = self.embedder.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return decoded

    @torch.no_grad()
    def logits(self, ids: Tensor, continuation: Tensor) -> Tensor:
        """The vectors of candidates (B, n), as (B, 1, d)."""
        return self.relaxed(self.input_vectors[ids], continuation, keep=1)

    def relaxed(self, vectors: Tensor, continuation: Tensor, keep: int) -> Tensor:
        """The vectors of relaxed inputs (B, n, hidden), as (B, 1, d)."""
        before, after = (
            self.input_vectors[torch.tensor(ids, dtype=torch.long, device=self.device)].expand(len(vectors), -1, -1)
            for ids in self._around
        )
        return self.embedder.relaxed(torch.cat([before, vectors, after], dim=1))[:, None]

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The ids before and after every input."""
        tokenizer = self.embedder.tokenizer
        text: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole: list[int] = tokenizer("a")["input_ids"]
        at = next(place for place in range(len(whole)) if whole[place : place + len(text)] == text)
        prefix: list[int] = tokenizer(self.embedder.prefix, add_special_tokens=False)["input_ids"]
        return [*whole[:at], *prefix], whole[at + len(text) :]
