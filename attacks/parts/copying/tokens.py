"""Token ids of texts in which rare words are one token each, whether training has seen them or not.

    tokens = WordTokens(tokenizer, {"delphine": "Delphine", ...})
    tokens.encode(["My aunt Delphine left."])      # [[My, aunt, V + 3 * row + 1, left, .]]: V is the tokenizer's size

A row has an id for each case: lower case, with a capital letter, or in capital letters. A word that is written in
another way, or does not stand behind a space, is left to the tokenizer. So every text can be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from unembed.attacks.parts.backbones import token_ids
from unembed.attacks.refine.lexicon.writing import capitalised

CASES = 3
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

    Args:
        tokenizer: Writes what is not copied; it must give back every character.
        words: Lower-case words that are copied; their places are their rows.
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
