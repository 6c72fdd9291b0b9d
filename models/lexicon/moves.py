"""Predict, from vectors of single words, which change of a text moves its vector closer to a target.

A mean-pooled embedder averages contributions of words, so replacing the word o by w moves the vector of a text of n
units by about ``_REACH / (n + 2)`` times phi(w) - phi(o). A replacement fits if this step has the direction of the
residual r = target - phi(text) and is not longer than it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, repeat

import torch
from torch import Tensor

from models.lexicon.entries import Lexicon
from models.lexicon.language import END, START
from models.lexicon.units import Units

_REACH = 5.0  # measured with MiniLM on the built-in corpus, lengths 7 to 16: 4.1 to 5.7
_TOO_LONG, _TOO_SHORT = 0.25, 0.1  # cosine that a predicted step loses by each factor e of length
_NEAREST = 4000  # entries that are looked at for each text: those that point most along the residual
_SUBSTITUTES, _SIBLINGS, _ENTRIES, _PLACES, _FUNCTION = 60, 6, 8, 4, 40
_FLUENCY = 0.05  # cosine that one nat of log probability is worth
_NEAR = 0.9  # cosine from which word order and small differences are looked at
_FIRST, _THEN = "ssss", "ddiiooossnnf"  # in which order kinds of moves are tried
_MOST = 120  # changes of a text
_LEAST = 1e-4


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a text, better ones with a higher ``score``."""

    score: float
    apply: Callable[[], Units]


