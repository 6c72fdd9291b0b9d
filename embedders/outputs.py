"""The output of a causal language model as it is observed: the layout of a row of logits or words.

observation = Observation(50257, 3, 10)                       # 10 logits seen of each of 3 output tokens
seen = observation.parse(observation.pack(logits))            # logits (B, 3, 50257)
observation.agrees(seen, candidate_logits)                    # (B,) bool: could the candidate be the input?
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ATOL = RTOL = 1e-4  # within which two fp32 runs of one input agree (soda_skapars2025, authors' code)


@dataclass(frozen=True, slots=True)
class Seen:
    """Parsed rows of B outputs.

    Attributes:
        ids: The greedy output, (B, m) int64.
        logits: (B, m, V), or (B, m, k) of the ids in ``places``; None if only the text is observed.
        places: Token ids of ``logits``, (B, m, k) int64; None if all logits are observed.
    """

    ids: Tensor
    logits: Tensor | None
    places: Tensor | None

    def __getitem__(self, rows: Tensor) -> Seen:
        """The outputs at rows (n,)."""
        logits = None if self.logits is None else self.logits[rows]
        return Seen(self.ids[rows], logits, None if self.places is None else self.places[rows])

    @property
    def continuation(self) -> Tensor:
        """The output tokens that the model reads to predict the next ones: all but the last, (B, m - 1)."""
        return self.ids[:, :-1]


@dataclass(frozen=True, slots=True)
class Observation:
    """Which part of an output is observed.

    Attributes:
        vocabulary: Size of the vocabulary, V.
        output_tokens: Number of generated tokens, m.
        top_k: Observed logits per generated token; None: all, 0: none.
    """

    vocabulary: int
    output_tokens: int = 1
    top_k: int | None = None

    @property
    def dimension(self) -> int:
        """Numbers in a row."""
        if self.top_k is None:
            return self.output_tokens * self.vocabulary
        return self.output_tokens * (2 * self.top_k or 1)

    @property
    def sees_logits(self) -> bool:
        """Whether logits are observed, and not only the text."""
        return self.top_k != 0

    def pack(self, logits: Tensor) -> Tensor:
        """Rows (B, d) from the logits (B, m, V) of the greedy output."""
        if self.top_k is None:
            return logits.flatten(1)
        if self.top_k == 0:
            return logits.argmax(dim=-1).float()
        values, places = logits.topk(self.top_k, dim=-1)
        return torch.cat([values.flatten(1), places.float().flatten(1)], dim=1)

    def parse(self, rows: Tensor) -> Seen:
        """The outputs in rows (B, d)."""
        size, m = len(rows), self.output_tokens
        if self.top_k is None:
            logits = rows.view(size, m, self.vocabulary)
            return Seen(logits.argmax(dim=-1), logits, None)
        if self.top_k == 0:
            return Seen(rows.round().long(), None, None)
        values, places = rows.view(size, 2, m, self.top_k).unbind(1)
        places = places.round().long()
        return Seen(places[..., 0], values, places)

    def of_seen(self, seen: Seen, logits: Tensor) -> Tensor:
        """A candidate's logits (B, m, V), restricted to those observed of the target: (B, m, V or k)."""
        return logits if seen.places is None else logits.gather(-1, seen.places)

    def agrees(self, seen: Seen, logits: Tensor, atol: float = ATOL, rtol: float = RTOL) -> Tensor:
        """Whether each candidate reproduces everything observed of its target; (B,) bool.

        ``logits`` (B, m, V) are those of the candidates, each followed by its target's ``continuation``.
        """
        if seen.logits is None:
            return (logits.argmax(dim=-1) == seen.ids).all(dim=1)
        close = torch.isclose(self.of_seen(seen, logits), seen.logits, atol=atol, rtol=rtol)
        return close.flatten(1).all(dim=1)
