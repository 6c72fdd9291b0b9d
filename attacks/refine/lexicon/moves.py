"""Predict, from vectors of single words, which change of a text moves its vector closer to a target.

A mean-pooled embedder averages contributions of words, so replacing the word o by w moves the vector of a text of n
units by about ``_REACH / (n + 2)`` times phi(w) - phi(o). A replacement fits if this step has the direction of the
residual r = target - phi(text) and is not longer than it. Such an embedder hardly says where a word stands, so word
order comes from the training text:

    a crash concussion from a bicycle accident  ->  a concussion from a bicycle accident crash
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import nsmallest
from itertools import chain, combinations, pairwise, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from unembed.attacks.refine.lexicon.language import END, START, Units, capitalised, is_piece
from unembed.attacks.refine.lexicon.words import Lexicon

_REACH = 5.0  # measured with MiniLM on the built-in corpus, lengths 7 to 16: 4.1 to 5.7
_TOO_LONG, _TOO_SHORT = 0.25, 0.1  # cosine that a predicted step loses by each factor e of length
_NEAREST = 4000  # entries that are looked at for each text: those that point most along the residual
_SUBSTITUTES, _ENTRIES, _PLACES = 180, 16, 4
_ORDERS, _USUAL, _FREQUENT = 60, 60, 40  # moves of a kind at the most; usual words of a place, too
# Cosine that one nat of log probability is worth: of other forms and shorter texts, of usual words, of any word.
_FLUENCY, _USUAL_FLUENCY, _WORD_FLUENCY = 0.05, 0.02, 0.01
_PAIRED, _PAIRS = 128, 40  # beginnings, and pieces, that are paired; pairs at the most
_FAR = 0.97  # cosine up to which a beginning and a piece are tried at once
_PARTS = 15  # other parts for each part of a spelt word, and further ones
_EARLIER, _EXCHANGED = 0.03, 0.3  # what each place before the best one costs an insertion; score of parts exchanged
_NEAR_ORDER, _NEAR = 0.8, 0.9  # cosine from which word order, and small differences, are looked at
_FIRST, _THEN = "sqqspsq", "onqfoncionfxidoinfopiqsdpnfi"  # in which order kinds of moves are tried
_FIRST_SPELT, _THEN_SPELT = "gsqgsgq", "gdgxgsgogdgcgigsgngf"  # of a text with a spelt word
_MOST = 160  # changes of a text
_LEAST = 1e-4


_ROWS = 16  # of a matrix product: always as many, so that a row does not depend on the others


def proposals(
    texts: Sequence[tuple[Units, Tensor, Tensor]], lexicon: Lexicon, vectors_of: Callable[[Sequence[str]], Tensor]
) -> Iterator[Proposals]:
    """The changes of each text, given with its vector and its target, (d,); a text's do not depend on the others.

    ``vectors_of`` is the lexicon's for words that may be no entries: ``vectors_of``, or ``known_vectors`` at no query.
    """
    for begin in range(0, len(texts), _ROWS):
        block = texts[begin : begin + _ROWS]
        residuals = torch.zeros(_ROWS, lexicon.vectors.shape[1])
        for row, (_, vector, target) in enumerate(block):
            residuals[row] = target - vector
        along = residuals @ lexicon.vectors.T
        for row, (units, vector, target) in enumerate(block):
            old = vectors_of(lexicon.keys(units.words))
            yield Proposals(units, vector, target, along[row], old, lexicon)


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a text, better ones with a higher ``score``."""

    score: float
    apply: Callable[[], Units]


