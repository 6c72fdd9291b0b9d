"""What the training texts say of a text: its units, word order, capital letters and spaces.

units = Units.of("Ada went to Rome.")                # Ada| went| to| Rome|.
units.replaced(3, "Oslo")                            # "Ada went to Oslo."
language = Language.count(["Ada went to Rome.", ...])
language.follows("went", "to")                       # log probability under smoothed bigrams
language.between("to", ".")                          # {"rome"}: words seen behind the one and before the other
language.writing.written(Units.of("ada went to rome ."))   # "Ada went to Rome."
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from unembed.core import limits
from unembed.core.atomic_files import read_json, write_file

PIECE = "\ue000"  # a character without a meaning before a piece that continues the word before it: Jasmin|\ue000ka
UNIT = re.compile(rf"{PIECE}?\w+|[^\w\s]")
_SPAN = 4  # units that are removed at once: brother|-in-law
_ATTACHED = (*".,;:!?%)]}'", PIECE)  # no space before these where they are inserted


@dataclass(frozen=True)
class Units:
    """Words, pieces of words and punctuation marks of a text."""

    surfaces: tuple[str, ...]  # as they are written
    gaps: tuple[str, ...]  # white space before each of them, or nothing
    tail: str = ""  # what stands behind the last

    @classmethod
    def of(cls, text: str) -> Units:
        """The units of a text; ``str`` gives the text back."""
        surfaces, gaps, end = [], [], 0
        for match in UNIT.finditer(text):
            surfaces.append(match.group())
            gaps.append(text[end : match.start()])
            end = match.end()
        return cls(tuple(surfaces), tuple(gaps), text[end:])

    def __str__(self) -> str:
        parts = [part for pair in zip(self.gaps, self.surfaces, strict=True) for part in pair]
        return "".join(parts).replace(PIECE, "") + self.tail

    def __len__(self) -> int:
        return len(self.surfaces)

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(surface.lower() for surface in self.surfaces)

    def initial(self, place: int) -> bool:
        return place == 0 or self.surfaces[place - 1] in (".", "!", "?")

    def replaced(self, place: int, entry: str) -> Units:
        """With ``entry``, one or several units, instead of the unit at ``place``."""
        own = Units.of(entry)
        first = self.gaps[place]
        if is_piece(entry) != is_piece(self.surfaces[place]):
            first = "" if is_piece(entry) else " "
        gaps = (*self.gaps[:place], first, *own.gaps[1:], *self.gaps[place + 1 :])
        return Units(self.surfaces[:place] + own.surfaces + self.surfaces[place + 1 :], gaps, self.tail)

    def inserted(self, place: int, entry: str) -> Units:
        """With ``entry`` before the unit at ``place``, or at the end."""
        own = Units.of(entry)
        first = "" if place == 0 or own.surfaces[0].startswith(_ATTACHED) else " "
        gaps = list(self.gaps)
        if place == 0 and gaps and not self.surfaces[0].startswith(_ATTACHED):
            gaps[0] = " "
        gaps[place:place] = [first, *own.gaps[1:]]
        return Units(self.surfaces[:place] + own.surfaces + self.surfaces[place:], tuple(gaps), self.tail)

    def removed(self, place: int, count: int = 1) -> Units:
        """Without ``count`` units from ``place`` on."""
        end = place + count
        gaps = [*self.gaps[:place], *self.gaps[end:]]
        if place == 0 and gaps:
            gaps[0] = self.gaps[0]
        return Units(self.surfaces[:place] + self.surfaces[end:], tuple(gaps), self.tail)

    def spans(self) -> list[tuple[int, int]]:
        """Begin and end of each unit, and of up to ``_SPAN`` units without space between them."""
        found = []
        for begin in range(len(self)):
            found.append((begin, begin + 1))
            for end in range(begin + 1, min(begin + _SPAN, len(self))):
                if self.gaps[end]:
                    break
                found.append((begin, end + 1))
        return found

    def whole(self) -> list[tuple[int, int]]:
        """Begin and end of each unit with the pieces that continue it."""
        begins = [place for place, surface in enumerate(self.surfaces) if not is_piece(surface)]
        return list(pairwise([*begins, len(self)]))

    def spelt(self) -> list[tuple[int, int]]:
        """Those of the whole units that are words with pieces."""
        return [(begin, end) for begin, end in self.whole() if end > begin + 1]

    def ordered(self, places: Sequence[int]) -> Units:
        """With the units at ``places``, in this order; units that stay together keep the space between them."""
        surfaces = tuple(self.surfaces[place] for place in places)
        gaps = [
            self.gaps[place] if place == before + 1 else "" if surface.startswith(_ATTACHED) else " "
            for before, place, surface in zip((-1, *places), places, surfaces, strict=False)
        ]
        if gaps:
            gaps[0] = self.gaps[0]
        return Units(surfaces, tuple(gaps), self.tail)


def is_piece(unit: str) -> bool:
    return unit.startswith(PIECE)


# -- capital letters and spaces
START, END = "<s>", "</s>"
_UNSEEN = 0.5  # occurrences that the neighbours' usual company weighs as much as
_RARE = 0.01  # share of what stands between two units
_LEFT = 2.0  # weight of the neighbour whose own form is known


class Writing:
    """How often each form of a word, or white space, was found next to which neighbours."""

    def __init__(self, counts: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.counts = {key: dict(found) for key, found in (counts or {}).items()}

    @classmethod
    def count(cls, texts: Iterable[str]) -> Writing:
        """Counts of ``texts``: forms by word and by pair of neighbours, spaces by pair."""
        forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
        pairs: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            units = Units.of(text)
            words = (*units.words, END)
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

        Words that the texts show nowhere inside a sentence keep their capital letters, and get one where their
        neighbours mostly have one between them. Where the texts have both "gone ." and "gone.", the mark is written as
        in ``like``.
        """
        units, like = Units.of(str(units)), None if like is None else Units.of(str(like))  # pieces are parts of words
        if not self.counts:
            return units
        surfaces: list[str] = []
        gaps: list[str] = []
        words = (*units.words, END)
        usual = {} if like is None else dict(zip(like.words[1:], like.gaps[1:], strict=True))
        for place, surface in enumerate(units.surfaces):
            known = Units(tuple(surfaces), tuple(gaps))
            surfaces.append(self._form(known, surface, words[place], words[place + 1], units.initial(place)))
            preferred = usual.get(words[place]) if _kind(words[place]) == "<mark>" else None
            gaps.append(self.gap(words[place - 1], words[place], preferred) if place else units.gaps[0])
        return Units(tuple(surfaces), tuple(gaps), units.tail)

    def alternatives(self, units: Units) -> Iterator[Units]:
        """The units with one word in another form that the texts have of it inside a sentence."""
        for place, word in enumerate(units.words):
            for form in sorted(self.counts.get(f"form {word}", {})):
                if form != units.surfaces[place] and not units.initial(place):
                    yield replace(units, surfaces=(*units.surfaces[:place], form, *units.surfaces[place + 1 :]))

    def inside(self, word: str) -> bool:
        """Whether a lower-case word was seen inside a sentence, where its capital letters are its own."""
        return f"form {word}" in self.counts

    def gap(self, left: str, right: str, preferred: str | None = None) -> str:
        """What stands between two lower-case units, white space or nothing: ``preferred`` unless it is rare there."""
        for key in _gap_keys(left, right):
            if found := self.counts.get(key):
                common = preferred is not None and found.get(preferred, 0) > _RARE * sum(found.values())
                return preferred if preferred is not None and common else _most(found)
        return "" if right.startswith(_ATTACHED) else " "

    def _form(self, before: Units, surface: str, word: str, right: str, initial: bool) -> str:
        if not word[0].isalpha():
            return surface
        if initial:
            known = _most(self.counts[f"form {word}"]) if f"form {word}" in self.counts else surface
            first = self.counts.get("initial", {})
            return capitalised(known) if first.get("large", 0) > first.get("small", 0) else known
        own = self.counts.get(f"form {word}")
        if own is not None and len(own) == 1:
            return _most(own)
        left = _neighbour(before, len(before))
        shapes = [self.counts.get(f"behind {left}", {}), self.counts.get(f"before {right}", {})]
        large = sum(found.get("large", 0) for found in shapes) + 0.1
        small = sum(found.get("small", 0) for found in shapes) + 0.1
        if own is None:
            return capitalised(surface) if large > small else surface
        on_left, on_right = self.counts.get(f"left {left} {word}", {}), self.counts.get(f"right {word} {right}", {})

        def fits(form: str) -> float:
            shape = (large if form[0].isupper() else small) / (large + small)
            usual = (own.get(form, 0) + _UNSEEN * shape) / (sum(own.values()) + _UNSEEN)
            return _LEFT * on_left.get(form, 0) + on_right.get(form, 0) + usual

        return min(own, key=lambda form: (-fits(form), form))


