"""A lexicon: entries with their vectors, and the language of the training text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from embedders.base import QueryLimitError
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from models.lexicon.language import Language
from models.lexicon.units import UNIT

_AT_ONCE = 4096


class Lexicon:
    """Entries with their vectors, each embedded alone.

    The embedder is asked under the purpose ``lexicon``: once a cache, and not counted as an attack's queries.

    Args:
        entries: As they are written, by their lower-case forms.
        language: Word order and capital letters.
        oracle: Embeds them.

    Attributes:
        entries: As they are written, without those that the embedder does not tell from an earlier one.
        vectors: Theirs, (V, d).
        rows: Places of lower-case entries in these lists.

    Raises:
        InputError: There is no entry.
    """

    def __init__(self, entries: Mapping[str, str], language: Language, oracle: CachedEmbedder) -> None:
        if not entries:
            raise InputError(
                "attack/refine=[lexicon]: no word in the lexicon: no training text is known, and no source is on"
            )
        self.language, self._oracle = language, oracle
        written = [language.written(entry) if entry.islower() else entry for entry in entries.values()]
        vectors = self._embedded(written)
        # Of entries with one vector, such as those that differ by an accent that the embedder drops, the first stands.
        first: dict[bytes, int] = {}
        for row, vector in enumerate(_rounded(vectors)):
            first.setdefault(vector.tobytes(), row)
        kept, words = list(first.values()), list(entries)
        self.entries, self.vectors = [written[row] for row in kept], vectors[kept]
        self.rows = {words[row]: place for place, row in enumerate(kept)}
        self._others: dict[str, Tensor] = {}

    def words(self, row: int) -> tuple[str, ...]:
        """The units of an entry, in lower case."""
        return tuple(UNIT.findall(self.entries[row].lower()))

    def has(self, text: str) -> bool:
        """Whether a text is an entry, or all its words are; case, spaces and punctuation marks are ignored."""
        if " ".join(text.lower().split()) in self.rows:
            return True
        words = [word for word in UNIT.findall(text.lower()) if word[0].isalnum()]
        return bool(words) and all(word in self.rows for word in words)

    def vectors_of(self, words: Sequence[str]) -> Tensor:
        """Vectors of lower-case words (n, d), those that are no entries included."""
        missing = sorted({word for word in words if word not in self.rows and word not in self._others})
        if missing:
            self._others.update(zip(missing, self._embedded(missing), strict=True))
        return torch.stack(
            [self.vectors[self.rows[word]] if word in self.rows else self._others[word] for word in words]
        )

    def _embedded(self, words: Sequence[str]) -> Tensor:
        blocks: Iterable[int] = range(0, len(words), _AT_ONCE)
        if len(words) > _AT_ONCE:
            blocks = track(blocks, "embedding the lexicon")
        try:
            found = [self._oracle.embed(words[begin : begin + _AT_ONCE], "lexicon") for begin in blocks]
        except QueryLimitError as error:
            raise InputError(
                f"attack/refine=[lexicon]: {error} The lexicon has {len(words):,} entries, each embedded once"
            ) from error
        return torch.nn.functional.normalize(torch.cat(found), dim=1)


def _rounded(vectors: Tensor) -> NDArray[np.int16]:
    """Unit vectors, (n, d), in steps of which the last bits of an embedding are a small part."""
    rounded: NDArray[np.int16] = (vectors * 10_000).round().to(torch.int16).numpy()
    return rounded