class Proposals:
    """Changed texts of one text, in the order in which they are worth a query; made when they are asked for.

    ``along`` is the dot product of the residual with the vector of each entry of the lexicon, (V,), ``old`` are the
    vectors of the units alone, (n, d).
    """

    def __init__(
        self, units: Units, vector: Tensor, target: Tensor, along: Tensor, old: Tensor, lexicon: Lexicon
    ) -> None:
        self.units, self.vector, self.lexicon, self.language = units, vector, lexicon, lexicon.language
        self.cosine = float(target @ vector)
        self.residual = target - vector
        self.length = self.residual.norm().clamp_min(_LEAST)
        self.old = old
        self.own, self.here = self.old @ self.residual, self.residual @ vector
        self._around = (START, *units.words, END)
        self._old: dict[tuple[int, int], float] = {}
        self._spelt = units.spelt()
        self._parts = [one for word in self._spelt for place in range(*word) for one in self._best_parts(along, place)]
        self._pairs = self._best_pairs(along) if self.cosine < _FAR else []
        rows = _largest(along, _NEAREST)
        entries, along = lexicon.vectors[rows], along[rows]
        steps = distance(self.old @ entries.T)  # (n, m)
        substitution = step_fit(along[None] - self.own[:, None], steps, self.length, len(units))
        pieces, begins = (
            (part.start <= rows) & (rows < part.stop) for part in (lexicon.piece_rows, lexicon.begin_rows)
        )
        words = torch.tensor([not is_piece(word) for word in units.words])
        begun = torch.zeros(len(units), dtype=torch.bool)
        begun[[begin for begin, _ in self._spelt]] = True
        # A piece is added to a word, it stands for none; a beginning stands before a piece.
        substitution[(words[:, None] & pieces) | (~begun[:, None] & begins)] = -1.0
        insertion = (along - self.here) / distance(entries @ vector) / self.length
        self._spans = units.spans()
        spans = normalize(torch.stack([self.old[begin:end].sum(0) for begin, end in self._spans]), dim=1)
        self._removal = ((self.here - spans @ self.residual) / distance(spans @ vector) / self.length).tolist()
        # Kept is what is left of the matrices, (score, place, entry): many texts wait at the same time. In the order of
        # place and entry, so that equal scores (a word that stands twice) do not depend on the last bits of a vector.
        count = len(rows)
        best = _largest(substitution.flatten(), _SUBSTITUTES)
        self._substitutes = [
            (score, flat // count, int(rows[flat % count]))
            for score, flat in zip(substitution.flatten()[best].tolist(), best.tolist(), strict=True)
        ]
        more = _PARTS if self._spelt else _ENTRIES
        self._insertions, self._continuations = (
            list(zip(insertion[best].tolist(), rows[best].tolist(), strict=True))
            for best in (
                _largest(insertion.masked_fill(other, -1.0), most)
                for other, most in ((pieces | begins, _ENTRIES), (~pieces, more))
            )
        )

    def __iter__(self) -> Iterator[Units]:
        """Kinds of moves take turns; within a kind, the highest score comes first."""
        kinds: dict[str, Iterator[Move]] = {
            "s": _best(self.substitutes), "p": _best(lambda: self.insertions(self._continuations)),
            "d": _best(self.removals), "i": _best(lambda: self.insertions(self._insertions)),
            "g": _best(self.spellings), "q": _best(self.pairs),
        }  # fmt: skip
        if self.cosine > _NEAR_ORDER:
            kinds |= {"o": self.orders(), "x": self.names()}
        if self.cosine > _NEAR:
            kinds |= {"n": _best(self.siblings), "c": _best(self.usual, _USUAL), "f": _best(self.frequent)}
        found = 0
        first, then = (_FIRST_SPELT, _THEN_SPELT) if self._spelt else (_FIRST, _THEN)
        for pattern in chain([first], repeat(then)):
            before = found
            for kind in pattern:
                move = next(kinds.get(kind, iter(())), None)
                if move is not None:
                    yield move.apply()
                    found += 1
                    if found == _MOST:
                        return
            if found == before and pattern == then:
                return

    def substitutes(self) -> Iterator[Move]:
        for score, place, row in self._substitutes:
            entry = self.lexicon.entries[row]
            fluency = self.gain(place, place + 1, self.lexicon.words(row))
            yield Move(score + _WORD_FLUENCY * fluency, partial(self._replaced, place, entry))

    def _best_parts(self, along: Tensor, place: int) -> list[tuple[float, int, int]]:
        """Score, place and entry of the parts that fit best in place of a part of a spelt word.

        They need not point along the residual: what is left between "eggs" and "egg" is smaller than both.
        """
        part = self.lexicon.piece_rows if is_piece(self.units.words[place]) else self.lexicon.begin_rows
        steps = distance(self.lexicon.vectors[part] @ self.old[place])
        scores = step_fit(along[part] - self.own[place], steps, self.length, len(self.units))
        best = _largest(scores, _PARTS)
        rows = (best + part.start).tolist()
        return [(score, place, row) for score, row in zip(scores[best].tolist(), rows, strict=True)]

    def _best_pairs(self, along: Tensor) -> list[tuple[float, int, int, int]]:
        """Score, place, beginning and piece of the pairs that fit best in place of a word."""
        places = [place for place, word in enumerate(self.units.words) if not is_piece(word)]
        parts = (self.lexicon.begin_rows, self.lexicon.piece_rows)
        chosen = [part.start + _largest(along[part], _PAIRED) for part in parts]
        count = len(chosen[1])
        if not places or not count or not len(chosen[0]):
            return []
        (word, piece), old, text = (self.lexicon.vectors[own] for own in chosen), self.old[places], self.vector
        # The step w - o + p - t of unit vectors: beginning w and piece p in place of the old word o in the text t.
        products = (word @ piece.T)[None] - (old @ word.T)[:, :, None] - (old @ piece.T)[:, None]
        products = products + (old @ text)[:, None, None] - (word @ text)[:, None] - piece @ text
        step = (4 + 2 * products).clamp_min(_LEAST).sqrt()
        gained = along[chosen[0]][:, None] + along[chosen[1]] - self.here - self.own[places][:, None, None]
        scores = step_fit(gained, step, self.length, len(self.units)).flatten()
        best, found = _largest(scores, _PAIRS), []
        for score, flat in zip(scores[best].tolist(), best.tolist(), strict=True):
            (place, first), second = divmod(flat // count, len(chosen[0])), flat % count
            found.append((score, places[place], int(chosen[0][first]), int(chosen[1][second])))
        return found

    def pairs(self) -> Iterable[Move]:
        """A beginning and a piece in place of a word."""
        for score, place, word, piece in self._pairs:
            entry = self.lexicon.entries[word] + self.lexicon.entries[piece]
            fluency = self.gain(place, place + 1, (*self.lexicon.words(word), *self.lexicon.words(piece)))
            yield Move(score + _WORD_FLUENCY * fluency, partial(self._replaced, place, entry))

    def siblings(self) -> Iterable[Move]:
        """Replacements by the entries closest to a word: other forms of it, which need not point along the residual."""
        found = [
            (place, row)
            for place, word in enumerate(self.lexicon.keys(self.units.words))
            if not is_piece(word)
            for row in self.lexicon.closest(word, self.old[place])
        ]
        return self._fitting(found, _FLUENCY)

    def spellings(self) -> Iterable[Move]:
        """Spelt words with another part, a piece more or less, or two pieces exchanged."""
        for score, place, row in self._parts:
            yield Move(score, partial(self._replaced, place, self.lexicon.entries[row]))
        removal = dict(zip(self._spans, self._removal, strict=True))
        for begin, end in self._spelt:
            for score, row in self._continuations:
                for place in range(begin + 1, end + 1):
                    inserted = partial(self._inserted, place, self.lexicon.entries[row])
                    yield Move(score - _EARLIER * (end - place), inserted)
            for place in range(begin + 1, end):
                yield Move(removal[place, place + 1], partial(self._removed, place, 1))
            for one, other in combinations(range(begin + 1, end), 2):
                places = _exchanged(one, one + 1, other, other + 1, len(self.units))
                yield Move(_EXCHANGED, partial(self.units.ordered, places))

    def usual(self) -> Iterable[Move]:
        """Replacements by words that training has between these neighbours: another weekday, ``an`` for ``a``."""
        found: list[tuple[int, int]] = []
        for place, (left, right) in enumerate(zip(self._around, self._around[2:], strict=False)):
            likely = [
                (-self.gain(place, place + 1, (word,)), self.lexicon.rows[word])
                for word in self.language.between(left, right)
                if word in self.lexicon.rows and word != self.units.words[place]
            ]
            found += [(place, row) for _, row in sorted(likely)[:_USUAL]]
        return self._fitting(found, _USUAL_FLUENCY)

    def _fitting(self, found: Sequence[tuple[int, int]], fluency: float) -> Iterator[Move]:
        """Replacements of units by entries, (place, row), by how each fits alone and between its neighbours."""
        places, rows = [place for place, _ in found], [row for _, row in found]
        old, new = self.old[places], self.lexicon.vectors[rows]
        scores = step_fit(
            new @ self.residual - self.own[places], distance((new * old).sum(1)), self.length, len(self.units)
        )
        for score, (place, row) in zip(scores.tolist(), found, strict=True):
            gain = self.gain(place, place + 1, self.lexicon.words(row))
            yield Move(score + fluency * gain, partial(self._replaced, place, self.lexicon.entries[row]))

    def removals(self) -> Iterable[Move]:
        """Every text that is one unit, or joined ones, shorter, but for the empty one."""
        for (begin, end), score in zip(self._spans, self._removal, strict=True):
            if end - begin < len(self.units):
                fluency = self.gain(begin, end, ())
                yield Move(score + _FLUENCY * fluency, partial(self._removed, begin, end - begin))

    def insertions(self, fitting: Iterable[tuple[float, int]]) -> Iterable[Move]:
        """The entries that fit best, in the places where they are most fluent: their vectors do not say where."""
        for score, row in fitting:
            entry, words = self.lexicon.entries[row], self.lexicon.words(row)
            every = range(len(self.units) + 1)
            if is_piece(entry):  # at the end of the pieces of a word before between them
                every = every[::-1]
            places = sorted(every, key=lambda place: -self.gain(place, place, words))
            for rank, place in enumerate(places[:_PLACES]):
                yield Move(score - _EARLIER * rank, partial(self._inserted, place, entry))

    def orders(self) -> Iterator[Move]:
        """The most fluent exchanges of two spans, with the log probability that each gains."""
        words = self._around
        follows = np.array([[self.language.follows(left, right) for right in words] for left in words])
        for score, places in exchanges(follows, _ORDERS):
            yield Move(score, partial(self.recased, self.units.ordered(places)))

    def names(self) -> Iterator[Move]:
        """Two names exchanged: to the bigrams, one name is as good as another."""
        words, surfaces = self.units.words, self.units.surfaces
        # A sentence begins with a capital letter anyway, so what is known of its first word counts.
        first = self.language.written(words[0]) if words[0] in self.language.counts else surfaces[0]
        spans = [
            (begin, end) for begin, end in self.units.whole() if (surfaces[begin] if begin else first)[:1].isupper()
        ]
        for one, other in combinations(spans, 2):
            places = _exchanged(*one, *other, len(self.units))
            yield Move(0.0, partial(self.recased, self.units.ordered(places)))

    def frequent(self) -> Iterable[Move]:
        """Frequent words where the neighbours ask for them."""
        follows, found = self.language.follows, []
        for place, (left, right) in enumerate(pairwise(self._around)):
            lost = follows(left, right)
            for word in self.language.common:
                found.append((round(lost - follows(left, word) - follows(word, right), 4), place, word))
        for score, place, word in nsmallest(_FREQUENT, found, key=itemgetter(0)):
            yield Move(-score, partial(self._inserted, place, self.language.written(word)))

    def gain(self, begin: int, end: int, words: Sequence[str]) -> float:
        """Log probability of the text with ``words`` instead of the units from ``begin`` to ``end``, less its own."""
        # Called hundreds of times a text, so without generators.
        follows, around = self.language.follows, self._around
        old = self._old.get((begin, end))
        if old is None:
            old = self._old[begin, end] = sum(follows(left, right) for left, right in pairwise(around[begin : end + 2]))
        left, new = around[begin], 0.0
        for word in words:
            new += follows(left, word)
            left = word
        return new + follows(left, around[end + 1]) - old

    def _replaced(self, place: int, entry: str) -> Units:
        # A name stands where a name stood, whatever is known of the capital letters of the new one.
        large = self.units.surfaces[place][:1].isupper()
        return self.units.replaced(place, capitalised(entry) if large else entry)

    def _inserted(self, place: int, word: str) -> Units:
        return self.recased(self.units.inserted(place, word))

    def _removed(self, place: int, count: int) -> Units:
        return self.recased(self.units.removed(place, count))

    def recased(self, changed: Units) -> Units:
        """With the capital letter of the beginning at the beginning, where a move has changed what stands there."""
        if not len(changed) or not len(self.units) or changed.words[0] == self.units.words[0]:
            return changed
        first = self.units.surfaces[0]
        usual = self.language.written(first.lower())
        surfaces = [usual if surface == first else surface for surface in changed.surfaces]
        if first[:1].isupper():
            surfaces[0] = capitalised(surfaces[0])
        return Units(tuple(surfaces), changed.gaps, changed.tail)


def _largest(scores: Tensor, count: int) -> Tensor:
    return scores.topk(min(count, len(scores))).indices.sort().values


def step_fit(along: Tensor, step: Tensor, length: Tensor, units: int) -> Tensor:
    """Cosine of the predicted steps of replacements and the residual, less for steps too long or too short.

    Args:
        along: Scalar products of phi(w) - phi(o) and the residual.
        step: Lengths of phi(w) - phi(o), of the same shape.
        length: Length of the residual, a scalar.
        units: Number of units of the text.
    """
    factor = (step * (_REACH / (units + 2)) / length).log()
    return along / step / length - _TOO_LONG * factor.clamp_min(0) - _TOO_SHORT * (-factor).clamp_min(0)


def distance(cosines: Tensor) -> Tensor:
    return (2 - 2 * cosines).clamp_min(_LEAST).sqrt()


def _best(proposed: Callable[[], Iterable[Move]], most: int | None = None) -> Iterator[Move]:
    """The moves of a kind, the highest score first; none is made before it is asked for."""
    yield from sorted(proposed(), key=lambda move: -round(move.score, 4))[:most]


# -- exchanges of two spans
_LONGEST = 4  # units of a span that changes places with one that is not its neighbour
_MOST_UNITS = 40  # of longer texts, spans of one or two units only


def exchanges(follows: NDArray[np.float64], most: int) -> Iterator[tuple[float, list[int]]]:
    """Gain and new order of the places, for the ``most`` exchanges of two spans of n units that gain most.

    Neighbouring spans of any length change places (so one span moves), and separate ones of up to four units.

    ``follows``, (n + 2, n + 2), has the log probability of each unit (column) behind each other (row); the first and
    the last are the ends of the text.
    """
    count = len(follows) - 2
    if count < 2:
        return
    i, j, k, m = _spans(count)  # [i, j) and [k, m) change places, in 1-based places
    middle = j < k
    old = follows[i - 1, i] + follows[m - 1, m] + follows[k - 1, k] + np.where(middle, follows[j - 1, j], 0)
    between = np.where(middle, follows[m - 1, j] + follows[k - 1, i], follows[m - 1, i])
    new = follows[i - 1, k] + follows[j - 1, m] + between
    gain = (new - old).round(4)
    chosen = np.argsort(-gain, kind="stable")[:most]
    for row in chosen.tolist():
        a, b, c, d = (int(side[row]) - 1 for side in (i, j, k, m))
        yield float(gain[row]), _exchanged(a, b, c, d, count)


def _exchanged(a: int, b: int, c: int, d: int, count: int) -> list[int]:
    """The places of ``count`` units where those from a to b and those from c to d have changed places."""
    return [*range(a), *range(c, d), *range(b, c), *range(a, b), *range(d, count)]


@lru_cache(maxsize=128)
def _spans(count: int) -> tuple[Any, ...]:
    """First and last places, (i, j, k, m), of all pairs of spans of ``count`` units; j = k for neighbours."""
    any_length = count if count <= _MOST_UNITS else _LONGEST // 2  # of the shorter of two neighbouring spans
    longest = min(_LONGEST, any_length)
    found = []
    for i in range(1, count + 1):
        for j in range(i + 1, count + 1):
            last = count + 1 if j - i <= any_length else min(count + 1, j + any_length)
            found += [(i, j, j, m) for m in range(j + 1, last + 1)]
            if j - i <= longest:
                for k in range(j + 1, count + 1):
                    found += [(i, j, k, m) for m in range(k + 1, min(count + 1, k + longest) + 1)]
    return tuple(np.array(side, dtype=np.intp) for side in zip(*found, strict=True))
