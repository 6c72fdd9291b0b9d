"""Scores of one predicted text, as functions of two strings that need neither torch nor a model."""

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
    matches (sacreBLEU's "exp" smoothing). It is that of Vec2Text for all predictions of four tokens or more (theirs
    gives 0 to a shorter one, even to a perfect one).
    """
    return min(float(sacrebleu("13a").sentence_score(prediction, [reference]).score), 100.0)


@cache
def sacrebleu(tokens: Tokens) -> Any:
    """Its BLEU over that tokenization: 13a, or cut at white space."""
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize=tokens, effective_order=True)


def exact_match(reference: str, prediction: str) -> bool:
    """Whether both are the same, character for character, apart from white space at their ends."""
    return reference.strip() == prediction.strip()


def edit_distance(reference: str, prediction: str) -> int:
    """Levenshtein distance in characters, white space at the ends left out: 0 exactly where ``exact_match`` holds."""
    return int(Levenshtein.distance(reference.strip(), prediction.strip()))


def without_punctuation(text: str) -> str:
    """``text`` composed (NFC), lower-cased, without punctuation, with single spaces.

    A text of punctuation alone is kept, with single spaces: taking all of it away would make all such texts equal.
    """
    text = unicodedata.normalize("NFC", text.lower())
    bare = text.translate(_ASCII_PUNCTUATION) if text.isascii() else _punctuation().sub("", text)
    return " ".join(bare.split()) or " ".join(text.split())


@cache
def _punctuation() -> re.Pattern[str]:
    """Unicode's punctuation, and what ``string.punctuation`` adds to it: ``$+<=>^`|~``."""
    points = (chr(p) for p in range(0x20000))
    return re.compile("[" + re.escape("".join(c for c in points if unicodedata.category(c)[0] == "P")) + r"$+<=>^`|~]")
