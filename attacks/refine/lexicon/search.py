"""Lexicon search: a beam over texts that differ from a prediction by replaced, inserted, removed and moved words.

    python evaluate.py run=<dir> attack/refine=[lexicon]
    python evaluate.py run=<dir> attack/refine=[rerank,lexicon] attack.refine.lexicon.max_queries=300
    python train.py attack/refine=[lexicon] attack.refine.lexicon.path=staff.txt

    "Ada went to Rome."  ->  "Ada went to Oslo."   where that lies nearer to the target

Changes are predicted from the embedder's vectors of single words (moves.py). So the search can find words that are not
in the attack's training texts, if they are in the lexicon. Where the attack has a decoder, a text counts by its cosine
and its log probability. Nothing is trained, unless surrogate_steps ask for it (surrogate.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.lexicon.language import Units, is_piece
from unembed.attacks.refine.lexicon.moves import proposals
from unembed.attacks.refine.lexicon.refiner import WordRefiner
from unembed.attacks.refine.lexicon.surrogate import Surrogate
from unembed.attacks.refine.lexicon.words import Lexicon
from unembed.attacks.refine.refining import FOUND, embedded
from unembed.embedders.cache.cached import CachedEmbedder

_EQUAL = 5  # decimals of a cosine that count
_LATE, _NEARLY = 10, 0.95  # queries of a target, and cosine of a text, from which the decoder orders its changes
_MARGIN = 0.3  # of cosine, below the best text of a target, within which others are changed too


@dataclass
class LexiconSearch(WordRefiner):
    """Changes the words of a prediction until its vector is the target's.

    Each round embeds the ``moves`` most promising changes of each of the ``beam`` best texts of a target. The search
    ends when a text has the target's vector, no changes are left, or the queries are used up. ``fluency`` is the cosine
    that a nat of log probability is worth; with 0, the attack's decoder is not asked.
    """

    max_queries: PositiveInt = 100
    beam: PositiveInt = 3
    moves: PositiveInt = 1
    proposals: PositiveInt = 5
    fluency: NonNegativeFloat = 6e-4

    def _starts(self, target: Tensor, prediction: Prediction, lexicon: Lexicon) -> list[Units]:
        """The candidates that have words; of none, the entries closest to the target."""
        texts = [units for text in dict.fromkeys(prediction.candidates) if len(units := lexicon.units(text))]
        if texts:
            return texts
        rows = torch.topk(lexicon.vectors @ target, min(self.beam, len(lexicon.entries))).indices
        return [Units.of(lexicon.entries[row]) for row in rows.tolist()]

    @torch.no_grad()
    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        lexicon = self.lexicon(oracle)
        vectors = torch.nn.functional.normalize(targets.vectors.cpu().float(), dim=1)
        searches = [
            _Search(target, self._starts(target, one, lexicon), self)
            for target, one in zip(vectors, predictions, strict=True)
        ]
        while active := [search for search in searches if search.pending]:
            found = embedded([str(units) for search in active for units in search.pending], oracle)
            for search in active:
                search.receive(found)
            self._judge([search for search in active if not search.found])
            self._write([search for search in active if search.found and not search.writing])
            while active:
                unknown = [(search, text) for search in active for text in search.beam() if text.changes is None]
                _propose(unknown, lexicon, self.surrogate)
                self._rank(unknown)
                for search in active:
                    search.choose()
                # Where nothing is left of the closest texts, the next ones are changed.
                active = [search for search in active if not search.pending and search.beam()]
        return [search.result(one) for search, one in zip(searches, predictions, strict=True)]

    @property
    def _asks_decoder(self) -> bool:
        return self.writer is not None and self.fluency > 0

    def _judge(self, searches: Sequence[_Search]) -> None:
        """Order the texts of each search by their values, as far as the first places depend on them."""
        if not self._asks_decoder:
            return
        while new := [(search, text) for search in searches for text in search.leading() if text.value is None]:
            found = self._log_probabilities([(search, text.units) for search, text in new])
            for (_, text), log_p in zip(new, found, strict=True):
                text.value = round(text.cosine + self.fluency * log_p, _EQUAL)
            for search in searches:
                search.sort()

    def _rank(self, texts: Sequence[tuple[_Search, _Text]]) -> None:
        """Put the changes of texts that are nearly found in the order of the decoder's log probability.

        What is left to change, function words and word order, hardly shows in the vectors of single words.
        """
        if not self._asks_decoder or self.surrogate is not None:
            return
        for search, text in texts:
            if search.queries >= _LATE and text.cosine > _NEARLY and not any(map(is_piece, text.units.words)):
                changes = [*(text.changes or ())]
                scores = self._log_probabilities([(search, units) for units in changes])
                ordered = sorted(zip(scores, changes, strict=True), key=lambda pair: -round(pair[0], _EQUAL))
                text.changes = iter([units for _, units in ordered])

    def _write(self, searches: Sequence[_Search]) -> None:
        """Write found texts as the training text would, with the capital letters that the decoder finds most likely."""
        written = [self.language.writing.written(search.texts[0].units, like=search.first) for search in searches]
        changed = list(range(len(written))) if self._asks_decoder else []
        while changed:
            forms = {row: [*self.language.writing.alternatives(written[row])] for row in changed}
            groups = [(row, [written[row], *others]) for row, others in forms.items() if others]
            found = iter(self._log_probabilities([(searches[row], units) for row, group in groups for units in group]))
            changed = []
            for row, group in groups:
                scores = [round(next(found), _EQUAL) for _ in group]
                best = group[scores.index(max(scores))]
                if best is not written[row]:
                    written[row] = best
                    changed.append(row)
        for search, units in zip(searches, written, strict=True):
            search.write(units)

    def _log_probabilities(self, texts: Sequence[tuple[_Search, Units]]) -> list[float]:
        """Of each text under the attack's decoder, given the target of its search."""
        if not texts:
            return []
        assert self.writer is not None
        vectors = torch.stack([search.target for search, _ in texts])
        found: list[float] = self.writer.log_probabilities(vectors, [str(units) for _, units in texts]).tolist()
        return found