def capitalised(word: str) -> str:
    return word[:1].upper() + word[1:]


def _neighbour(units: Units, place: int) -> str:
    """The unit before ``place`` as it is written, or in lower case where its capital letter is the sentence's."""
    if place == 0:
        return START
    return units.words[place - 1] if units.initial(place - 1) else units.surfaces[place - 1]


def _gap_keys(left: str, right: str) -> tuple[str, ...]:
    """Of a pair of units, then of what kinds they are; a number's length is a kind, too: "$5,000", but ", 36,"."""
    one, other = _kind(left), _kind(right)
    digits = [f"gap {left} <{len(right)} digits>"] if other == "<digit>" else []
    return f"gap {left} {right}", f"gap {one} {right}", *digits, f"gap {left} {other}", f"gap {one} {other}"


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


# -- word order
_PRIOR = 2.0  # of the unigram distribution, in bigrams
_REMEMBERED = 1_000_000  # log probabilities
_COMMON = 60  # words that are tried wherever word order asks for one
_RAREST = 0.1  # share of the texts' words that the rarest ones make
_GOES_ON, _NEVER = 0.4, -20.0  # probability of a piece behind an unknown word; its logarithm behind a mark or number
_TEXTS = 200_000  # counting takes a minute
_JOINED = 2000  # words of several units, the most frequent
_MARKS, _INSIDE = ".,;:!?%()[]{}'\"$-", re.compile(r"\w[^\w\s]\w")


