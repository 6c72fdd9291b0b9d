"""Split texts into tokens as the Penn Treebank does, for the token-set F1 of the Vec2Text papers.

    treebank_tokens("Mr. Smith can't pay $3.50.")  ->  ["Mr.", "Smith", "ca", "n't", "pay", "$", "3.50", "."]

Case is kept and punctuation is a token. The papers use NLTK's ``word_tokenize``, which needs a downloaded model for
the ends of sentences. Here a full stop inside a text ends a sentence unless it follows an initial, a title or an
abbreviation with inner dots, and on one sentence the tokens are NLTK's (tests/metrics/test_token_sets.py).
"""

from __future__ import annotations

import re
from functools import lru_cache

# Tokens wherever they stand; three dots or more are one token.
_ALONE = re.compile(r"\.{2,}|--|[»”\u2019;@#$%&?!*\u2012-\u2015\[\](){}<>]")
_COLON = re.compile(r"[:,](?!\d)")  # "12:30" and "3,000" stay whole
_OPENING = re.compile(r"`+|[«“\u2018„]")
_OPENING_QUOTE = re.compile(r"(?:^|(?<=[ (\[{<]))(?:\"|'')")
_CLOSING_QUOTE = re.compile(r"\"|''")
_OPENING_APOSTROPHE = re.compile(r"(?i)(?<!\w)'(?=\w)(?!(?:re|ve|ll|m|t|s|d|n)\b)")
_CLOSERS = r"[\])}>\"'»”\u2019]*"
_LAST_STOP = re.compile(rf"(?<=[^.])\.(?={_CLOSERS}\s*$)")
_INNER_STOP = re.compile(rf"(\S*[^.\s])\.(?={_CLOSERS}\s)")
_CLITIC = re.compile(r"(?<=[^' ])('[sSmMdD]?|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)(?= )")
_TWO_WORDS = re.compile(
    r"(?i)\b(?:(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n))\b|\b(wan)(na)(?=\s)"
    r"|(?<= )('t)(is|was)\b"
)
_TITLES = frozenset(
    [
        "capt",
        "co",
        "col",
        "corp",
        "dept",
        "dr",
        "gen",
        "inc",
        "jr",
        "ltd",
        "mr",
        "mrs",
        "ms",
        "no",
        "prof",
        "rev",
        "sgt",
        "sr",
        "st",
        "vs",
    ]
)


@lru_cache(maxsize=8192)
def treebank_tokens(text: str) -> tuple[str, ...]:
    """The tokens of ``text`` in order; () for a blank text."""
    text = _OPENING.sub(r" \g<0> ", _INNER_STOP.sub(_inner_stop, text))
    text = _OPENING_QUOTE.sub(" `` ", text)
    text = _LAST_STOP.sub(" . ", _OPENING_APOSTROPHE.sub("' ", text))
    text = _COLON.sub(r" \g<0> ", _ALONE.sub(r" \g<0> ", text))
    text = " ".join(_CLOSING_QUOTE.sub(" '' ", text).split())
    text = _CLITIC.sub(r" \1", f" {text} ")
    return tuple(_TWO_WORDS.sub(_apart, text).split())


def _inner_stop(match: re.Match[str]) -> str:
    """A word and its full stop, apart where the full stop ends a sentence."""
    word = match[1].lstrip("(['\"`“\u2018")
    abbreviated = word.lower() in _TITLES or "." in word or (len(word) == 1 and word.isalpha() and word.isupper())
    return match[0] if abbreviated else f"{match[1]} ."


def _apart(match: re.Match[str]) -> str:
    return " ".join(part for part in match.groups() if part)