@dataclass(slots=True, eq=False)  # a text is itself: vectors have no equality
class _Text:
    """A text whose vector is known, and its changes that have not been looked at."""

    units: Units
    vector: Tensor
    cosine: float
    value: float | None = None  # cosine and log probability
    changes: Iterator[Units] | None = None  # None: not yet known
    open: bool = True  # whether there may be more of them
    written: bool = False  # whether its capital letters and spaces are those of the training text


@dataclass(slots=True)
class _Search:
    target: Tensor
    starts: list[Units]  # candidates of the attack that are not yet embedded
    settings: LexiconSearch
    pending: list[Units] = field(default_factory=list)  # to be embedded next
    texts: list[_Text] = field(default_factory=list)  # the closest first
    seen: set[str] = field(default_factory=set)
    queries: int = 0
    writing: bool = False
    partial: bool = False
    first: Units | None = None  # the attack's best candidate

    def __post_init__(self) -> None:
        self.first = self.starts[0] if self.starts else None
        self.seen.update(map(str, self.starts))
        self.pending, self.starts = self.starts[:1], self.starts[1:]

    @property
    def found(self) -> bool:
        return bool(self.texts) and self.texts[0].cosine > FOUND

    @property
    def finished(self) -> bool:
        return self.partial or self.queries >= self.settings.max_queries or self.found

    def receive(self, vectors: dict[str, Tensor]) -> None:
        """Take the vectors of what was pending; one that is missing ends the search."""
        for units in self.pending:
            vector = vectors.get(str(units))
            if vector is None:
                self.partial = True
                continue
            vector = torch.nn.functional.normalize(vector, dim=0)
            written = self.writing and self.found
            self.texts.append(_Text(units, vector, round(float(vector @ self.target), _EQUAL), written=written))
        self.queries += len(self.pending)
        self.pending = []
        self.sort()

    def sort(self) -> None:
        """Found texts first; where a value is not known, the cosine is what it is at the most."""
        self.texts.sort(
            key=lambda text: (
                not (text.written and text.cosine > FOUND),
                text.cosine <= FOUND,
                -(text.cosine if text.value is None else text.value),
            )
        )

    def _changeable(self) -> list[_Text]:
        """The best texts that have changes left."""
        closest = max((text.cosine for text in self.texts), default=0.0)
        left = (text for text in self.texts if text.open and text.cosine > closest - _MARGIN)
        return [*islice(left, self.settings.beam)]

    def leading(self) -> list[_Text]:
        """The texts that the next round, or the result, depends on, each once."""
        return [*dict.fromkeys(self.texts[: self.settings.beam] + self._changeable())]

    def beam(self) -> list[_Text]:
        return [] if not self.texts or self.finished else self._changeable()

    def write(self, written: Units) -> None:
        """Take how a text that was found is written; it stands so if it is found again."""
        self.writing = True
        known = [text for text in self.texts if str(text.units) == str(written)]
        for text in known:
            text.written = True
        self.pending = [] if known or self.queries == self.settings.max_queries else [written]
        self.sort()

    def choose(self) -> None:
        """What is embedded next: other candidates of the attack first, then changes of the closest texts."""
        beam = self.beam()
        if beam:
            self.pending, self.starts = self.starts, []
        for text in beam:
            assert text.changes is not None
            fresh = 0
            while fresh < self.settings.moves:
                changed = next(text.changes, None)
                if changed is None:
                    text.open = False
                    break
                if len(changed) and str(changed) not in self.seen:  # servers refuse an empty text
                    self.seen.add(str(changed))
                    self.pending.append(changed)
                    fresh += 1
        del self.pending[max(0, self.settings.max_queries - self.queries) :]

    def result(self, before: Prediction) -> Prediction:
        found = [str(text.units) for text in self.texts][: len(before.candidates)] or before.candidates
        after = before.refined(tuple(found), self.partial)
        return after if after.candidates[0] == before.candidates[0] else replace(after, kind="sequence")


def _propose(texts: Sequence[tuple[_Search, _Text]], lexicon: Lexicon, surrogate: Surrogate | None) -> None:
    given = [(text.units, text.vector, search.target) for search, text in texts]
    for (search, text), changes in zip(texts, proposals(given, lexicon, lexicon.vectors_of), strict=True):
        text.changes = iter(changes if surrogate is None else _ranked(changes, search, text, lexicon, surrogate))


def _ranked(
    changes: Iterable[Units], search: _Search, text: _Text, lexicon: Lexicon, surrogate: Surrogate
) -> list[Units]:
    """By the cosine that the surrogate predicts: its difference of two texts is added to the known vector of one."""
    known = [units for units in changes if str(units) not in search.seen]
    if not known:
        return []
    found = surrogate.predict([text.units.words, *(units.words for units in known)], lexicon.vectors_of)
    predicted = torch.nn.functional.normalize(text.vector + found[1:] - found[:1], dim=1) @ search.target
    order = sorted(range(len(known)), key=lambda place: -round(float(predicted[place]), _EQUAL))
    return [known[place] for place in order]
