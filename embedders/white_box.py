"""A model whose gradients an attack may take: from weights of tokens to what is observed, differentiably.

    box = RelaxedEncoder(MiniLM())                                # or a LanguageModelEmbedder, which is one itself
    box.relaxed(weights @ box.input_vectors, continuation, keep=1)  # (B, 1, d)

A sentence embedder is treated as a language model that gives one "token" of d "logits": its vector. So the same search
inverts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from embedders.observation import Observation
from embedders.transformer import TransformerEmbedder


class WhiteBox(Protocol):
    """A model and what is observed of it.

    Attributes:
        name: For messages.
        observation: What a row of it holds.
        max_tokens: Tokens of the longest input.
        device: Where it computes.
        inputs: Ids that an input may have.
        input_vectors: The vector that each of them stands for, (inputs, hidden).
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
        """The input that a text is."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an input."""
        ...

    def logits(self, ids: Tensor, continuation: Tensor) -> Tensor:
        """What candidates (B, n) give, with ``continuation`` (B, m - 1) after them; (B, m, V)."""
        ...

    def relaxed(self, vectors: Tensor, continuation: Tensor, keep: int) -> Tensor:
        """What relaxed inputs (B, n, hidden) give at the last ``keep`` places, (B, keep, V); gradients reach them."""
        ...


class RelaxedEncoder:
    """A transformer encoder as a white box; inputs are wordpieces, without the special tokens that go around them.

    Args:
        embedder: Its prefix and special tokens are put around an input as around a text.
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
        """The wordpieces of a text, cut to ``max_tokens``; an empty text is one unknown token."""
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
