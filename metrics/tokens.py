"""What a word is, and how many of a reference's words a prediction has.

    words("Ada's 2 dogs (in Zürich)")  ->  ["ada's", "2", "dogs", "in", "zürich"]

A word is a maximal run of letters, digits and combining marks, with single apostrophes inside, lower-cased. In scripts
that are written without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character with its marks is a word.
Where a text has neither letter nor digit ("?!", ":)"), its characters other than white space are its words, so that
every text that is not blank has at least one and a perfect prediction of it scores 100.

How this differs from the papers: Vec2Text (section 4, "token F1") compares the *sets* of NLTK's tokens, case kept and
punctuation counted as tokens, which every full stop helps; GEIA (section 4.2) compares sets of subword tokens over all
examples together. Here words are counted as often as they occur, and the mean is over examples.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

# Blocks of the scripts without spaces: Thai and Lao, Burmese, Khmer, Han with its radicals, kana, bopomofo.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff"
)
# Both apostrophes, and the two invisible joiners that stand inside words of Persian and of Indian scripts.
_INNER = "'\u2019\u200c\u200d"
_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")
_ASCII_RUN = re.compile(r"[a-z0-9]+")
_VISIBLE = re.compile(r"\S")


@cache
def _marks() -> str:
    """The combining marks as ranges of a character class: ``\\w`` lacks them, and with them the vowels of Hindi."""
    points = [p for p in (*range(0x20000), *range(0xE0100, 0xE01F0)) if unicodedata.category(chr(p))[0] == "M"]
    starts = [p for p, before in zip(points, [-1, *points], strict=False) if p != before + 1]
    ends = [p for p, after in zip(points, [*points[1:], -1], strict=True) if p != after - 1]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))


@cache
def _pattern(inner: str) -> re.Pattern[str]:
    """One word, with at most one character of ``inner`` at a time between two runs; no such character where empty."""
    letters = rf"[^\W_{_UNSPACED}]"
    run = rf"{letters}+(?:[{_marks()}]+{letters}*)*"
    joined = rf"{run}(?:[{inner}]{run})*" if inner else run
    return re.compile(rf"(?=[^\W_])[{_UNSPACED}][{_marks()}]*|{joined}")


@cache
def _boundary() -> re.Pattern[str]:
    return re.compile(rf"[^\W_{_UNSPACED}]|[{_marks()}]")


def _normalise(word: str) -> str:
    return unicodedata.normalize("NFC", word.lower()).replace("\u2019", "'")


def words(text: str) -> list[str]:
    """The words of ``text`` in order, lower-cased, composed (NFC), with a straight apostrophe; [] for a blank text."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower()) or _VISIBLE.findall(text)
    return [_normalise(word) for word in _pattern(_INNER).findall(text)] or _VISIBLE.findall(text)


def rouge_words(text: str) -> list[str]:
    """The words of ``text`` as ROUGE cuts them: as ``words``, but an apostrophe parts two words.

    On ASCII text these are the tokens of the package rouge-score. Of other scripts that package drops all but ASCII
    letters and digits ("Zürich" becomes "z" and "rich", a Russian text nothing, which then scores 0); here they count.
    """
    if text.isascii():
        return _ASCII_RUN.findall(text.lower()) or _VISIBLE.findall(text)
    return [_normalise(word) for word in _pattern("").findall(text)] or _VISIBLE.findall(text)


def needs_boundary(character: str) -> bool:
    """Whether a word can run on through ``character``: true for letters, digits and marks of scripts with spaces."""
    return _boundary().match(character) is not None


class Overlap(NamedTuple):
    """How much of one list of items another has, each 0-100.

    Attributes:
        precision: Share of the predicted items that are in the reference, each as often as it occurs in both.
        recall: Share of the reference's items that are in the prediction.
        f1: Their harmonic mean; 0 where nothing is shared.
    """

    precision: float
    recall: float
    f1: float


def overlap(reference: Sequence[object], prediction: Sequence[object]) -> Overlap:
    """Multiset precision, recall and F1 of a list of items; all 0 where nothing is predicted.

    Raises:
        ValueError: The reference is empty, so that recall has no meaning.
    """
    if not reference:
        raise ValueError("recall has no meaning for an empty reference")
    shared = (Counter(reference) & Counter(prediction)).total()
    if shared == 0:
        return Overlap(0.0, 0.0, 0.0)
    return Overlap(
        precision=100 * shared / len(prediction),
        recall=100 * shared / len(reference),
        f1=200 * shared / (len(prediction) + len(reference)),
    )


def token_overlap(reference: str, prediction: str) -> Overlap:
    """Multiset precision, recall and F1 over ``words``, for one example; see the module for the papers' variants."""
    return overlap(words(reference), words(prediction))


def recovered_words(reference: str, prediction: str) -> list[tuple[str, bool]]:
    """The reference cut for display: its words, and what stands between them, each with whether it was recovered.

    The parts put together are the reference, character for character. A word is recovered if the prediction has it,
    each of the prediction's words being used once, by the first word of the reference that equals it; so the share of
    recovered words is ``token_overlap(...).recall``. What stands between words is never marked.

    Example:
        recovered_words("Hi, hi Ada!", "ada says hi")
        -> [("Hi", True), (", ", False), ("hi", False), (" ", False), ("Ada", True), ("!", False)]
    """
    available = Counter(words(prediction))
    matches = list(_pattern(_INNER).finditer(reference))
    normalise: Callable[[str], str] = _normalise
    if not matches:
        matches, normalise = list(_VISIBLE.finditer(reference)), str
    parts: list[tuple[str, bool]] = []
    position = 0
    for match in matches:
        if match.start() > position:
            parts.append((reference[position : match.start()], False))
        word = normalise(match.group())
        parts.append((match.group(), available[word] > 0))
        available[word] -= 1
        position = match.end()
    if position < len(reference):
        parts.append((reference[position:], False))
    return parts
