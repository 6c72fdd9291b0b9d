"""Discrete steps as a refiner: the weights of the embedder are known, and texts are run through it by the hundred.

    python evaluate.py run=<dir> attack/refine=[discrete_steps] attack.refine.discrete_steps.steps=48

Tokens of the texts of any attack are replaced, inserted, removed and moved until a text has the target's vector; how
long that text is need not be known. Forward passes are no queries: nobody is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import PositiveInt

from unembed.attacks.lm_inversion.encoder import Encoder, Ids
from unembed.attacks.lm_inversion.entries import Entries
from unembed.attacks.lm_inversion.text_search import Budget, TextSearch, search
from unembed.attacks.lm_inversion.token_language import TokenLanguage
from unembed.attacks.parts.predictions import Prediction, SearchRecord, Targets
from unembed.attacks.refine.lexicon.language import Language, Units
from unembed.attacks.refine.refining import Refiner
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.transformer import RelaxedEncoder, TransformerEmbedder

_LANGUAGE = "language.json"


@dataclass(frozen=True, slots=True)
class _Known:
    """What is computed once."""

    encoder: Encoder
    entries: Entries
    language: TokenLanguage


class DiscreteSteps(Refiner):
    """Changes tokens of texts until one has the target's vector.

    A step runs ``candidates`` changes of the ``beam`` closest texts of a target, and each of these texts without each
    of its tokens. The search ends when a text has the vector, or after ``steps``.

    Args:
        steps: Of each target.
        candidates: Changes that a step runs.
        beam: Texts of a target that a step changes.
        proposals: Candidates requested from the attack: the search starts from all of them.
        active_targets: Targets that take a step together; results do not depend on it.
    """

    def __init__(
        self,
        steps: PositiveInt = 24,
        candidates: PositiveInt = 48,
        beam: PositiveInt = 3,
        proposals: PositiveInt = 5,
        active_targets: PositiveInt = 32,
    ) -> None:
        self.budget, self.proposals, self.active_targets = Budget(steps, candidates, beam), proposals, active_targets
        self._language = Language({}, {})
        self._known: _Known | None = None

    def check(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        """See Refiner.

        Raises:
            InputError: The weights of the embedder are not known.
        """
        super().check(dimension, oracle)
        relaxed_encoder(oracle)

    def prepare(self, texts: Sequence[str], artifacts: Path, oracle: CachedEmbedder | None) -> None:
        """Count words, word order, capital letters and spaces of the training text."""
        Language.count(texts).save(artifacts / _LANGUAGE)

    def prepared(self, artifacts: Path) -> bool:
        """See Refiner."""
        return (artifacts / _LANGUAGE).is_file()

    def load(self, artifacts: Path, dimension: int) -> None:
        """See Refiner."""
        self._language, self._known = Language.read(artifacts / _LANGUAGE), None

    @torch.no_grad()
    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        """See Refiner."""
        model = relaxed_encoder(oracle)
        if self._known is None or self._known.encoder.model.embedder is not model.embedder:
            encoder = Encoder(model)
            words = [*self._language.words, *self._language.beginnings]
            self._known = _Known(encoder, Entries(encoder, words, oracle), TokenLanguage.of(self._language, encoder))
        known = self._known
        vectors = torch.nn.functional.normalize(targets.vectors.cpu().float(), dim=1)
        searches = [
            TextSearch(vector, [tuple(model.ids(text)) for text in one.candidates], self.budget)
            for vector, one in zip(vectors, predictions, strict=True)
        ]
        for begin in range(0, len(searches), self.active_targets):
            search(searches[begin : begin + self.active_targets], known.entries, known.language, known.encoder)
        return [self._refined(before, one, known.encoder) for before, one in zip(predictions, searches, strict=True)]

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
    """The encoder behind a cache.

    Raises:
        InputError: Its weights are not known.
    """
    embedder = None if oracle is None else oracle.embedder
    if not isinstance(embedder, TransformerEmbedder):
        kind = "none" if embedder is None else type(embedder).__name__
        raise InputError(
            f"embedder: its weights are needed, and {kind} gives none; take embedder=minilm, or "
            "embedder=transformer embedder.model=<folder or hub name>"
        )
    return RelaxedEncoder(embedder)
