"""How many of a reference's entities a prediction discloses.

    reference   "Ada moved to Paris; Ada likes it."   spans: Ada (first_name), Paris (city), Ada (first_name)
    prediction  "ada, do you like PARIS?"             -> 2 of 3: one of the two Adas, and Paris

An entity counts as recovered if its text occurs in the prediction as whole words: not inside a longer word, and not
inside a longer number ("250" is not in "1,250"). Case, the kind of apostrophe and the amount of white space are
ignored; everything else must match, including punctuation. The prediction needs no labels.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from unembed.core.examples import Span
from unembed.metrics.tokens import needs_boundary, treebank_tokens, words

_DIGIT_BEFORE = re.compile(r"\d[.,:]\Z")
_DIGIT_AFTER = re.compile(r"[.,:]\d")


def entity_key(label: str, text: str) -> tuple[str, str]:
    """Key of an entity in the set of training entities: its label and lower-cased text."""
    return label, text.lower()


def entity_keys(text: str, spans: Iterable[Span]) -> list[tuple[str, str]]:
    """``entity_key`` of each span of ``text``."""
    return [entity_key(span.label, span_text(text, span)) for span in spans]


def unseen_entities(text: str, spans: Iterable[Span], training: Collection[tuple[str, str]]) -> tuple[bool, ...]:
    """Of each span, whether its key is missing in ``training``: all ``entity_keys`` of the training split."""
    return tuple(key not in training for key in entity_keys(text, spans))


def span_text(text: str, span: Span) -> str:
    """The characters of ``span``, which must be inside the text and not blank."""
    if not 0 <= span.start < span.end <= len(text):
        raise ValueError(
            f"span {span.start}-{span.end} ({span.label}) reaches outside a text of {len(text)} characters"
        )
    found = text[span.start : span.end]
    if not found.strip():
        raise ValueError(f"span {span.start}-{span.end} ({span.label}) holds nothing but white space")
    return found


def recovered_entities(values: Iterable[str], prediction: str, *, ordered: bool = True) -> int:
    """How many of the entity texts ``values`` occur in the prediction.

    Args:
        values: Texts of entities, repeated as often as in the reference. A value given twice counts twice only if it
            occurs twice in the prediction.
        prediction: The predicted text.
        ordered: False if the prediction is an unordered set of words: a value of several words is then recovered if
            the set has all of them.
    """
    wanted = Counter(_fold(value) for value in values)
    if not wanted:
        return 0
    if ordered:
        folded = _fold(prediction)
        return sum(min(times, _occurrences(value, folded)) for value, times in wanted.items())
    offered = Counter(words(prediction))
    return sum(min(times, _fits(value, offered)) for value, times in wanted.items())


def entity_words(text: str, spans: Iterable[Span]) -> list[str]:
    """The words of all entities of ``text``, for GEIA's NERR: tokens of the Penn Treebank, case kept."""
    return [word for span in spans for word in treebank_tokens(span_text(text, span))]


def recovered_entity_words(reference: Sequence[str], prediction: Collection[str]) -> tuple[int, int]:
    """GEIA's NERR of a predicted text: distinct ``entity_words`` of both texts, and all those of the reference."""
    return len(set(reference).intersection(prediction)), len(reference)


def recovered_entity_pieces(words: Iterable[Sequence[int]], prediction: Collection[int]) -> tuple[int, int]:
    """GEIA's NERR of a predicted set: distinct tokens of the entities' words that it has, and all such tokens.

    Args:
        words: Tokens of each of the reference's ``entity_words``, each tokenized by itself.
        prediction: The predicted tokens.
    """
    pieces = {piece for word in words for piece in word}
    return len(pieces.intersection(prediction)), len(pieces)


def _fold(text: str) -> str:
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).replace("\u2019", "'")
    return " ".join(text.split())


def _occurrences(value: str, text: str) -> int:
    """How often ``value`` occurs in ``text`` as whole words, without overlaps; both are folded."""
    count, start = 0, text.find(value)
    while start >= 0:
        end = start + len(value)
        whole = _whole(value, text, start, end)
        count += whole
        start = text.find(value, end if whole else start + 1)
    return count


def _whole(value: str, text: str, start: int, end: int) -> bool:
    if start > 0:
        if needs_boundary(value[0]) and needs_boundary(text[start - 1]):
            return False
        if value[0].isdigit() and _DIGIT_BEFORE.search(text, max(start - 2, 0), start):
            return False
    if end < len(text):
        if needs_boundary(value[-1]) and needs_boundary(text[end]):
            return False
        if value[-1].isdigit() and _DIGIT_AFTER.match(text, end):
            return False
    return True


def _fits(value: str, offered: Counter[str]) -> int:
    return min(offered[word] // times for word, times in Counter(words(value)).items())
