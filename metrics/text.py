"""Scores of one predicted text, as functions of two strings without torch or a model."""

from __future__ import annotations

import re
import string
import unicodedata
from functools import cache
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

Tokens = Literal["13a", "none"]
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def sentence_bleu(reference: str, prediction: str) -> float:
    """BLEU of one text over 13a tokens, 0-100.

    Orders without an n-gram in the prediction are left out, and the k-th order without a match counts as 1 / 2^k
    matches (sacreBLEU's "exp" smoothing). Equal to Vec2Text's for predictions of four tokens or more; Vec2Text gives
    0 to shorter ones, even if they are perfect.
    """
    return min(float(sacrebleu("13a").sentence_score(prediction, [reference]).score), 100.0)


@cache
def sacrebleu(tokens: Tokens) -> Any:
    """sacreBLEU's scorer with the tokenization ``tokens``: "13a", or "none" for white space."""
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize=tokens, effective_order=True)


def exact_match(reference: str, prediction: str) -> bool:
    """Whether both texts are equal, apart from white space at their ends."""
    return reference.strip() == prediction.strip()


def edit_distance(reference: str, prediction: str) -> int:
    """Levenshtein distance in characters of the stripped texts: 0 if and only if ``exact_match`` holds."""
    return int(Levenshtein.distance(reference.strip(), prediction.strip()))


def without_punctuation(text: str) -> str:
    """``text`` composed (NFC), lower-cased, without punctuation, with single spaces.

    A text of punctuation only keeps it; otherwise all such texts would be equal.
    """
    text = unicodedata.normalize("NFC", text.lower())
    bare = text.translate(_ASCII_PUNCTUATION) if text.isascii() else _punctuation().sub("", text)
    return " ".join(bare.split()) or " ".join(text.split())


def without_outer_punctuation(text: str) -> str:
    """``text`` with ASCII punctuation stripped from both ends of each word, with single spaces; case is kept.

    A text of punctuation only keeps it; otherwise all such texts would be equal.
    """
    bare = [word.strip(string.punctuation) for word in text.split()]
    return " ".join(word for word in bare if word) or " ".join(text.split())


@cache
def _punctuation() -> re.Pattern[str]:
    """Unicode punctuation, and the other characters of ``string.punctuation``: ``$+<=>^`|~``."""
    points = (chr(p) for p in range(0x20000))
    return re.compile("[" + re.escape("".join(c for c in points if unicodedata.category(c)[0] == "P")) + r"$+<=>^`|~]")
