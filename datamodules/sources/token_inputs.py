"""Inputs of a language model as token ids of given lengths: random ones, and natural text cut to so many tokens.

    datamodule=random_tokens embedder=language_model embedder.model=gpt2

    Example(index=0, text=" Wheel adop", tokens=(17862, 14520))

The ids are what the model reads; the text only shows them. Most random ids would come back as others from decoding and
encoding, so nothing is cut or compared by the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from unembed.core.errors import InputError
from unembed.core.examples import Example, Span, Split
from unembed.datamodules.inversion import files_of
from unembed.datamodules.sources.base import END, SPLITS, Downloaded, InLanguages, Source
from unembed.datamodules.truncation import CHUNK, load_tokenizer

TOKENIZER_KEY = "datamodule.source.tokenizer"


def _lengths(least: int, most: int) -> range:
    if least > most:
        raise ValueError(f"min_length={least} is greater than max_length={most}")
    return range(least, most + 1)


class RandomTokens:
    """Ids sampled uniformly from the tokenizer's, for each length and split so many different inputs (section 5.1).

    No input stands in two splits. Where there are too few different ones of a length, the test gets them first.
    ``tokenizer`` is a tokenizer.json, a directory that holds one, or the name of a model on the hub.
    """

    def __init__(
        self,
        tokenizer: str,
        min_length: PositiveInt = 1,
        max_length: PositiveInt = 10,
        test_per_length: PositiveInt = 1000,
        valid_per_length: NonNegativeInt = 0,
        train_per_length: NonNegativeInt = 0,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.tokenizer, self.lengths = tokenizer, _lengths(min_length, max_length)
        self.counts: Mapping[Split, int] = {
            "test": test_per_length, "valid": valid_per_length, "train": train_per_length,
        }  # fmt: skip
        self.seed = seed

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """Examples of each split, shortest first."""
        tokenizer = load_tokenizer(self.tokenizer, TOKENIZER_KEY)
        vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
        splits: dict[Split, list[Example]] = {split: [] for split in SPLITS}
        for length in self.lengths:
            sampled = self._sample(vocabulary, length)
            for split, count in self.counts.items():
                ids = [next(sampled, None) for _ in range(count)]
                known = [row for row in ids if row is not None]
                texts = tokenizer.decode_batch(known, skip_special_tokens=False)
                splits[split] += [Example(0, text, tokens=row) for text, row in zip(texts, known, strict=True)]
        return splits

    def _sample(self, vocabulary: int, length: int) -> Iterator[tuple[int, ...]]:
        """Different inputs of a length, as many as asked for or as there are."""
        generator = np.random.default_rng([self.seed, length])
        wanted, space = sum(self.counts.values()), vocabulary**length
        if space <= 4 * wanted:  # sampling until none is new would take long
            for number in generator.permutation(space).tolist():
                yield tuple(number // vocabulary**place % vocabulary for place in range(length))
            return
        seen: set[tuple[int, ...]] = set()
        while True:
            for row in generator.integers(vocabulary, size=(1024, length)).tolist():
                ids = tuple(row)
                if ids not in seen:
                    seen.add(ids)
                    yield ids


class CutTexts:
    """The first tokens of texts of another source, in equal numbers for each length.

    Every text gives one input at most: of the length that has fewest so far, among those that the text is long enough
    for. Labelled entities of the text become labels of the tokens.

    Args:
        source: Gives the texts.
        tokenizer: As in RandomTokens.
        test_per_length: Test inputs of each length, at most; null: as many as there are texts; so for other splits.
        sentence_within: Characters of a text, of whose sentences one is sampled and cut; null: the text itself.
        whole: Whether an input is a whole text: of each length those texts that have exactly so many tokens.
        seed: Decides which sentence of a text is taken.
    """

    def __init__(
        self,
        source: Source,
        tokenizer: str,
        min_length: PositiveInt = 1,
        max_length: PositiveInt = 10,
        test_per_length: PositiveInt | None = None,
        valid_per_length: NonNegativeInt | None = None,
        train_per_length: NonNegativeInt | None = None,
        sentence_within: PositiveInt | None = None,
        whole: bool = False,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.sentence_within, self.whole, self.seed = sentence_within, whole, seed
        self.source, self.tokenizer, self.lengths = source, tokenizer, _lengths(min_length, max_length)
        self.counts: Mapping[Split, int | None] = {
            "test": test_per_length, "valid": valid_per_length, "train": train_per_length,
        }  # fmt: skip

    def only(self, languages: Sequence[str]) -> Source:
        if isinstance(self.source, InLanguages):
            self.source = self.source.only(languages)
        return self

    def download(self) -> str | None:
        return self.source.download() if isinstance(self.source, Downloaded) else None

    def data_files(self) -> list[Path]:
        return files_of(self.source)

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """Examples of each split, shortest first."""
        splits = {split: self._cut(examples, self.counts[split]) for split, examples in self.source.load().items()}
        if not splits.get("test"):
            raise InputError(
                f"datamodule.source.min_length={self.lengths[0]}: no test text has so many tokens of {self.tokenizer}"
            )
        return splits

    @cached_property
    def _tokens(self) -> Any:
        return load_tokenizer(self.tokenizer, TOKENIZER_KEY)

    def _cut(self, examples: Sequence[Example], per_length: int | None) -> list[Example]:
        cut: dict[int, dict[tuple[int, ...], Example]] = {length: {} for length in self.lengths}
        limit = len(examples) if per_length is None else per_length
        for begin in range(0, len(examples), CHUNK):
            if all(len(rows) >= limit for rows in cut.values()):
                break
            some = [self._sentence(example) for example in examples[begin : begin + CHUNK]]
            encoded = self._tokens.encode_batch([e.text for e in some], add_special_tokens=False)
            for example, encoding in zip(some, encoded, strict=True):
                own = (len(encoding.ids),) if self.whole else range(1, len(encoding.ids) + 1)
                fitting = [length for length in self.lengths if length in own and len(cut[length]) < limit]
                if fitting:
                    length = min(fitting, key=lambda length: (len(cut[length]), -length))
                    cut[length].setdefault(tuple(encoding.ids[:length]), _shortened(example, encoding, length))
        return [example for rows in cut.values() for example in rows.values()]

    def _sentence(self, example: Example) -> Example:
        """One sentence of the example's first characters, or the example itself."""
        if self.sentence_within is None:
            return example
        begin = example.text[: self.sentence_within]
        bounds = [0, *(place for match in END.finditer(begin) for place in match.span()), len(begin)]
        chosen = 2 * int(np.random.default_rng([self.seed, example.index]).integers(len(bounds) // 2))
        start, end = bounds[chosen : chosen + 2]
        spans = (span for span in example.spans if start <= span.start and span.end <= end)
        moved = tuple(Span(span.start - start, span.end - start, span.label) for span in spans)
        return replace(example, text=begin[start:end], original=None, spans=moved)


def _shortened(example: Example, encoding: Any, length: int) -> Example:
    """The first ``length`` tokens of an example."""
    places = encoding.offsets[:length]
    end = places[-1][1]
    return replace(
        example,
        text=example.text[:end],
        original=None,
        spans=tuple(span for span in example.spans if span.end <= end),
        tokens=tuple(encoding.ids[:length]),
        token_labels=tuple(_label(example.spans, *place) for place in places),
    )


def _label(spans: Sequence[Span], start: int, end: int) -> str | None:
    """The label of the first entity that characters of a token lie in."""
    return next((span.label for span in spans if span.start < end and start < span.end), None)
