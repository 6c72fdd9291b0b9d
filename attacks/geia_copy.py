"""GEIA with an open vocabulary: rare words are copied from a list of words, those that training lacks included.

    embedding -> prefix -> "my aunt" -> a token of the vocabulary, or one of the 64 words that fit the embedding best

Words that the training text has often are spelled as in GEIA, all others are copied (attacks/parts/copying.py).
words.json of a run has the training text's words as they are written most often:

    {"frequent": ["was", "Maria", ...], "rare": ["Delphine", ...]}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.geia import GEIA
from unembed.attacks.parts.backbones import token_ids
from unembed.attacks.parts.copying import CASES, CopyingDecoder
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.refine.lexicon.language import capitalised
from unembed.attacks.refine.lexicon.words import WordSources, digest_of, distinct_rows, merged, unit_vectors
from unembed.attacks.refine.refining import comparable, named
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder

_NAME = "attack=geia_copy"
_MEASURED = 20_000  # training vectors from which the word space is measured


class GEIACopy(GEIA):
    """GEIA on a GPT-2 with a copy head."""

    decoder: CopyingDecoder

    def __init__(self, words: WordList, shortlist: PositiveInt = 64, **generative: Any) -> None:
        super().__init__(**generative)
        self.words, self.shortlist = words, shortlist

    def check_refining(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        with named(_NAME):
            comparable(dimension, oracle)
        super().check_refining(dimension, oracle)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        self.words.prepare(texts, artifacts)
        self.words.load(artifacts, self._oracle())
        super().prepare(spelled_parts(texts, frozenset(self.words.copied)), artifacts)

    def make_decoder(self, model: Any) -> CopyingDecoder:
        if type(model).__name__ != "GPT2LMHeadModel":
            raise InputError(f"{_NAME}: copies words with a GPT-2, and the backbone is a {type(model).__name__}")
        self.words.load(self.artifacts, self._oracle())
        self.word_tokens = WordTokens(self.tokenizer, self.words.copied)
        decoder = CopyingDecoder(model, self.dimension, self.shortlist)
        spelled = [self.tokenizer.decode([token]) for token in range(decoder.size)]
        rows = [self.words.spelled.get(text[1:].lower(), -1) if text[:1] == " " else -1 for text in spelled]
        decoder.use(self.words.vectors, len(self.words.copied), torch.tensor(rows))
        return decoder

    def on_fit_start(self) -> None:
        """Measure the training vectors, unless a checkpoint has the result."""
        super().on_fit_start()
        if not self.from_checkpoint:
            count = len(self.data.examples("train"))
            rows = np.unique(np.linspace(0, count - 1, min(count, _MEASURED)).astype(np.int64))
            self.decoder.measure(self.data.vectors("train", rows))

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return self.word_tokens.encode(texts)

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        smoothing = self.label_smoothing if self.training else 0.0
        return self.decoder.copying_loss(self.prefix(vectors), labels, smoothing, vectors)

    def decoded(self, targets: Targets) -> list[list[list[int]]]:
        shortlist = self.decoder.shortlist(targets.vectors)
        end = self.tokenizer.eos_token_id
        copying = self.decoder.copying(shortlist)
        found = self.decoding(copying, self.prefix(targets.vectors), eos=end, index=targets.index)
        return [
            [shortlist.of_target(place, ids) for ids in candidates] for place, candidates in enumerate(found)
        ]  # fmt: skip

    def all_weights(self) -> dict[str, Tensor]:
        return super().all_weights() | {"words": digest_of(self.words.copied)}

    @property
    def writer(self) -> None:
        """None: its decoder chooses among words of each target's own."""
        return None

    def text(self, ids: Sequence[int]) -> str:
        return self.word_tokens.decode(ids)

    def _oracle(self) -> CachedEmbedder:
        if self.oracle is None:
            raise InputError(f"{_NAME}: needs the embedder for the vectors of single words, and there is none")
        return self.oracle


_KEY = "attack.words"
_FILE = "words.json"
_WORD = re.compile(r"[^\W_]+")


