"""A lexicon: entries with their vectors, and the language of the training text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from unembed.attacks.refine.lexicon.embedding import AT_ONCE, rounded, unit_vectors
from unembed.attacks.refine.lexicon.language import Language
from unembed.attacks.refine.lexicon.units import UNIT
from unembed.core.errors import InputError
from unembed.embedders.base import QueryLimitError, Remote
from unembed.embedders.cache.cached import CachedEmbedder

_KEY = "attack/refine=[lexicon]"


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
            raise InputError(f"{_KEY}: no word in the lexicon: no training text is known, and no source is on")
        self.language, self._oracle = language, oracle
        written = [language.written(entry) if entry.islower() else entry for entry in entries.values()]
        self._check_limit(written)
        kept, self.vectors = self._distinct(written)
        words = list(entries)
        self.entries = [written[row] for row in kept]
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
        """Vectors of lower-case words (n, d), those that are no entries included.

        Zeros for words that a limit of the embedder cuts off: no text that is proposed can be embedded either.
        """
        missing = sorted({word for word in words if not self.knows(word)})
        if missing:
            done: Sequence[int]
            try:
                done, found = range(len(missing)), self._oracle.embed(missing, "lexicon")
            except QueryLimitError as error:
                done, found = error.done, error.vectors
            unit = torch.nn.functional.normalize(found, dim=1)
            self._others.update((missing[place], vector) for place, vector in zip(done, unit, strict=True))
        vectors = torch.zeros(len(words), self.vectors.shape[1])
        for place, word in enumerate(words):
            if self.knows(word):
                vectors[place] = self.vectors[self.rows[word]] if word in self.rows else self._others[word]
        return vectors

    def knows(self, word: str) -> bool:
        """Whether the vector of a lower-case word is at hand."""
        return word in self.rows or word in self._others

    def _distinct(self, written: Sequence[str]) -> tuple[list[int], Tensor]:
        """Places of the entries with a vector of their own, and these vectors (V, d).

        Of entries with one vector, such as those that differ by an accent that the embedder drops, the first stands.
        """
        kept: list[int] = []
        seen: set[bytes] = set()
        vectors = torch.empty(len(written), self._oracle.dimension)
        for number, block in enumerate(self._blocks(written)):
            fresh = []
            for row, vector in enumerate(rounded(block)):
                key = blake2b(vector.tobytes(), digest_size=16).digest()
                if key not in seen:
                    seen.add(key)
                    fresh.append(row)
            vectors[len(kept) : len(kept) + len(fresh)] = block[fresh]
            kept += [number * AT_ONCE + row for row in fresh]
        return kept, vectors[: len(kept)]

    def _blocks(self, words: Sequence[str]) -> Iterable[Tensor]:
        """Unit vectors (n, d) of ``words``, block by block."""
        why = f"The lexicon has {len(words):,} entries, each embedded once"
        blocks = unit_vectors(words, self._oracle, "lexicon", key=_KEY, why=why)
        if len(words) > AT_ONCE:
            return track(blocks, "embedding the lexicon", total=-(-len(words) // AT_ONCE), console=Console(stderr=True))
        return blocks

    def _check_limit(self, words: Sequence[str]) -> None:
        """Check the limit of an embedder that may cost money, and say what the lexicon costs."""
        embedder = self._oracle.source.embedder
        if not isinstance(embedder, Remote):
            return
        needed = self._oracle.source.missing(words)
        limit = getattr(embedder, "queries_left", None)  # other embedders may have none
        if limit is not None and len(needed) > limit:
            raise InputError(
                f"{_KEY}: the lexicon has {len(words):,} entries, {len(needed):,} of them not yet embedded, and "
                f"embedder.max_queries leaves {limit:,}; raise it, or take fewer: vocabulary=false, common=0, numbers=0"
            )
        embedder.log_cost(needed)
