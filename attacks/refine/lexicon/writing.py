"""Capital letters and spaces as the training texts have them; embedders such as all-MiniLM-L6-v2 drop both.

writing = Writing.count(["Ada paid $3,000 to the Willow Pension Fund.", ...])
writing.written(Units.of("ada paid $ 3 , 000 to the willow pension fund ."))   # as in the text above
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from unembed.attacks.refine.lexicon.units import Units

Counts = dict[str, dict[str, int]]

_BEGIN, _END = "<s>", "</s>"
_UNSEEN = 0.5  # occurrences that the neighbours' usual company weighs as much as
_RARE = 0.01  # share of what stands between two units
_LEFT = 2.0  # weight of the neighbour whose own form is known


class Writing:
    """How words are written next to which neighbours, and what stands between two units.

    Args:
        counts: Of each key of ``count``, how often each form, or white space, was found.
    """

    def __init__(self, counts: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.counts: Counts = {key: dict(found) for key, found in (counts or {}).items()}

    @classmethod
    def count(cls, texts: Iterable[str]) -> Writing:
        """Counts of ``texts``: forms by word and by pair of neighbours, spaces by pair."""
        forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
        pairs: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            units = Units.of(text)
            words = (*units.words, _END)
            for place, surface in enumerate(units.surfaces):
                word = words[place]
                if place:
                    for key in _gap_keys(words[place - 1], word):
                        forms[key][units.gaps[place]] += 1
                if not word[0].isalpha():
                    continue
                if units.initial(place):
                    forms["initial"]["large" if surface[0].isupper() else "small"] += 1
                    continue
                left = _neighbour(units, place)
                forms[f"form {word}"][surface] += 1
                pairs[f"left {left} {word}"][surface] += 1
                pairs[f"right {word} {words[place + 1]}"][surface] += 1
                shape = "large" if surface[0].isupper() else "small"
                forms[f"behind {left}"][shape] += 1
                forms[f"before {words[place + 1]}"][shape] += 1
        ambiguous = {key.removeprefix("form ") for key, found in forms.items() if key[:5] == "form " and len(found) > 1}
        for key, found in pairs.items():
            kind, one, other = key.split(" ")
            if (other if kind == "left" else one) in ambiguous:
                forms[key] = found
        return cls({key: found for key, found in forms.items() if not _is_redundant(key, forms)})

    def written(self, units: Units, like: Units | None = None) -> Units:
        """The units with the capital letters and spaces that the texts would have there.

        Words that the texts show nowhere inside a sentence keep their capital letters. Where the texts have
        both "gone ." and "gone.", the mark is written as in ``like``.
        """
        if not self.counts:
            return units
        surfaces: list[str] = []
        gaps: list[str] = []
        words = (*units.words, _END)
        usual = {} if like is None else dict(zip(like.words[1:], like.gaps[1:], strict=True))
        for place, surface in enumerate(units.surfaces):
            known = Units(tuple(surfaces), tuple(gaps))
            surfaces.append(self._form(known, surface, words[place], words[place + 1], units.initial(place)))
            preferred = usual.get(words[place]) if _kind(words[place]) == "<mark>" else None
            gaps.append(self.gap(words[place - 1], words[place], preferred) if place else units.gaps[0])
        return Units(tuple(surfaces), tuple(gaps), units.tail)

    def inside(self, word: str) -> bool:
        """Whether a lower-case word was seen inside a sentence, where its capital letters are its own."""
        return f"form {word}" in self.counts

    def gap(self, left: str, right: str, preferred: str | None = None) -> str:
        """What stands between two lower-case units, white space or nothing: ``preferred`` unless it is rare there."""
        for key in _gap_keys(left, right):
            if found := self.counts.get(key):
                common = preferred is not None and found.get(preferred, 0) > _RARE * sum(found.values())
                return preferred if preferred is not None and common else _most(found)
        return " "

    def _form(self, before: Units, surface: str, word: str, right: str, initial: bool) -> str:
        if not word[0].isalpha():
            return surface
        if initial:
            known = _most(self.counts[f"form {word}"]) if f"form {word}" in self.counts else surface
            first = self.counts.get("initial", {})
            return capitalised(known) if first.get("large", 0) > first.get("small", 0) else known
        own = self.counts.get(f"form {word}")
        if own is None:
            return surface
        if len(own) == 1:
            return _most(own)
        place = len(before)
        left = _neighbour(before, place)
        shapes = [self.counts.get(f"behind {left}", {}), self.counts.get(f"before {right}", {})]
        large = sum(found.get("large", 0) for found in shapes) + 0.1
        small = sum(found.get("small", 0) for found in shapes) + 0.1
        on_left, on_right = self.counts.get(f"left {left} {word}", {}), self.counts.get(f"right {word} {right}", {})

        def fits(form: str) -> float:
            shape = (large if form[0].isupper() else small) / (large + small)
            usual = (own.get(form, 0) + _UNSEEN * shape) / (sum(own.values()) + _UNSEEN)
            return _LEFT * on_left.get(form, 0) + on_right.get(form, 0) + usual

        return min(own, key=lambda form: (-fits(form), form))


def capitalised(word: str) -> str:
    """With its first letter in upper case."""
    return word[:1].upper() + word[1:]


def _neighbour(units: Units, place: int) -> str:
    """The unit before ``place`` as it is written, or in lower case where its capital letter is the sentence's."""
    if place == 0:
        return _BEGIN
    return units.words[place - 1] if units.initial(place - 1) else units.surfaces[place - 1]


def _gap_keys(left: str, right: str) -> tuple[str, ...]:
    """Of a pair of units, then of what kinds of units they are."""
    one, other = _kind(left), _kind(right)
    return f"gap {left} {right}", f"gap {one} {right}", f"gap {left} {other}", f"gap {one} {other}"


def _kind(unit: str) -> str:
    return "<digit>" if unit[0].isdigit() else "<word>" if unit[0].isalpha() else "<mark>"


def _most(found: Mapping[str, int]) -> str:
    return min(found, key=lambda form: (-found[form], form))


def _is_redundant(key: str, counts: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a pair has the space that its kinds have anyway."""
    kind, _, pair = key.partition(" ")
    if kind != "gap" or "<" in pair:
        return False
    left, right = pair.split(" ")
    return next(_most(counts[other]) for other in _gap_keys(left, right)[1:]) == _most(counts[key])