@dataclass
class WordList(WordSources):
    """Sources of the words that are copied, beside the rare ones of the training text.

    Words that the training text has ``frequent`` times or more are not copied, but learnt and spelled.

    Attributes:
        copied: Words that may be copied, in lower case.
        vectors: Their vectors and those of frequent words, (m, d).
        spelled: Rows of frequent words, in lower case.
    """

    key = _KEY

    frequent: PositiveInt = 50

    def __post_init__(self) -> None:
        self.copied: list[str] = []
        self.spelled: dict[str, int] = {}
        self.vectors = torch.zeros(0, 0)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        surfaces: dict[str, Counter[str]] = {}
        for text in texts:
            for surface in _WORD.findall(text):
                surfaces.setdefault(surface.lower(), Counter())[surface] += 1
        usual = {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in sorted(surfaces.items())}
        frequent = [form for word, form in usual.items() if surfaces[word].total() >= self.frequent]
        write_json(artifacts / _FILE, {"frequent": frequent, "rare": sorted(set(usual.values()) - set(frequent))})

    def load(self, artifacts: Path, oracle: CachedEmbedder) -> None:
        """Collect the words and embed each alone, once a cache; no queries of the attack."""
        counted = read_json(artifacts / _FILE)
        spelled = {form.lower(): form for form in counted["frequent"]}
        found = merged(counted["rare"], self.listed, *self.public(oracle.source.embedder))
        written = [form for word, form in found.items() if _WORD.fullmatch(word) and word not in spelled]
        if not written:
            raise InputError(f"{_KEY}: no word to copy: the training text has no rare one, and no source is on")
        words = [*written, *spelled.values()]
        why = f"There are {len(words):,} words, each embedded once"
        vectors = unit_vectors(words, oracle, "lexicon", key=_KEY, why=why)
        oracle.flush()
        kept = distinct_rows(vectors[: len(written)])
        self.copied = [written[row].lower() for row in kept]
        self.spelled = {word: len(kept) + place for place, word in enumerate(spelled)}
        self.vectors = torch.cat([vectors[kept], vectors[len(written) :]])


# -- token ids of texts in which rare words are one token each -------------------------------------------------------

WORD = re.compile(r"(?:(?<= )|\A)[^\W_]+")


def written(word: str, case: int) -> str:
    """A lower-case word in one of the three cases."""
    return (word, capitalised(word), word.upper())[case]


def case_of(surface: str) -> int | None:
    """The first case in which the word is written like that; None for others, such as "McDonald"."""
    word = surface.lower()
    return next((case for case in range(CASES) if written(word, case) == surface), None)


class WordTokens:
    """The tokenizer's ids, and above them three ids for each word that is copied.

    The tokenizer writes what is not copied; it must give back every character. The places of the lower-case ``words``
    are their rows.
    """

    def __init__(self, tokenizer: Any, words: Sequence[str]) -> None:
        self.tokenizer, self.words = tokenizer, words
        self.size = len(tokenizer)
        self.rows = {word: row for row, word in enumerate(words)}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, uncut and without an end token."""
        parts = [list(split(text, self.rows)) for text in texts]
        spelled = list(dict.fromkeys(part for found in parts for part in found if isinstance(part, str)))
        known = dict(zip(spelled, token_ids(self.tokenizer, spelled), strict=True))
        return [
            [
                token
                for part in found
                for token in (known[part] if isinstance(part, str) else [self.size + CASES * part[0] + part[1]])
            ]
            for found in parts
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; a copied word has a space before it."""
        text, spelled = "", list[int]()
        for token in [*ids, None]:
            if token is not None and token < self.size:
                spelled.append(token)
                continue
            text += self.tokenizer.decode(spelled, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            spelled = []
            if token is not None:
                row, case = divmod(token - self.size, CASES)
                text += " " + written(self.words[row], case)
        return text.strip()


def split(text: str, rows: dict[str, int]) -> Iterator[str | tuple[int, int]]:
    """What is spelled of a text, and (row, case) of what is copied, in order."""
    end = 0
    for match in WORD.finditer(text):
        row, case = rows.get(match.group().lower()), case_of(match.group())
        if row is None or case is None:
            continue
        begin = max(0, match.start() - 1)  # the space before belongs to the word
        if begin > end:
            yield text[end:begin]
        yield row, case
        end = match.end()
    if end < len(text):
        yield text[end:]


def spelled_parts(texts: Sequence[str], copied: frozenset[str]) -> list[str]:
    """The texts without the words that are copied: what a tokenizer is trained on."""
    rows = dict.fromkeys(copied, 0)
    return ["".join(part for part in split(text, rows) if isinstance(part, str)) for text in texts]
