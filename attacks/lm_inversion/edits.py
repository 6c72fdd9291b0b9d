"""Edits of a text, as token ids, and pairs of them that should bring its vector to a target together.

Edit(1, 2, (2031,)).of((1045, 2038, 1037, 3899))    # "i has a dog" -> "i have a dog"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.encoder import Ids

_PAIRS = 100  # of a text
_LEAST = 1e-6


class Edit(NamedTuple):
    """What is written between two places of a text.

    Attributes:
        begin: First place that is replaced.
        end: The place behind the last.
        written: Instead; nothing where tokens are removed.
    """

    begin: int
    end: int
    written: Ids

    def of(self, ids: Ids) -> Ids:
        """The edited text."""
        return ids[: self.begin] + self.written + ids[self.end :]


def pairs(ids: Ids, vector: Tensor, tried: Sequence[tuple[Edit, Tensor]], target: Tensor) -> Iterator[Edit]:
    """Two edits of one text as one, the best first: the changes that each made are taken to add up.

    Args:
        ids: The text.
        vector: Its own, (d,).
        tried: Edits of it, with the vectors of the edited texts, (d,).
        target: The vector to reach, (d,).
    """
    if len(tried) < 2:
        return
    changes = torch.stack([after for _, after in tried]) - vector
    begins, ends = torch.tensor([edit[:2] for edit, _ in tried]).unbind(dim=1)
    along, toward, inner = changes @ vector, changes @ target, changes @ changes.T
    squares = inner.diagonal()
    length = 1 + 2 * (along[:, None] + along) + squares[:, None] + squares + 2 * inner
    cosines = (target @ vector + toward[:, None] + toward) / length.clamp_min(_LEAST).sqrt()
    apart = (ends[:, None] <= begins) & ((begins[:, None] < begins) | (ends[:, None] < ends))
    cosines[~apart] = -torch.inf
    best = cosines.flatten().topk(min(_PAIRS, int(apart.sum()))).indices.tolist()
    for one, other in ((tried[flat // len(tried)][0], tried[flat % len(tried)][0]) for flat in best):
        yield Edit(one.begin, other.end, one.written + ids[one.end : other.begin] + other.written)