class Language:
    """Counts of words and of pairs of neighbours, in lower case, and how each word is usually written.

    ``forms`` has the form inside sentences of each word that is not usually written in lower case, ``joined`` what
    stands between spaces and has several units: ``brother-in-law``.
    """

    def __init__(
        self,
        pairs: Mapping[tuple[str, str], int],
        forms: Mapping[str, str],
        writing: Writing | None = None,
        joined: Sequence[str] = (),
    ) -> None:
        self.pairs, self.forms, self.writing = Counter(pairs), dict(forms), writing or Writing()
        self.joined = list(joined)
        self.before: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        for (left, right), count in self.pairs.items():
            self.before[left] += count
            self.counts[right] += count
        self._known: dict[tuple[str, str], float] = {}
        self._total = sum(self.counts.values()) + len(self.counts) + 1
        self._count_rare()

    @classmethod
    def count(cls, texts: Sequence[str]) -> Language:
        """Counts of ``texts``; of a very large number, of ``_TEXTS`` evenly over them."""
        texts = [texts[place] for place in range(0, len(texts), -(-len(texts) // _TEXTS) or 1)]
        pairs: Counter[tuple[str, str]] = Counter()
        written: dict[str, Counter[str]] = {}
        joined: Counter[str] = Counter()
        for text in texts:
            units = Units.of(text)
            joined.update(filter(_INSIDE.search, (part.strip(_MARKS) for part in text.split())))
            pairs.update(pairwise((START, *units.words, END)))
            for place, surface in enumerate(units.surfaces):
                if not units.initial(place):
                    written.setdefault(surface.lower(), Counter())[surface] += 1
        usual = {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in written.items()}
        forms = {word: form for word, form in usual.items() if form != word}
        repeated = sorted(one for one, count in joined.most_common(_JOINED) if count > 1)
        return cls(pairs, forms, Writing.count(texts), repeated)

    @property
    def words(self) -> list[str]:
        """All words and punctuation marks that were counted inside a sentence."""
        return [word for word in self._all_words if not self._begins(word)]

    @property
    def beginnings(self) -> list[str]:
        """The words that were counted at the beginning of a sentence only: their capital letters are not known."""
        return [word for word in self._all_words if self._begins(word)]

    def _begins(self, word: str) -> bool:
        return word[0].isalpha() and bool(self.writing.counts) and not self.writing.inside(word)

    @cached_property
    def _all_words(self) -> list[str]:
        return sorted(word for word in self.counts if word != END)

    @cached_property
    def common(self) -> list[str]:
        return sorted(self._all_words, key=lambda word: (-self.counts[word], word))[:_COMMON]

    def follows(self, left: str, right: str) -> float:
        """Log probability of ``right`` behind ``left``."""
        if is_piece(right):
            return self._continues(left)
        known = self._known.get((left, right))
        if known is None:
            pairs, before, count, share = self.pairs[left, right], self.before[left], self.counts[right], 1.0
            if left not in self.before:
                before, pairs = self._rare, self._behind_rare[right]
            if not count:
                count, share = self._rare, 0.5 / (self._rare + 0.5)
                pairs = self._rare_behind[left if left in self.before else None]
            known = math.log(share * (pairs + _PRIOR * (count + 0.5) / self._total) / (before + _PRIOR))
            if len(self._known) < _REMEMBERED:
                self._known[left, right] = known
        return known

    def _count_rare(self) -> None:
        """Where the rarest words stand: an unknown word stands there, too."""
        total, rare = 0, set()
        for word, count in sorted(self.counts.items(), key=lambda one: (one[1], one[0])):
            total += count
            if total > _RAREST * self._total:
                break
            rare |= {word} if word.isalpha() else set()
        self._rare = sum(self.counts[word] for word in rare)
        self._rare_behind: Counter[str | None] = Counter()  # None: behind a rare word
        self._behind_rare: Counter[str] = Counter()
        for (left, right), count in self.pairs.items():
            if right in rare:
                self._rare_behind[left] += count
                self._rare_behind[None] += count if left in rare else 0
            if left in rare:
                self._behind_rare[right] += count

    def _continues(self, word: str) -> float:
        """Log probability that a piece continues ``word``: the more often the texts have it as it is, the less."""
        return math.log(_GOES_ON / (self.counts[word] + 1)) if word[-1].isalpha() else _NEVER

    def between(self, left: str, right: str) -> AbstractSet[str]:
        """Words seen behind ``left`` and before ``right``, and frequent words seen in one of these places.

        A word that was never seen stands for all rare ones.
        """
        behind, ahead = self._neighbours
        after = behind.get(left, self._behind_rare.keys())
        before = ahead.get(right, self._rare_behind.keys())
        return (after & before) | (self._frequent & after) | (self._frequent & before)

    @cached_property
    def _frequent(self) -> frozenset[str]:
        return frozenset(self.common)

    @cached_property
    def _neighbours(self) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
        behind: defaultdict[str, set[str]] = defaultdict(set)
        ahead: defaultdict[str, set[str]] = defaultdict(set)
        for left, right in self.pairs:
            behind[left].add(right)
            ahead[right].add(left)
        return tuple({word: frozenset(found) for word, found in side.items()} for side in (behind, ahead))  # type: ignore[return-value]

    def written(self, word: str) -> str:
        return self.forms.get(word, word)

    def save(self, path: Path, largest: int | None = None) -> None:
        """Write the counts, the most frequent ones where ``largest`` bytes, or what can be read again, are too few."""
        kept = max(len(self.pairs), len(self.writing.counts))
        while len(content := self._written(kept)) > (largest or limits.LARGEST_JSON):
            kept //= 2
        write_file(path, content.decode())

    def _written(self, kept: int) -> bytes:
        """The file with at most ``kept`` pairs, and as many keys of how words are written."""
        follows: dict[str, dict[str, int]] = {}
        for (left, right), count in self.pairs.most_common(kept):
            follows.setdefault(left, {})[right] = count
        occurrences = {key: sum(found.values()) for key, found in self.writing.counts.items()}
        keys = sorted(occurrences, key=lambda key: (-occurrences[key], key))[:kept]
        writing = {key: self.writing.counts[key] for key in keys}
        words = {word for pair in follows.items() for word in (pair[0], *pair[1])}
        forms = {word: form for word, form in self.forms.items() if word in words}
        content = {"follows": follows, "forms": forms, "writing": writing, "joined": self.joined}
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def read(cls, path: Path) -> Language:
        content = read_json(path)
        pairs = {(left, right): count for left, own in content["follows"].items() for right, count in own.items()}
        return cls(pairs, content["forms"], Writing(content["writing"]), content.get("joined", ()))
