"""Lexicon search: a beam over texts that differ from a prediction by replaced, inserted, removed and moved words.

    python evaluate.py run=<dir> attack/refine=[lexicon]
    python evaluate.py run=<dir> attack/refine=[rerank,lexicon] attack.refine.lexicon.max_queries=300
    python train.py attack/refine=[lexicon] attack.refine.lexicon.path=staff.txt

    "Ada went to Rome."  ->  "Ada went to Oslo."   where that lies nearer to the target

Changes are predicted from the embedder's vectors of single words (moves.py). So the search can find words that are not
in the attack's training texts, if they are in the lexicon. Nothing is trained, unless surrogate_steps ask for it
(surrogate.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.lexicon.language import Language, Units
from unembed.attacks.refine.lexicon.moves import proposals
from unembed.attacks.refine.lexicon.refiner import WordRefiner
from unembed.attacks.refine.lexicon.surrogate import Surrogate
from unembed.attacks.refine.lexicon.words import Lexicon
from unembed.attacks.refine.refining import FOUND, embedded
from unembed.embedders.cache.cached import CachedEmbedder

_EQUAL = 5  # decimals of a cosine that count
_MARGIN = 0.3  # of cosine, below the best text of a target, within which others are changed too


@dataclass
class LexiconSearch(WordRefiner):
    """Changes the words of a prediction until its vector is the target's.

    Each round embeds the ``moves`` most promising changes of each of the ``beam`` best texts of a target. The search
    ends when a text has the target's vector, no changes are left, or the queries are used up.
    """

    max_queries: PositiveInt = 100
    beam: PositiveInt = 2
    moves: PositiveInt = 1
    proposals: PositiveInt = 5

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
            while active:
                unknown = [(search, text) for search in active for text in search.beam() if text.changes is None]
                _propose(unknown, lexicon, self.surrogate)
                for search in active:
                    search.choose(self.language)
                # Where nothing is left of the closest texts, the next ones are changed.
                active = [search for search in active if not search.pending and search.beam()]
        return [search.result(one) for search, one in zip(searches, predictions, strict=True)]


@dataclass(slots=True)
class _Text:
    """A text whose vector is known, and its changes that have not been looked at."""

    units: Units
    vector: Tensor
    cosine: float
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
    def finished(self) -> bool:
        return self.partial or self.queries >= self.settings.max_queries or self.texts[0].cosine > FOUND

    def receive(self, vectors: dict[str, Tensor]) -> None:
        """Take the vectors of what was pending; one that is missing ends the search."""
        for units in self.pending:
            vector = vectors.get(str(units))
            if vector is None:
                self.partial = True
                continue
            vector = torch.nn.functional.normalize(vector, dim=0)
            written = self.writing and self.texts[0].cosine > FOUND
            self.texts.append(_Text(units, vector, round(float(vector @ self.target), _EQUAL), written=written))
        self.queries += len(self.pending)
        self.pending = []
        self._sort()

    def _sort(self) -> None:
        self.texts.sort(key=lambda text: (not (text.written and text.cosine > FOUND), -text.cosine))

    def beam(self) -> list[_Text]:
        if not self.texts or self.finished:
            return []
        open_texts = [text for text in self.texts if text.open and text.cosine > self.texts[0].cosine - _MARGIN]
        return open_texts[: self.settings.beam]

    def choose(self, language: Language) -> None:
        """What is embedded next: other candidates of the attack first, then changes of the closest texts.

        A text that was found is written as the training text would write it, and stands so if it is found again.
        """
        beam = self.beam()
        if self.texts and self.texts[0].cosine > FOUND and not self.writing:
            self.writing = True
            written = language.writing.written(self.texts[0].units, like=self.first)
            known = [text for text in self.texts if str(text.units) == str(written)]
            for text in known:
                text.written = True
            self.pending = [] if known or self.queries == self.settings.max_queries else [written]
            self._sort()
            return
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
    for (search, text), changes in zip(texts, proposals(given, lexicon), strict=True):
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
