"""Split texts into words, and compare the words of a prediction with those of its reference.

    words("Ada's 2 dogs (in Zürich)")  ->  ["ada's", "2", "dogs", "in", "zürich"]

A word is a maximal run of letters, digits and combining marks, with single apostrophes inside, lower-cased. In scripts
that are written without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character with its marks is a word.
In a text without letters and digits ("?!", ":)"), each character other than white space is a word, so that every
non-blank text has a word and a perfect prediction scores 100.

``treebank_tokens`` are those of the Vec2Text papers' token-set F1, with case and with punctuation as tokens:

    treebank_tokens("Mr. Smith can't pay $3.50.")  ->  ["Mr.", "Smith", "ca", "n't", "pay", "$", "3.50", "."]

The papers use NLTK's ``word_tokenize``, which needs a downloaded model for the ends of sentences. Here a full stop
inside a text ends a sentence unless it follows an initial, a title or an abbreviation with inner dots, and on one
sentence the tokens are NLTK's (tests/metrics/test_token_sets.py).

Differences from the papers: Vec2Text (section 4, "token F1") compares the *sets* of NLTK's tokens, with case and with
punctuation as tokens, so that every full stop counts as a match; GEIA (section 4.2) compares sets of subword tokens
over all examples together. Here repeated words count repeatedly, and the mean is over examples.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

# Blocks of the scripts without spaces: Thai and Lao, Burmese, Khmer, Han with its radicals, kana, bopomofo.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff"
)
# Both apostrophes, and the zero-width joiner and non-joiner inside words of Persian and Indic scripts.
_INNER = "'\u2019\u200c\u200d"
_ASCII = {_INNER: re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*"), "": re.compile(r"[a-z0-9]+")}
_VISIBLE = re.compile(r"\S")


@cache
def _marks() -> str:
    """The combining marks as ranges of a character class: ``\\w`` lacks them, and so the vowel signs of Hindi."""
    points = [p for p in (*range(0x20000), *range(0xE0100, 0xE01F0)) if unicodedata.category(chr(p))[0] == "M"]
    starts = [p for p, before in zip(points, [-1, *points], strict=False) if p != before + 1]
    ends = [p for p, after in zip(points, [*points[1:], -1], strict=True) if p != after - 1]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))


@cache
def _pattern(inner: str) -> re.Pattern[str]:
    """Pattern of one word: runs of word characters, joined by single characters of ``inner`` (may be empty)."""
    letters = rf"[^\W_{_UNSPACED}]"
    run = rf"{letters}+(?:[{_marks()}]+{letters}*)*"
    joined = rf"{run}(?:[{inner}]{run})*" if inner else run
    return re.compile(rf"(?=[^\W_])[{_UNSPACED}][{_marks()}]*|{joined}")


def words(text: str) -> list[str]:
    """The words of ``text`` in order, lower-cased, composed (NFC), with a straight apostrophe; [] for a blank text."""
    return _words(text, _INNER)


def rouge_words(text: str) -> list[str]:
    """The words of ``text`` for ROUGE: as ``words``, but split at apostrophes.

    On ASCII text these are the tokens of the package rouge-score. That package drops all other characters ("Zürich"
    becomes "z" and "rich", and a Russian text becomes empty and scores 0); here they are kept.
    """
    return _words(text, "")


def _words(text: str, inner: str) -> list[str]:
    if text.isascii():
        return _ASCII[inner].findall(text.lower()) or _VISIBLE.findall(text)
    found = (unicodedata.normalize("NFC", word.lower()) for word in _pattern(inner).findall(text))
    return [word.replace("\u2019", "'") for word in found] or _VISIBLE.findall(text)


@cache
def needs_boundary(character: str) -> bool:
    """Whether ``character`` can continue a word: true for letters, digits and marks of scripts with spaces."""
    return re.match(rf"[^\W_{_UNSPACED}]|[{_marks()}]", character) is not None


class Overlap(NamedTuple):
    """Overlap of predicted and reference items with repetitions, each 0-100."""

    precision: float
    recall: float
    f1: float


def overlap(reference: Sequence[object], prediction: Sequence[object]) -> Overlap:
    """Multiset precision, recall and F1 of a list of items; all 0 for an empty prediction. The reference has items."""
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
    """Multiset precision, recall and F1 over ``words`` for one example; the module lists the papers' variants."""
    return overlap(words(reference), words(prediction))


def recovered_words(reference: str, prediction: str) -> list[tuple[str, bool]]:
    """The reference split for display into words and separators, each with whether it was recovered.

    Concatenated, the parts are the reference, character for character. A word is recovered if the prediction has it;
    each predicted word matches at most one word of the reference, the first equal one. So the share of recovered words
    is ``token_overlap(...).recall``. Separators are never marked.

    Example:
        recovered_words("Hi, hi Ada!", "ada says hi")
        -> [("Hi", True), (", ", False), ("hi", False), (" ", False), ("Ada", True), ("!", False)]
    """
    available = Counter(words(prediction))
    matches = list(_pattern(_INNER).finditer(reference)) or list(_VISIBLE.finditer(reference))
    parts: list[tuple[str, bool]] = []
    position = 0
    for match, word in zip(matches, words(reference), strict=True):
        parts += [(reference[position : match.start()], False), (match.group(), available[word] > 0)]
        available[word] -= 1
        position = match.end()
    parts.append((reference[position:], False))
    return [(text, found) for text, found in parts if text]


def same_words(reference: str, prediction: str) -> bool:
    """Whether both have the same words in the same order, whatever their case, punctuation and white space.

    Many embedders see neither case nor spaces, so that no attacker can know them.
    """
    return words(reference) == words(prediction)


# The Penn Treebank's tokens wherever they stand; three dots or more are one token.
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
_TITLES = re.compile("capt|co|col|corp|dept|dr|gen|inc|jr|ltd|mr|mrs|ms|no|prof|rev|sgt|sr|st|vs")


@lru_cache(maxsize=8192)
def treebank_tokens(text: str) -> tuple[str, ...]:
    """The tokens of ``text`` in order; () for a blank text."""
    text = _OPENING.sub(r" \g<0> ", _INNER_STOP.sub(_inner_stop, text))
    text = _OPENING_QUOTE.sub(" `` ", text)
    text = _LAST_STOP.sub(" . ", _OPENING_APOSTROPHE.sub("' ", text))
    text = _COLON.sub(r" \g<0> ", _ALONE.sub(r" \g<0> ", text))
    text = " ".join(_CLOSING_QUOTE.sub(" '' ", text).split())
    text = _CLITIC.sub(r" \1", f" {text} ")
    return tuple(_TWO_WORDS.sub(lambda match: " ".join(filter(None, match.groups())), text).split())


def _inner_stop(match: re.Match[str]) -> str:
    """A word and its full stop, apart where the full stop ends a sentence."""
    word = match[1].lstrip("(['\"`“\u2018")
    initial = len(word) == 1 and word.isalpha() and word.isupper()
    abbreviated = initial or "." in word or _TITLES.fullmatch(word.lower())
    return match[0] if abbreviated else f"{match[1]} ."
