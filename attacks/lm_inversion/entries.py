"""What a change of a text may write: every token of the embedder, and words of several tokens.

entries = Entries(encoder, ["paris", "despise"], oracle)     # despise is "des", "##pise"
entries.ids[-1]                                              # its tokens
entries.vectors                                              # (V, d), each alone
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.encoder import Encoder, Ids
from unembed.embedders.cache.cached import CachedEmbedder

_LONGEST = 6  # tokens of a word


class Entries:
    """Tokens and words with their vectors.

    Those that are texts are embedded under the purpose ``lexicon``: once a cache, and not counted as an attack's
    queries. Tokens that no text gives alone, such as ``##pise``, are run each time.

    Args:
        encoder: Of token ids.
        words: Those of one token, or of more than six, are left out.
        oracle: Embeds texts; its defense does not count here.

    Attributes:
        ids: Tokens of each entry.
        vectors: Of each entry alone, (V, d).
        first: First token of each entry, (V,).
        last: Last token, (V,).
    """

    def __init__(self, encoder: Encoder, words: Sequence[str], oracle: CachedEmbedder) -> None:
        tokens = (~encoder.control).nonzero().squeeze(1)
        several = [ids for ids in encoder.ids(words) if 1 < len(ids) <= _LONGEST]
        self.ids: list[Ids] = [(token,) for token in tokens.tolist()] + sorted(set(several))
        self.vectors = torch.empty(len(self.ids), encoder.model.observation.vocabulary)
        whole = [own == ids for own, ids in zip(encoder.canonical(self.ids), self.ids, strict=True)]
        texts = [row for row, one in enumerate(whole) if one]
        parts = [row for row, one in enumerate(whole) if not one]
        embedded = oracle.source.embed([encoder.model.decode(self.ids[row]) for row in texts], "lexicon")
        self.vectors[texts] = torch.nn.functional.normalize(embedded, dim=1)
        self.vectors[parts] = encoder.vectors([self.ids[row] for row in parts])
        self.first = torch.tensor([ids[0] for ids in self.ids])
        self.last = torch.tensor([ids[-1] for ids in self.ids])
        self._rows = {ids: row for row, ids in enumerate(self.ids)}
        self._row_of_token = torch.full((len(encoder.control),), -1)
        self._row_of_token[tokens] = torch.arange(len(tokens))
        self._encoder, self._others = encoder, dict[Ids, Tensor]()

    def rows_of_tokens(self, tokens: Tensor) -> Tensor:
        """The rows of tokens that are entries."""
        rows = self._row_of_token[tokens]
        return rows[rows >= 0]

    def vectors_of(self, spans: Sequence[Ids]) -> Tensor:
        """Vectors of some tokens, alone, (n, d), entries or not."""
        missing = sorted({ids for ids in spans if ids not in self._rows and ids not in self._others})
        if missing:
            self._others.update(zip(missing, self._encoder.vectors(missing), strict=True))
        return torch.stack([self.vectors[self._rows[ids]] if ids in self._rows else self._others[ids] for ids in spans])
