"""Discrete steps as a refiner: the weights of the embedder are known, and texts are run through it by the hundred.

    python evaluate.py run=<dir> attack/refine=[discrete_steps] attack.refine.discrete_steps.steps=48
    ["i like dog"]  ->  shorter, longer, changed and reordered texts  ->  "i like my dog ."

Tokens of the texts of any attack are replaced, inserted, removed and moved until a text has the target's vector; how
long that text is need not be known. The closest texts are changed again, those first that were changed seldom. Forward
passes are no queries: nobody is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.lm_inversion.base import embedder_of
from unembed.attacks.lm_inversion.edits import Edit, Encoder, Entries, Ids, RankedEdits, TokenLanguage, pairs
from unembed.attacks.parts.predictions import Prediction, SearchRecord, Targets
from unembed.attacks.refine.lexicon.language import Language, Units
from unembed.attacks.refine.refining import FOUND, Refiner
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.transformer import RelaxedEncoder, TransformerEmbedder

_EQUAL = 6  # decimals of a cosine that count
_KEPT = 400  # closest texts of a target whose vectors are kept
_WEAR = 0.5  # share of its distance by which a text is taken to be farther for each round in which it was changed


@dataclass(slots=True, eq=False)
class Text:
    """A text whose unit vector (d,) is known.

    Attributes:
        cosine: With the target.
        changed: Rounds in which it was changed.
        edits: Its edits that were not tried yet; None before the first round.
        tried: Edits of it, with the vectors that they gave.
    """

    ids: Ids
    vector: Tensor
    cosine: float
    changed: int = 0
    edits: Iterator[Edit] | None = None
    tried: list[tuple[Edit, Tensor]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TextSearch:
    """The search for one target, a unit vector (d,), from one text or more.

    Attributes:
        texts: The closest texts, the closest first.
        tried: All texts that were run.
        steps: Rounds until now.
        passes: Forward passes until now.
    """

    target: Tensor
    starts: Sequence[Ids]
    settings: DiscreteSteps
    texts: list[Text] = field(default_factory=list)
    tried: set[Ids] = field(default_factory=set)
    steps: int = 0
    passes: int = 0

    @property
    def found(self) -> bool:
        return self.texts[0].cosine > FOUND

    @property
    def active(self) -> bool:
        return (
            not self.found and self.steps < self.settings.steps and any(text.edits is not _NONE for text in self.texts)
        )

    def receive(self, inputs: Sequence[Ids], vectors: Tensor) -> None:
        for ids, vector, cosine in zip(inputs, vectors, (vectors @ self.target).tolist(), strict=True):
            if ids not in self.tried:
                self.tried.add(ids)
                self.texts.append(Text(ids, vector, round(cosine, _EQUAL)))
        self.texts = sorted(self.texts, key=lambda text: (-text.cosine, text.ids))[:_KEPT]
        self.passes += len(inputs)

    def beam(self) -> list[Text]:
        left = [text for text in self.texts if text.edits is not _NONE]
        left.sort(key=lambda text: (1 - text.cosine) * (1 + _WEAR * text.changed))
        return left[: self.settings.beam]

    def next_edits(self, beam: Sequence[Text], encoder: Encoder) -> list[tuple[Text, Edit, Ids]]:
        """Edits of these texts, and what they give, that were not run: pairs of edits, and those ranked next."""
        self.steps += 1
        found: dict[Ids, tuple[Text, Edit, Ids]] = {}
        wanted = -(-self.settings.candidates // len(beam))
        for text in beam:
            assert text.edits is not None
            count = len(found)
            if text.changed:
                joint = pairs(text.ids, text.vector, text.tried, self.target)
                self._take(found, text, joint, count + wanted // 2, encoder)
            if not self._take(found, text, text.edits, count + wanted, encoder):
                text.edits = _NONE
            text.changed += 1
        return list(found.values())

    def _take(
        self,
        found: dict[Ids, tuple[Text, Edit, Ids]],
        text: Text,
        edits: Iterator[Edit],
        until: int,
        encoder: Encoder,
    ) -> bool:
        """Add edits to ``found`` until it has ``until``; False if there are fewer."""
        while len(found) < until:
            some = list(islice(edits, until - len(found)))
            if not some:
                return False
            for edit, ids in zip(some, encoder.canonical([edit.of(text.ids) for edit in some]), strict=True):
                if ids not in self.tried and 0 < len(ids) <= encoder.model.max_tokens:
                    found.setdefault(ids, (text, edit, ids))
        return True


_NONE: Iterator[Edit] = iter(())  # of a text whose edits were all tried


@torch.no_grad()
def search(searches: Sequence[TextSearch], entries: Entries, language: TokenLanguage, encoder: Encoder) -> None:
    """Take rounds of all searches until each has found its text or used up its budget."""
    _run([(one, list(dict.fromkeys(one.starts))) for one in searches], encoder)
    while active := [one for one in searches if one.active]:
        beams = [(one, one.beam()) for one in active]
        _begin([(one, text) for one, beam in beams for text in beam if text.edits is None], entries, language, encoder)
        edits = [one.next_edits(beam, encoder) for one, beam in beams]
        vectors = _run([(one, [ids for _, _, ids in own]) for one, own in zip(active, edits, strict=True)], encoder)
        for own, block in zip(edits, vectors, strict=True):
            for (text, edit, ids), vector in zip(own, block, strict=True):
                if edit.of(text.ids) == ids:
                    text.tried.append((edit, vector))


def _begin(
    texts: Sequence[tuple[TextSearch, Text]], entries: Entries, language: TokenLanguage, encoder: Encoder
) -> None:
    """Run each text without each of its tokens and words, and rank its other changes."""
    spans = [encoder.spans(text.ids) for _, text in texts]
    removals = [[Edit(*span, ()) for span in own] for own in spans]
    rest = [[edit.of(text.ids) or text.ids for edit in own] for (_, text), own in zip(texts, removals, strict=True)]
    vectors = _run([(one, own) for (one, _), own in zip(texts, rest, strict=True)], encoder)
    for (one, text), own, edits, shorter in zip(texts, spans, removals, vectors, strict=True):
        text.edits = iter(RankedEdits(text.ids, text.vector, own, shorter, one.target, entries, language))
        text.tried = [(edit, vector) for edit, vector in zip(edits, shorter, strict=True) if len(edit.of(text.ids))]


def _run(wanted: Sequence[tuple[TextSearch, Sequence[Ids]]], encoder: Encoder) -> Sequence[Tensor]:
    vectors = encoder.vectors([ids for _, own in wanted for ids in own])
    found: tuple[Tensor, ...] = torch.split(vectors, [len(own) for _, own in wanted])
    for (one, own), block in zip(wanted, found, strict=True):
        one.receive(own, block)
    return found


_LANGUAGE = "language.json"


@dataclass
class DiscreteSteps(Refiner):
    """Changes tokens of texts until one has the target's vector.

    A step runs ``candidates`` changes of the ``beam`` closest texts of a target, and each of these texts without each
    of its tokens. The search ends when a text has the vector, or after ``steps``. It starts from ``proposals``
    candidates of the attack. Results do not depend on ``active_targets``.
    """

    steps: PositiveInt = 24
    candidates: PositiveInt = 48
    beam: PositiveInt = 3
    proposals: PositiveInt = 5
    active_targets: PositiveInt = 32

    def __post_init__(self) -> None:
        self._language = Language({}, {})
        self._known: tuple[Encoder, Entries, TokenLanguage] | None = None

    def check(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        super().check(dimension, oracle)
        relaxed_encoder(oracle)

    def prepare(self, texts: Sequence[str], artifacts: Path, oracle: CachedEmbedder | None) -> None:
        Language.count(texts).save(artifacts / _LANGUAGE)

    def prepared(self, artifacts: Path) -> bool:
        return (artifacts / _LANGUAGE).is_file()

    def load(self, artifacts: Path, dimension: int) -> None:
        self._language, self._known = Language.read(artifacts / _LANGUAGE), None

    @torch.no_grad()
    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        model = relaxed_encoder(oracle)
        if self._known is None or self._known[0].model.embedder is not model.embedder:
            encoder = Encoder(model)
            words = [*self._language.words, *self._language.beginnings]
            self._known = encoder, Entries(encoder, words, oracle), TokenLanguage.of(self._language, encoder)
        encoder, entries, language = self._known
        vectors = torch.nn.functional.normalize(targets.vectors.cpu().float(), dim=1)
        searches = [
            TextSearch(vector, [tuple(model.ids(text)) for text in one.candidates], self)
            for vector, one in zip(vectors, predictions, strict=True)
        ]
        for begin in range(0, len(searches), self.active_targets):
            search(searches[begin : begin + self.active_targets], entries, language, encoder)
        return [self._refined(before, one, encoder) for before, one in zip(predictions, searches, strict=True)]

    def _refined(self, before: Prediction, one: TextSearch, encoder: Encoder) -> Prediction:
        """The closest texts, as many as there were candidates."""
        starts = dict(zip(reversed(one.starts), reversed(before.candidates), strict=True))
        texts = [self._written(text.ids, starts, encoder) for text in one.texts[: len(before.candidates)]]
        closest = one.texts[0]
        record = SearchRecord(one.found, one.steps, one.passes, max(0.0, 1 - closest.cosine))
        changed = texts[0] != before.candidates[0]
        after = before.refined(tuple(dict.fromkeys(texts)))
        return replace(after, kind="sequence" if changed else before.kind, search=record)

    def _written(self, ids: Ids, starts: dict[Ids, str], encoder: Encoder) -> str:
        """The text of tokens: as the attack writes it, or else with its capital letters and the training text's."""
        if ids in starts:
            return starts[ids]
        plain = encoder.model.decode(ids)
        units = Units.of(plain)
        own = {unit.lower(): unit for text in starts.values() for unit in Units.of(text).surfaces}
        surfaces = tuple(own.get(word, surface) for word, surface in zip(units.words, units.surfaces, strict=True))
        written = str(self._language.writing.written(replace(units, surfaces=surfaces)))
        return written if encoder.ids([written]) == encoder.ids([plain]) else plain


def relaxed_encoder(oracle: CachedEmbedder | None) -> RelaxedEncoder:
    reason = "its weights are needed, and {} gives none; take embedder=minilm, or embedder=transformer"
    return RelaxedEncoder(embedder_of(oracle, TransformerEmbedder, f"{reason} embedder.model=<folder or hub name>"))