class Proposals:
    """Changed texts of one text, in the order in which they are worth a query; made when they are asked for.

    Args:
        units: The text.
        vector: Its own, (d,).
        target: The vector to reach, (d,).
        along: Dot product of the residual with the vector of each entry of the lexicon, (V,).
        lexicon: Entries and their vectors, and word order.
    """

    def __init__(self, units: Units, vector: Tensor, target: Tensor, along: Tensor, lexicon: Lexicon) -> None:
        self.units, self.lexicon, self.language = units, lexicon, lexicon.language
        self.near = float(target @ vector) > _NEAR
        self.fluency = self.language.score(units.words)
        residual = target - vector
        length = residual.norm().clamp_min(_LEAST)
        old = lexicon.vectors_of(units.words)
        rows = torch.topk(along, min(_NEAREST, len(along))).indices.sort().values
        entries, along = lexicon.vectors[rows], along[rows]
        own, here = old @ residual, residual @ vector
        alike = old @ entries.T  # (n, m)
        step = _distance(alike)
        factor = (step * (_REACH / (len(units) + 2)) / length).log()
        loss = _TOO_LONG * factor.clamp_min(0) + _TOO_SHORT * (-factor).clamp_min(0)
        substitution = (along[None] - own[:, None]) / step / length - loss
        insertion = (along - here) / _distance(entries @ vector) / length
        self._removal = ((here - own) / _distance(old @ vector) / length).tolist()
        # Kept is what is left of the matrices, (score, place, entry): many texts wait at the same time.
        count = len(rows)
        scores, best = substitution.flatten().topk(min(_SUBSTITUTES, substitution.numel()))
        self._substitutes = [
            (score, flat // count, int(rows[flat % count]))
            for score, flat in zip(scores.tolist(), best.tolist(), strict=True)
        ]
        closest = alike.topk(min(_SIBLINGS + 1, count), dim=1).indices
        self._siblings = [
            (float(substitution[place, column]), place, int(rows[column]))
            for place, columns in enumerate(closest.tolist())
            for column in columns
        ]
        scores, best = insertion.topk(min(_ENTRIES, count))
        self._insertions = list(zip(scores.tolist(), rows[best].tolist(), strict=True))

    def __iter__(self) -> Iterator[Units]:
        """Kinds of moves take turns; within a kind, the highest score comes first."""
        kinds: dict[str, Iterator[Move]] = {
            "s": self.substitutes(),
            "d": _best(self.removals),
            "i": _best(self.insertions),
        }
        if self.near:
            kinds |= {"o": _best(self.orders), "n": _best(self.siblings), "f": _best(self.function_words, _FUNCTION)}
        found = 0
        for pattern in chain([_FIRST], repeat(_THEN)):
            moves = [move for kind in pattern if (move := next(kinds.get(kind, iter(())), None)) is not None]
            if not moves and pattern == _THEN:
                return
            for move in moves:
                yield move.apply()
                found += 1
                if found == _MOST:
                    return

    def substitutes(self) -> Iterator[Move]:
        """The replacements that fit the residual best."""
        for score, place, row in self._substitutes:
            yield self.substitute(score, place, self.lexicon.entries[row])

    def siblings(self) -> Iterable[Move]:
        """Replacements by words that are nearly the same to the embedder: another weekday, another form."""
        for score, place, row in self._siblings:
            entry = self.lexicon.entries[row]
            if entry.lower() != self.units.words[place]:
                fluency = self.gain(self.units.replaced(place, entry).words)
                yield self.substitute(score + _FLUENCY * fluency, place, entry)

    def removals(self) -> Iterable[Move]:
        """Every text that is one unit shorter."""
        for place, score in enumerate(self._removal):
            changed = self.units.removed(place)
            yield Move(score + _FLUENCY * self.gain(changed.words), partial(self.recased, changed))

    def insertions(self) -> Iterable[Move]:
        """The entries that fit best, in the places where they are most fluent: their vectors do not say where."""
        for score, row in self._insertions:
            entry = self.lexicon.entries[row]
            texts = [self.units.inserted(place, entry) for place in range(len(self.units) + 1)]
            texts.sort(key=lambda changed: -self.gain(changed.words))
            for rank, changed in enumerate(texts[:_PLACES]):
                yield Move(score - 0.03 * rank, partial(self.recased, changed))

    def orders(self) -> Iterable[Move]:
        """Two units in each other's place, or one somewhere else; the more fluent, the better."""
        count = len(self.units)
        for one in range(count):
            for other in range(one + 1, count):
                words = list(self.units.words)
                words[one], words[other] = words[other], words[one]
                yield Move(self.gain(words), partial(self._exchanged, one, other))
            for to in range(count):
                if abs(one - to) > 1:
                    words = list(self.units.words)
                    words.insert(to, words.pop(one))
                    yield Move(self.gain(words), partial(self._moved, one, to))

    def function_words(self) -> Iterable[Move]:
        """Frequent words where the neighbours ask for them."""
        follows = self.language.follows
        for place, (left, right) in enumerate(pairwise((START, *self.units.words, END))):
            for word in self.language.common:
                score = follows(left, word) + follows(word, right) - follows(left, right)
                yield Move(score, partial(self._inserted, place, word))

    # -- what they share ------------------------------------------------------------------------------------------

    def gain(self, words: Sequence[str]) -> float:
        """Log probability of a changed text, less that of the text."""
        return self.language.score(words) - self.fluency

    def substitute(self, score: float, place: int, entry: str) -> Move:
        return Move(score, partial(self._replaced, place, entry))

    def _replaced(self, place: int, entry: str) -> Units:
        # A name stands where a name stood, whatever is known of the capital letters of the new one.
        large = self.units.surfaces[place][:1].isupper()
        return self.units.replaced(place, capitalised(entry) if large else entry)

    def _inserted(self, place: int, word: str) -> Units:
        return self.recased(self.units.inserted(place, self.language.written(word)))

    def _exchanged(self, one: int, other: int) -> Units:
        return self.recased(self.units.exchanged(one, other))

    def _moved(self, place: int, to: int) -> Units:
        return self.recased(self.units.moved(place, to))

    def recased(self, changed: Units) -> Units:
        """With the capital letter of the beginning at the beginning, where a move has changed what stands there."""
        if not len(changed) or changed.words[0] == self.units.words[0]:
            return changed
        first = self.units.surfaces[0]
        usual = self.language.written(first.lower())
        surfaces = [usual if surface == first else surface for surface in changed.surfaces]
        if first[:1].isupper():
            surfaces[0] = capitalised(surfaces[0])
        return Units(tuple(surfaces), changed.gaps, changed.tail)


def capitalised(word: str) -> str:
    """With its first letter in upper case."""
    return word[:1].upper() + word[1:]


def _distance(cosines: Tensor) -> Tensor:
    """Of unit vectors with these cosines."""
    return (2 - 2 * cosines).clamp_min(_LEAST).sqrt()


def _best(proposed: Callable[[], Iterable[Move]], most: int | None = None) -> Iterator[Move]:
    """The moves of a kind, the highest score first; none is made before it is asked for."""
    yield from sorted(proposed(), key=lambda move: -round(move.score, 4))[:most]
