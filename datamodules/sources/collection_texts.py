"""datamodule=collection: the documents of a collection as texts to attack, so that an attacker knows their kind.

    python train.py datamodule=collection datamodule.source.path=scifact

Validation and test texts are documents as a vector store holds them: from their beginning to the cut. They are chosen
by a hash of the document, and nothing of them is trained on. From a training document a text is taken at its beginning
and at every further sentence, each running on to the cut, since one text a document would be few.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from unembed.core.errors import InputError
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.datamodules.collections import BeirCollection, Collection
from unembed.datamodules.sources.base import END, completed
from unembed.datamodules.sources.files import Fraction

WORD = re.compile(r"\S+")
LEAST = 4  # words of a text that does not start at the beginning of a document


class CollectionTexts:
    """The documents of a BEIR directory or data set, split by document.

    Args:
        path: A directory with corpus.jsonl, or ``owner/name`` on the hub.
        title: Put a document's title before its text, as the search does.
        language: ISO 639-1 code of documents whose row has no field ``language``.
        begin: Where training texts begin: at every ``sentence``, or at the ``document``'s beginning alone.
        words: A training text ends after so many words at the latest, and a longer sentence is begun in anew after
            half as many; give more where datamodule.max_tokens is above 32.
        valid_fraction: Share of the documents held out for validation.
        test_fraction: Share held out for the test.
        split_seed: Chooses which.
        revision: Branch, tag or commit on the hub.
    """

    def __init__(
        self,
        path: str,
        title: bool = True,
        language: str | None = "en",
        begin: Literal["sentence", "document"] = "sentence",
        words: PositiveInt = 48,
        valid_fraction: Fraction = 0.05,
        test_fraction: Fraction = 0.2,
        split_seed: NonNegativeInt = 0,
        revision: str = "main",
    ) -> None:
        if valid_fraction + test_fraction >= 1:
            raise InputError(
                f"datamodule.source.valid_fraction={valid_fraction} and .test_fraction={test_fraction} leave no "
                "training text"
            )
        self.collection = BeirCollection(path, title=title, language=language, revision=revision)
        self.begin, self.words = begin, words
        self.fractions: Mapping[Split, float] = {"valid": valid_fraction, "test": test_fraction}
        self.split_seed = split_seed

    def data_files(self) -> list[Path]:
        """The files of the documents.

        Raises:
            InputError: The collection is not to be found.
        """
        return self.collection.document_files()

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """Texts of each split, uncut; ``group`` is the id of their document.

        Raises:
            InputError: The collection cannot be read.
        """
        entries = (entry for _, entry in self.collection.documents() if entry.text.strip())
        documents = to_arrow(Example(0, entry.text, language=entry.language, group=entry.name) for entry in entries)
        found = by_document(documents, self.fractions, self.split_seed)
        if self.begin == "sentence":
            found["train"] = to_arrow(part for one in found["train"] for part in self._parts(one))
        return found

    def _parts(self, document: Example) -> Iterator[Example]:
        for start, end in begun(document.text, self.words):
            yield replace(document, text=document.text[start:end])


class HeldOut:
    """The test documents that ``CollectionTexts`` would hold out of a collection that has been read; no other split.

    Args:
        collection: Any, also one that is not in BEIR's layout.
        valid_fraction: As the attack was trained with, and so are those that follow.
        test_fraction: Share of the documents.
        split_seed: Chooses which.
        names: Of the documents that are kept; None keeps all that are held out.
    """

    def __init__(
        self,
        collection: Collection,
        valid_fraction: Fraction = 0.05,
        test_fraction: Fraction = 0.2,
        split_seed: NonNegativeInt = 0,
        names: Container[str] | None = None,
    ) -> None:
        self.collection, self.split_seed, self.names = collection, split_seed, names
        self.fractions: Mapping[Split, float] = {"valid": valid_fraction, "test": test_fraction}

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """The test documents, uncut; ``group`` is the id of each."""
        named = zip(self.collection.documents, self.collection.document_ids, strict=True)
        documents = to_arrow(replace(example, group=name) for example, name in named)
        found = by_document(documents, self.fractions, self.split_seed)["test"]
        return {"test": to_arrow(one for one in found if self.names is None or one.group in self.names)}

    def only(self, names: Container[str]) -> HeldOut:
        """Those of them that have these ids."""
        fractions = self.fractions
        return HeldOut(self.collection, fractions["valid"], fractions["test"], self.split_seed, names)


def by_document(
    documents: Sequence[Example], fractions: Mapping[Split, float], seed: int
) -> dict[Split, ArrowExamples]:
    """The documents in their splits, chosen by a hash of their text."""
    counts = {split: math.ceil(len(documents) * fraction) for split, fraction in fractions.items()}
    return completed({"train": documents}, counts, seed)


def begun(text: str, words: int) -> Iterator[tuple[int, int]]:
    """Places of the texts that begin at each sentence of ``text`` and run on, across sentences, for ``words`` words.

    The first is the beginning of ``text``; in a longer sentence another begins after every ``words / 2`` words. Further
    ones of fewer than four words are left out.
    """
    spans = [match.span() for match in WORD.finditer(text)]
    starts = {0, *(match.end() for match in END.finditer(text))}
    since = 0
    for number, (start, _) in enumerate(spans):
        since = 0 if start in starts or number == 0 else since + 1
        if since % max(1, words // 2) == 0 and (number == 0 or number + LEAST <= len(spans)):
            yield start, spans[min(number + words, len(spans)) - 1][1]
