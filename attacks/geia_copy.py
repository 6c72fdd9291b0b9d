"""GEIA with an open vocabulary: rare words are copied from a list of words, those that training lacks included.

    embedding -> prefix -> "my aunt" -> a token of the vocabulary, or one of the 64 words that fit the embedding best

Words that the training text has often are spelled as in GEIA, all others are copied (attacks/parts/copying/decoder.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.geia import GEIA
from unembed.attacks.parts.copying.decoder import CopyingDecoder
from unembed.attacks.parts.copying.words import WordList, WordTokens, spelled_parts
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.refine.lexicon.words import digest_of
from unembed.attacks.refine.refining import comparable, named
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
        """Count the words, embed those that are copied, and train the tokenizer on what is spelled."""
        self.words.prepare(texts, artifacts)
        self.words.load(artifacts, self._oracle())
        super().prepare(spelled_parts(texts, frozenset(self.words.copied)), artifacts)

    def load(self, artifacts: Path) -> None:
        super().load(artifacts)
        self.words.load(artifacts, self._oracle())
        self.word_tokens = WordTokens(self.tokenizer, self.words.copied)

    def make_decoder(self, model: Any) -> CopyingDecoder:
        """The prefix stands before the text; the decoder knows the words by their vectors."""
        if type(model).__name__ != "GPT2LMHeadModel":
            raise InputError(f"{_NAME}: copies words with a GPT-2, and the backbone is a {type(model).__name__}")
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
        """See GenerativeAttack; a copied word is one token."""
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
        """See Attack; the list of words counts."""
        return super().all_weights() | {"words": digest_of(self.words.copied)}

    def text(self, ids: Sequence[int]) -> str:
        return self.word_tokens.decode(ids)

    def _oracle(self) -> CachedEmbedder:
        if self.oracle is None:
            raise InputError(f"{_NAME}: needs the embedder for the vectors of single words, and there is none")
        return self.oracle
