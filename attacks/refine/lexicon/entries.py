"""A lexicon: entries with their vectors, and the language of the training text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import torch
from lightning.pytorch.utilities import rank_zero_warn
from rich.console import Console
from rich.progress import track
from torch import Tensor, cosine_similarity

from unembed.attacks.refine.lexicon.language import UNIT, Language, Units
from unembed.attacks.refine.lexicon.words import AT_ONCE, rounded, unit_vectors
from unembed.core.errors import InputError
from unembed.embedders.base import QueryLimitError, Remote
from unembed.embedders.cache.cached import CachedEmbedder

_KEY = "attack/refine=[lexicon]"


class Lexicon:
    """Entries with their vectors, each embedded alone.

    The embedder is asked under the purpose ``lexicon``: once a cache, and not counted as an attack's queries.

    Args:
        entries: As they are written, by their lower-case forms.

    Attributes:
        entries: As they are written, without those that the embedder does not tell from an earlier one.
        vectors: Theirs, (V, d).
        rows: Places of lower-case entries in these lists.
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
        why = f"The lexicon has {len(written):,} entries, each embedded once"
        blocks: Iterable[Tensor] = unit_vectors(written, self._oracle, "lexicon", key=_KEY, why=why)
        if len(written) > AT_ONCE:
            total = -(-len(written) // AT_ONCE)
            blocks = track(blocks, "embedding the lexicon", total=total, console=Console(stderr=True))
        for number, block in enumerate(blocks):
            fresh = []
            for row, vector in enumerate(rounded(block)):
                key = blake2b(vector.tobytes(), digest_size=16).digest()
                if key not in seen:
                    seen.add(key)
                    fresh.append(row)
            vectors[len(kept) : len(kept) + len(fresh)] = block[fresh]
            kept += [number * AT_ONCE + row for row in fresh]
        return kept, vectors[: len(kept)]

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


_LEAST, _ENOUGH = 0.2, 50  # mean cosine, over so many replacements


class Additivity:
    """Collects replacements of one word, and warns once if they do not do what the vectors of words predict.

    The mean cosine of phi(new) - phi(old) with the observed change is 0.60 for all-MiniLM-L6-v2 (mean pooling), 0.65
    for the first token's vectors of the same model, and about 0 if the prediction says nothing.
    """

    def __init__(self) -> None:
        self._cosines: list[float] = []

    @property
    def known(self) -> bool:
        return len(self._cosines) >= _ENOUGH

    def see(self, text: str, vectors: Mapping[str, Tensor], lexicon: Lexicon) -> None:
        """Add the texts of one target, with their vectors (d,), that differ from ``text`` in one word."""
        before = Units.of(text).words
        for other, vector in vectors.items() if text in vectors else ():
            after = Units.of(other).words
            changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
            if len(before) == len(after) and len(changed) == 1 and all(map(lexicon.knows, changed[0])):
                old, new = lexicon.vectors_of(changed[0])  # all known: no further queries for a warning
                self._cosines.append(float(cosine_similarity(new - old, vector - vectors[text], dim=0)))
        mean = sum(self._cosines) / max(1, len(self._cosines))
        if self.known and mean < _LEAST:
            rank_zero_warn(
                "attack/refine=[lexicon]: this embedder does not add up its words, so the search cannot tell which "
                "words are missing: replacing one moves a vector in another direction than the vectors of the two "
                f"words say (mean cosine {mean:.2f} over {len(self._cosines)} replacements; all-MiniLM-L6-v2: 0.60)"
            )
