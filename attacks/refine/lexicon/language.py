"""Word order and capitalisation in the training texts: smoothed bigram counts.

language = Language.count(["Ada went to Rome.", ...])
language.follows("went", "to")                       # log probability under smoothed bigrams
language.between("to", ".")                          # {"rome"}: words seen behind the one and before the other
language.written("rome")                             # "Rome"
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from unembed.attacks.refine.lexicon.units import Units
from unembed.attacks.refine.lexicon.writing import Writing
from unembed.core import limits
from unembed.core.atomic_files import read_json, write_file
from unembed.core.errors import InputError

START, END = "<s>", "</s>"
_PRIOR = 2.0  # of the unigram distribution, in bigrams
_REMEMBERED = 1_000_000  # log probabilities
_NONE: frozenset[str] = frozenset()
_COMMON = 60  # words that are tried wherever word order asks for one


_TEXTS = 200_000  # counting takes a minute
_MOST = 2**53  # occurrences; more are no count of any text
_Unit = Annotated[str, Field(pattern=r"^\S+$")]
_Count = Annotated[int, Field(gt=0, le=_MOST)]


class _Counts(BaseModel):
    """The file."""

    follows: dict[_Unit, Annotated[dict[_Unit, _Count], Field(min_length=1)]]
    forms: dict[_Unit, _Unit]
    # files of version 0.2 have none
    writing: dict[str, Annotated[dict[str, _Count], Field(min_length=1)]] = {}


class Language:
    """Counts of words and of pairs of neighbours, in lower case, and how each word is usually written.

    Args:
        pairs: How often a word follows another.
        forms: Of each word that is not usually written in lower case, the form inside sentences.
        writing: Capital letters and spaces in context.
    """

    def __init__(
        self, pairs: Mapping[tuple[str, str], int], forms: Mapping[str, str], writing: Writing | None = None
    ) -> None:
        self.pairs, self.forms, self.writing = Counter(pairs), dict(forms), writing or Writing()
        self.before: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        for (left, right), count in self.pairs.items():
            self.before[left] += count
            self.counts[right] += count
        self._known: dict[tuple[str, str], float] = {}
        self._total = sum(self.counts.values()) + len(self.counts) + 1

    @classmethod
    def count(cls, texts: Sequence[str]) -> Language:
        """Counts of ``texts``; of a very large number, of ``_TEXTS`` evenly over them."""
        texts = [texts[place] for place in range(0, len(texts), -(-len(texts) // _TEXTS) or 1)]
        pairs: Counter[tuple[str, str]] = Counter()
        written: dict[str, Counter[str]] = {}
        for text in texts:
            units = Units.of(text)
            pairs.update(pairwise((START, *units.words, END)))
            for place, surface in enumerate(units.surfaces):
                if not units.initial(place):
                    written.setdefault(surface.lower(), Counter())[surface] += 1
        usual = {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in written.items()}
        return cls(pairs, {word: form for word, form in usual.items() if form != word}, Writing.count(texts))

    @property
    def words(self) -> list[str]:
        """All words and punctuation marks that were counted inside a sentence."""
        return [word for word in self._all_words if not self._begins(word)]

    @property
    def beginnings(self) -> list[str]:
        """The words that were counted at the beginning of a sentence only: their capital letters are not known."""
        return [word for word in self._all_words if self._begins(word)]

    def _begins(self, word: str) -> bool:
        return word[0].isalpha() and bool(self.writing.counts) and not self.writing.inside(word)

    @cached_property
    def _all_words(self) -> list[str]:
        return sorted(word for word in self.counts if word != END)

    @cached_property
    def common(self) -> list[str]:
        """The most frequent words and punctuation marks."""
        ranked = sorted((word for word in self.counts if word != END), key=lambda word: (-self.counts[word], word))
        return ranked[:_COMMON]

    def follows(self, left: str, right: str) -> float:
        """Log probability of ``right`` behind ``left``."""
        known = self._known.get((left, right))
        if known is None:
            unigram = (self.counts[right] + 0.5) / self._total
            known = math.log((self.pairs[left, right] + _PRIOR * unigram) / (self.before[left] + _PRIOR))
            if len(self._known) < _REMEMBERED:
                self._known[left, right] = known
        return known

    def score(self, words: Sequence[str]) -> float:
        """Log probability of a sentence of lower-case words."""
        return sum(self.follows(left, right) for left, right in pairwise((START, *words, END)))

    def between(self, left: str, right: str) -> frozenset[str]:
        """Words that were seen behind ``left`` and, elsewhere or there, before ``right``."""
        behind, ahead = self._neighbours
        return behind.get(left, _NONE) & ahead.get(right, _NONE)

    @cached_property
    def _neighbours(self) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
        behind: defaultdict[str, set[str]] = defaultdict(set)
        ahead: defaultdict[str, set[str]] = defaultdict(set)
        for left, right in self.pairs:
            behind[left].add(right)
            ahead[right].add(left)
        return tuple({word: frozenset(found) for word, found in side.items()} for side in (behind, ahead))  # type: ignore[return-value]

    def written(self, word: str) -> str:
        """The word as it is written inside a sentence."""
        return self.forms.get(word, word)

    def save(self, path: Path) -> None:
        """Write the counts; of a text so large that the file could not be read, the most frequent ones."""
        kept = max(len(self.pairs), len(self.writing.counts))
        while len(content := self._written(kept)) > limits.LARGEST_JSON:
            kept //= 2
        write_file(path, content.decode())

    def _written(self, kept: int) -> bytes:
        """The file with at most ``kept`` pairs, and as many keys of how words are written."""
        follows: dict[str, dict[str, int]] = {}
        for (left, right), count in self.pairs.most_common(kept):
            follows.setdefault(left, {})[right] = count
        occurrences = {key: sum(found.values()) for key, found in self.writing.counts.items()}
        keys = sorted(occurrences, key=lambda key: (-occurrences[key], key))[:kept]
        writing = {key: self.writing.counts[key] for key in keys}
        words = {word for pair in follows.items() for word in (pair[0], *pair[1])}
        forms = {word: form for word, form in self.forms.items() if word in words}
        content = {"follows": follows, "forms": forms, "writing": writing}
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def read(cls, path: Path) -> Language:
        """What ``save`` wrote.

        Raises:
            InputError: The file holds something else.
        """
        try:
            content = _Counts.model_validate(read_json(path))
        except ValidationError as error:
            raise InputError(f"{path}: not the counts of a training text: {error.errors()[0]['msg']}") from error
        pairs = {(left, right): count for left, own in content.follows.items() for right, count in own.items()}
        return cls(pairs, content.forms, Writing(content.writing))
