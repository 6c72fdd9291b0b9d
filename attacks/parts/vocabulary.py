"""Vocabularies of attacks without word order: the words of the training text, or tokens of a byte-level BPE.

vocabulary.prepare(texts, artifacts)         # writes artifacts/words.json, or artifacts/pieces.json
vocabulary.load(artifacts)
vocabulary.ids(["i love my dog ."])          # [[0, 14, 5, 23]]
vocabulary.text([14, 23])                    # "love dog"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unembed.attacks.parts.backbones import train_tokenizer
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.metrics.tokens import words

COUNTED_TOGETHER = 16_384  # texts whose ids exist at one time while they are counted


class Vocabulary(ABC):
    """Entries 0 to ``size`` - 1, and texts as lists of them; ``size`` itself stands for what is no entry.

    Attributes:
        size: Number of entries.
        frequency: Share of the training texts that have each entry, (size,), smoothed: neither 0 nor 1.
    """

    file: ClassVar[str]

    def __init__(self) -> None:
        self.size = 0
        self.frequency: Tensor = torch.empty(0)

    @abstractmethod
    def choose(self, texts: Sequence[str]) -> Any:
        """The entries for these training texts, as plain values for JSON."""

    @abstractmethod
    def use(self, entries: Any) -> int:
        """Take what ``choose`` gave; returns how many entries there are."""

    @abstractmethod
    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The entries of each text, in its order and as often as they occur; ``size`` for what is no entry."""

    @abstractmethod
    def text(self, ids: Sequence[int]) -> str:
        """The entries joined by spaces."""

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Choose the entries, count in how many of the training ``texts`` each occurs, write both."""
        entries = self.choose(texts)
        self.size = self.use(entries)
        counts: Counter[int] = Counter()
        for start in range(0, len(texts), COUNTED_TOGETHER):
            counts.update(entry for row in self.ids(texts[start : start + COUNTED_TOGETHER]) for entry in set(row))
        content = {"entries": entries, "texts": len(texts), "in_texts": [counts[entry] for entry in range(self.size)]}
        write_json(artifacts / self.file, content)

    def load(self, artifacts: Path) -> None:
        content = read_json(artifacts / self.file)
        self.size = self.use(content["entries"])
        self.frequency = (torch.tensor(content["in_texts"], dtype=torch.float32) + 0.5) / (content["texts"] + 1)


class Words(Vocabulary):
    """The most common words of the training text, split and lower-cased as for metrics (metrics/tokens.py)."""

    file = "words.json"

    def __init__(self, limit: PositiveInt = 4096) -> None:
        super().__init__()
        self.limit = limit
        self.words: list[str] = []
        self.numbers: dict[str, int] = {}

    def choose(self, texts: Sequence[str]) -> list[str]:
        counts = Counter(word for text in texts for word in words(text))
        return sorted(counts, key=lambda word: (-counts[word], word))[: self.limit]

    def use(self, entries: list[str]) -> int:
        self.words = list(entries)
        self.numbers = {word: number for number, word in enumerate(entries)}
        return len(entries)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.numbers.get(word, self.size) for word in words(text)] for text in texts]

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[number] for number in ids)


class Pieces(Vocabulary):
    """Tokens of a byte-level BPE trained on the training text, which can represent any text.

    Unordered tokens are not a text: joining them by spaces only makes them readable, and metrics use the ids.
    """

    file = "pieces.json"

    def __init__(self, limit: Annotated[int, Field(ge=258)] = 4096) -> None:
        super().__init__()
        self.limit = limit
        self.tokenizer: Any = None

    def choose(self, texts: Sequence[str]) -> str:
        described: str = train_tokenizer(texts, self.limit).backend_tokenizer.to_str()
        return described

    def use(self, entries: str) -> int:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(entries)
        # A text that contains "<eos>" holds five characters, not the end of a text.
        self.tokenizer.encode_special_tokens = True
        return int(self.tokenizer.get_vocab_size())

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """See :class:`Vocabulary`; every text is made of entries."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def text(self, ids: Sequence[int]) -> str:
        tokens = (self.tokenizer.decode([number], skip_special_tokens=True).strip() for number in ids)
        return " ".join(token for token in tokens if token)


class HubTokens(Pieces):
    """All tokens of a tokenizer of the hub, or of a local folder."""

    def __init__(self, name: str, revision: str | None = None) -> None:
        super().__init__()
        self.name, self.revision = name, revision

    def choose(self, texts: Sequence[str]) -> str:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.name, revision=self.revision, trust_remote_code=False)
        except OSError as error:
            raise InputError(
                f"attack.vocabulary.name={self.name}: no such local directory, and no such tokenizer in the hub's "
                "cache or on the hub. Offline, attack/vocabulary=pieces trains one"
            ) from error
        described: str = tokenizer.backend_tokenizer.to_str()
        return described
